"""The workload kernels compiled for GPUs that need not be there, launched against a driver that records."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget

from benchmarks.kernels import KernelWorkload, as_tuple, load_all
from shapedispatch.kernels.runtime.wrappers import unwrap
from tests.triton_core import dispatched
from tests.triton_recorder import recording

WORKLOADS = load_all()


def first_configs(workload: KernelWorkload, recorder: Any, **more: Any) -> dict[str, Any]:
    """The workload's kernels under the decorator, with one config each: compiling all takes too long here."""

    def decorate(kernel: Any, **said: Any) -> Any:
        tuning = unwrap(kernel).tuning
        configs = {"configs": [tuning.configs[0]]} if tuning is not None else {}
        return dispatched(kernel, recorder, **{**said, **configs})

    return workload.dispatched(decorate, **more)


def bottoms(workload: KernelWorkload) -> list[Any]:
    """The jitted functions under the workload's decorators."""
    return [unwrap(kernel).kernel for kernel in workload.kernels.values()]


def parameters(compiled: Any) -> list[str]:
    """The types of the runtime parameters in the compiled code, Triton's two scratch pointers left out."""
    entry = compiled.asm["ptx"].split(".entry")[1].split(")")[0]
    return re.findall(r"\.param \.(\w+)(?: \.ptr| \w+_param)", entry)[:-2]


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_compiles_and_is_launched(name: str, arch: int) -> None:
    """Every kernel of it, forward and backward, at a first call and at a hit, with the same launch."""
    workload = WORKLOADS[name]
    args = workload.inputs(workload.small_sweep[0])
    with recording(*bottoms(workload), target=GPUTarget("cuda", arch, 32)) as recorder:
        kernels = first_configs(workload, recorder, static=())
        for _ in range(2):
            recorder.launches.clear()
            outputs = as_tuple(workload.run(kernels, *args))
            if workload.needs_grad:
                torch.autograd.grad(outputs, args, [torch.ones_like(out) for out in outputs])

        assert len(recorder.launches) == len(kernels)
        assert {launched.name for launched in recorder.launches} == {kernel.fn.__name__ for kernel in bottoms(workload)}
        assert all(kernel.cache_info().hits == 1 for kernel in kernels.values())


def test_the_heads_of_xsa_become_constants() -> None:
    """HQ, HKV and D are no runtime parameters of the static builds; B and T stay."""
    workload = WORKLOADS["xsa"]
    args = workload.inputs({"B": 2, "T": 3, "HQ": 6, "HKV": 2, "D": 16})
    with recording(*bottoms(workload)) as recorder:
        kernels = first_configs(workload, recorder)
        outputs = workload.run(kernels, *args)
        torch.autograd.grad(outputs, args, [torch.ones_like(out) for out in outputs])
        for name, pointers in (("xsa_forward", 5), ("xsa_backward", 7)):
            builds = {
                build.compiled.src.constants.get((pointers + 2,)): build for build in kernels[name].core.table.builds()
            }

            assert parameters(builds[None].compiled) == ["u64"] * pointers + ["u32"] * 5
            assert parameters(builds[6].compiled) == ["u64"] * pointers + ["u32"] * 2
