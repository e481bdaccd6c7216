"""Settings of the compiler and its loggers for the time of one trace: they are the process's, hence the lock."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch._dynamo
import torch._functorch.config
import torch.compiler.config

__all__ = ["compiler_config"]


@contextlib.contextmanager
def compiler_config(tag: str, number_inputs: bool) -> Iterator[None]:
    """Compiler settings that a build needs, for the time of one trace; they are global, hence the lock."""
    dynamo = torch._dynamo.config.patch(
        automatic_dynamic_shapes=False,  # what is dynamic is said, not learned from other copies of the function
        assume_static_by_default=not number_inputs,
        skip_nnmodule_hook_guards=False,  # a hook added to a module later must be seen
        **_known(
            torch._dynamo.config,
            record_runtime_overhead=False,  # two Python calls a run, for a profiler's event
            skip_tensor_guards_with_matching_dict_tags=False,  # `p.data = ...` leaves the dict of `p` as it was
            skip_guards_on_constant_func_defaults=False,  # they may be replaced
            assume_dunder_attributes_remain_unchanged=False,  # so may what is in a closure
        ),
    )
    functorch = torch._functorch.config.patch(
        force_non_lazy_backward_lowering=True,  # a backward compiled at its first use would be compiled under no lock
        donated_buffer=False,  # plain allows retain_graph=True
        enable_autograd_cache=False,  # a hit would skip the look at the graph
    )
    tagged = torch.compiler.config.patch(cache_key_tag=tag)  # type: ignore[attr-defined]  # added by the module itself
    with warnings.catch_warnings(), dynamo, functorch, tagged, _quiet_loggers():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _quiet_loggers() -> Iterator[None]:
    """What fails is a build's refusal, told in a sentence; torch would log pages of it as an error."""
    names = ("torch._guards", "torch._inductor.utils", "torch._subclasses.fake_tensor")
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _known(config: Any, **wanted: Any) -> dict[str, Any]:
    """Those settings that this release of torch has."""
    return {name: value for name, value in wanted.items() if hasattr(config, name)}
