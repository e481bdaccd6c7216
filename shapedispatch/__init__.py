"""Write a kernel once, and every call runs the build that is fastest for its exact shape.

`shapedispatch` is the decorator; what it returns is a `Dispatcher`. `set_mode` and `dispatchers` are for the process,
`Variant` is an alternative that the user supplies, the other names are records and errors that one meets.
"""

from .dispatcher import Dispatcher, dispatchers, shapedispatch
from .errors import MissError, NoVariantError, SettingsError, ShapeDispatchError
from .modes import set_mode
from .records import CacheInfo, Choice, Refusal, Timing, Variant
from .store import Store

__all__ = [
    "CacheInfo",
    "Choice",
    "Dispatcher",
    "MissError",
    "NoVariantError",
    "Refusal",
    "SettingsError",
    "ShapeDispatchError",
    "Store",
    "Timing",
    "Variant",
    "dispatchers",
    "set_mode",
    "shapedispatch",
]
__version__ = "0.1.0"
