"""Write a function or kernel once, and every call runs the build that is fastest for its exact shape.

    @shapedispatch(dims={"x": "M K", "w": "K N"}, hints={"M": (64, 256, 4096)})
    def mlp(x, w):                      # x (M, K), w (K, N)
        return torch.relu(x @ w)

    mlp(x, w)                           # at a new shape build what is missing, time the variants and remember
    mlp(x, w)                           # afterwards key, lookup, run
    print(mlp.explain(x, w))            # what runs for this call, why, what else was tried, what each cost
    mlp.prepare({"M": [16, 64]}, x, w)  # decide ahead
    load()                              # in a fresh process: build what the store names, and nothing else
    set_mode("sealed")                  # from here on never time, never compile

`shapedispatch` is the decorator, for functions and Triton kernels; what it returns has the methods of `Dispatcher`.
`Variant` is an alternative that the user supplies. `set_mode`, `load`, `wait` and `dispatchers` are for the process,
`sync` for the ranks of a distributed job, `Store` is where choices are kept between processes. `Choice` (with its
`Timing` and `Refusal`) and `CacheInfo` are what one is told. Every error is a `ShapeDispatchError`: `SettingsError` at
a wrong setting, `MissError` and `NoVariantError` at a call, `SyncError` of ranks that do not agree, `DeclarationError`
(a TypeError and a ValueError, too) where what was said cannot mean anything. ``hotpath_available`` says whether hits
are answered in C, ``hotpath_reason`` why not (None where they are).

Sizes are numbers of elements along an axis. Times are microseconds in names that end in ``_us``, wall-clock budgets
milliseconds (``_ms``), memory bytes. An answer is always that of the function as written, within the tolerance that a
compiled build is allowed. What that means, the settings, and what a message means stand in docs/.
"""

from typing import Any

from .api.decorator import Dispatcher, shapedispatch
from .api.registry import dispatchers, load, sync, wait
from .errors import DeclarationError, MissError, NoVariantError, SettingsError, ShapeDispatchError, SyncError
from .hit import native
from .records import CacheInfo, Choice, Refusal, Timing, Variant
from .settings.modes import set_mode
from .store.store import Store

__all__ = [
    "CacheInfo",
    "Choice",
    "DeclarationError",
    "Dispatcher",
    "MissError",
    "NoVariantError",
    "Refusal",
    "SettingsError",
    "ShapeDispatchError",
    "Store",
    "SyncError",
    "Timing",
    "Variant",
    "dispatchers",
    "load",
    "set_mode",
    "shapedispatch",
    "sync",
    "wait",
]
__version__ = "0.2.1"


def __getattr__(name: str) -> Any:
    # Not read at import: the settings that may turn it off are read at the first decoration.
    if name in ("hotpath_available", "hotpath_reason"):
        return getattr(native, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
