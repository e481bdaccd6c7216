"""A small result of each benchmark script, in the form that the script writes, with numbers that nobody measured."""

from __future__ import annotations

from typing import Any

GPU = {
    "command": "python benchmarks/made_up.py",
    "date": "2026-01-02T03:04:05+00:00",
    "commit": "0123456789ab",
    "shapedispatch": "9.8.7",
    "device": "NVIDIA A1 2GB",
    "cpu": "a processor",
    "threads": 1,
    "torch": "2.99.1+cu1",
    "triton": "3.9",
    "python": "3.12.0",
    "driver": "1.2",
}
CPU = {**GPU, "device": "CPU", "date": "2027-01-02T03:04:05+00:00"}


def time(median_us: float) -> dict[str, Any]:
    """A measurement."""
    return {"median_us": median_us, "spread_us": 0.1, "samples": 9}


def times(**medians_us: float) -> dict[str, Any]:
    """Measurements by contender."""
    return {name: time(median_us) for name, median_us in medians_us.items()}


def call_overhead() -> dict[str, Any]:
    """Two numbers of shapes."""
    row = {"times": {**times(eager=5.0, shapedispatch=20.0), "torch.compile(dynamic=False)": time(40.0)}}
    bars = {"shapedispatch / torch.compile, 1 shape": {"ratio": 0.5, "bar": 0.65}}
    return {"shapes": {"1": row, "8": row}, "keys": {"count": 9, "times": {}}, "bars": bars}


def launch_overhead() -> dict[str, Any]:
    """Both paths."""
    others = {"triton.jit": 12.0, "triton.autotune": 18.0}
    ours = {"shapedispatch, d[grid]": 4.0, "shapedispatch, grid= given": 3.0}
    alone = {"cuLaunchKernel in C": 2.0, "CompiledKernel.run": 4.0}
    one = {name: time(us) for name, us in {**alone, **others, **ours}.items()}
    many = {name: time(us) for name, us in {**others, **ours}.items()}
    part = {"one shape": one, "not measured": {"Helion": "it is not installed"}}
    part |= {"2 shapes in turn": many, "64 shapes in turn": many}
    keys = {"count": 9, "times": {"1 key": time(3.0), "9 keys": time(3.1), "9 keys, in turn": time(3.2)}}
    fast_path = {"c_road": True, "why": None, "tensors": dict.fromkeys(("2", "8"), part), "keys": keys}
    bars = [
        {"what": "ours / cuLaunchKernel in C, 2 tensors", "measured": 1.5, "at most": 1.45},
        {"what": "triton.jit / ours, 2 tensors, one shape", "measured": 4.0, "at least": 3.3},
    ]
    return {"Python": fast_path, "C": fast_path, "bars": bars}


def key_cost() -> dict[str, Any]:
    """Two parts."""
    parts = {name: {"time": time(3.1), "least_us": 2.9} for name in ("key of two tensors", "ambient state")}
    return {"calls": 9, "bar_us": 3.0, "bar_of": "key of two tensors", "parts": parts}


def hotpath_cost() -> dict[str, Any]:
    """With a soak."""
    row = {"times": times(Python=8.0, C=1.0), "ratio": 0.125}
    left = {"hits": 9, "bytes after hits": 0, "misses": 7, "bytes after misses": 4096, "evictions": 5}
    both = {"functions": {"2": row, "8": row}, "kernels": {"8": row}}
    bars = {"functions": 0.4, "kernels": 0.15}
    return {"bars": bars, "bar_at": 8, "key and lookup": both, "left behind": {"functions": left}}


def hint_matrix() -> dict[str, Any]:
    """One workload at two sizes."""
    rows = [
        {
            "sizes": {"M": size},
            "choice": "exact",
            "best": "exact",
            "rivals": {"torch.compile, dynamic": time(7.5), "multi_kernel_hints": time(6.5)},
            "times": {**times(plain=9.0, exact=5.0, dispatched=5.1), "hint[M=64]": time(6.0)},
            "ratio": 1.0,
            "within": True,
        }
        for size in (16, 64)
    ]
    return {"softmax": {"rows": rows, "kernels": {"prints": {"hint[M=64]": "ab"}, "different": 1}, "within_bar": True}}


def exact_vs_dynamic() -> dict[str, Any]:
    """One row of each form."""
    named = ("eager", "torch.compile static", "torch.compile HQ, D dynamic", "exact", "dispatched")
    row = {
        "sizes": {"B": 1, "T": 4, "HQ": 4, "HKV": 2, "D": 8},
        "choice": "exact",
        "kernels": {name: {"forward": ["a"], "backward": ["b"]} for name in named},
        "times": {name: time(9.0) for name in named},
    }
    return {"xsa_unsqueeze": [row], "xsa_expand": [row]}


def kernel_choices() -> dict[str, Any]:
    """Two configs at two sizes."""
    rows = [
        {"sizes": {"N": size}, "best": "a", "times": times(a=1.0, b=2.0, dispatched=1.1), "ratio": 1.1, "within": True}
        for size in (64, 128)
    ]
    xsa = {"sizes": {"T": 4}, "times": {"two kernels": time(1.0), "torch.compile, static": time(2.0)}}
    part = {"rows": rows, "counts": {"k": {"builds": 2, "timings": 3}}, "within_bar": True}
    return {"softmax": part, "xsa": [xsa]}


def regret() -> dict[str, Any]:
    """Two pairs of one workload and one of another."""
    pairs = [
        {
            "workload": name,
            "sizes": {"M": 4},
            "chosen": "exact",
            "best": best,
            "regret": lost,
            "lost_us": 10 * lost,
            "times": times(plain=12.0, exact=10.0 * (1 + lost)),
        }
        for name, best, lost in (("softmax", "exact", 0.0), ("softmax", "plain", 0.05), ("rope", "exact", 0.0))
    ]
    bars = {"median": 0.01, "p99": 0.05, "nothing_us": 0.3}
    whole = {"count": 3, "median": 0.0, "p99": 0.05, "worst": 0.05, "best_chosen": 2 / 3, "bars": bars}
    return {**whole, "pairs": pairs}


def ties() -> dict[str, Any]:
    """Two series."""
    one = {"tunings": 20, "right": 20, "winners": {"plain": 20}, "bar": 0.999, "last_us": {"plain": 75.1, "run": 75.2}}
    return {"busy": 2, "series": {"same function twice": one, "slower one last": {**one, "right": 19, "bar": 0.99}}}


def tuning_stall() -> dict[str, Any]:
    """Two contenders."""
    stalls = {"shapedispatch": [9e3, 1e4, 2e4], "triton.autotune": [3e5, 3.1e5, 3.2e5]}
    summary = {name: time(found[1]) for name, found in stalls.items()}
    return {"stalls_us": stalls, "summary": summary, "bar_ms": 15.0}


def warm_start() -> dict[str, Any]:
    """A function, and a kernel."""

    def started(all_ms: float) -> dict[str, Any]:
        each = {"all_ms_each": [all_ms, all_ms + 1], "timings": 0, "builds": 1, "chosen": ["exact"]}
        return {"ready_ms": 9.0, "first_ms": {"M=4": all_ms - 9}, "all_ms": all_ms, **each}

    bars = {"shapedispatch / torch.compile": {"ratio": 0.9, "bar": 1.2}}
    kernel = {"shapedispatch on the kernel / triton.autotune": {"ratio": 0.4, "bar": 0.5}}
    return {
        "rounds": 2,
        "softmax": {"shapedispatch": started(90.0), "torch.compile": started(100.0), "bars": bars},
        "kernel": {"shapedispatch on the kernel": started(40.0), "triton.autotune": started(100.0), "bars": kernel},
    }


def lessons() -> dict[str, Any]:
    """A contest, one that there was none of, and the two about builds."""
    row = {
        "sizes": {"B": 4},
        "objective": "time",
        "winner": "batched",
        "over plain": 3.0,
        "over worst": 4.0,
        "times": times(plain=3.0, batched=1.0),
        "bytes": {},
        "wrong": {"odd": "AssertionError: no"},
        "refused": {"magma": "it is not there"},
    }
    alone = {**row, "winner": "plain", "over plain": None, "over worst": None, "wrong": {}}
    call = {"call": 0, "x": [2, 3], "ran": "exact", "builds made": 1, "hits": 0, "builds held": 1}
    layer = {"calls": [call, call], "max_builds": 3}
    kept = {"partitions": {"made": 1, "held": 10}, "specialised_layer": layer}
    return {"batched_eigenvalues": [row, {**row, "objective": "memory"}], "wide_access": [alone], **kept}


def models() -> dict[str, Any]:
    """Two calls, of which one contender was not at the second; another is not there."""
    eager, ours, compiled = "eager", "shapedispatch, the three places", "torch.compile, the whole model"
    stall = {"sum_s": 0.5, "worst_s": 0.4, "at": "decode 1 × 1", "calls": 2}
    place = {"calls a forward": 5, "times": {eager: time(9.0), ours: time(7.0)}}
    return {
        "program": "benchmarks/llama.py",
        "parameters": 1_000_000,
        "dtype": "torch.float32",
        "rounds": 3,
        "tolerance": "at most twice",
        "contenders": [eager, compiled, ours],
        "left_out": {"shapedispatch, the whole model": "it is a module"},
        "not_reached": {compiled: ["train 2 × 9"]},
        "stalls": {eager: stall, ours: stall},
        "peak_bytes": {eager: {"decode 1 × 1": 2**20}},
        "times": {
            "decode 1 × 1": {eager: time(100.0), compiled: time(90.0), ours: time(80.0)},
            "train 2 × 9": {eager: time(300.0), ours: time(240.0)},
        },
        "ratios": {"decode 1 × 1": {compiled: 0.9, ours: 0.8}, "train 2 × 9": {ours: 0.8}},
        "means": {"decode": {compiled: 0.9, ours: 0.8}, "train": {ours: 0.8}, "all": {ours: 0.8}},
        "places": {"decode 1 × 1": {"MLP.forward": place}},
    }


def cold_model() -> dict[str, Any]:
    """Three contenders at two shapes, one of them learning in the background."""

    def one(first_s: float, worst_s: float, final_ms: float) -> dict[str, Any]:
        final, ready = {"decode 1 × 1": final_ms, "prefill 1 × 17": 2 * final_ms}, {"decode 1 × 1": worst_s}
        return {"forwards": 900, "first_s": first_s, "final_ms": final, "near_s": ready, "worst_s": worst_s}

    places = "the three places"
    contenders = {"eager": one(5.0, 0.1, 10.0), f"torch.compile, {places}": one(25.0, 7.0, 9.0)}
    contenders |= {f"shapedispatch in the background, {places}": one(6.0, 0.3, 7.0)}
    return {"seconds": 150.0, "forwards": 500, "contenders": contenders}


def kernel_first_calls() -> dict[str, Any]:
    """Two contenders at two sizes."""

    def one(first_s: float, us: float) -> dict[str, Any]:
        longest = {"first": [(900.0, "softmax N=64", 0)], "later": [(40.0, "softmax N=64", 7)]}
        final = {"softmax N=64": us, "softmax N=100": 2 * us}
        return {"calls": 9000, "first_s": first_s, "longest_ms": longest, "final_us": final}

    return {"contenders": {"triton.autotune": one(60.0, 40.0), "shapedispatch in the background": one(3.0, 30.0)}}


def first_calls() -> dict[str, Any]:
    """Two contenders."""
    one = {"calls": 900, "p999_ms": 9.0, "median_ms": 3.0, "stalls_s": 1.0, "late_median_ms": 3.0, "prepared_s": 0.1}
    return {
        "seconds": 45.0,
        "contenders": {"plain": {**one, "worst_s": 0.1}, "shapedispatch in the background": {**one, "worst_s": 0.3}},
    }


def module_hits() -> dict[str, Any]:
    """Two modules, of one of which C was asked nothing."""
    timed = times(plain=10.0, **{"shapedispatch, plain chosen": 11.0, "shapedispatch, exact chosen": 4.0})
    asked = times(guards=0.5, **{"key and lookup": 0.5})
    bars = [
        {"what": "RMSNorm: plain chosen, µs more than plain", "measured": 1.0, "at most": 1.5, "standard error": 0.1},
        {"what": "RMSNorm: key and guards, µs", "measured": 1.0, "at most": None},
    ]
    modules = {"RMSNorm": {"submodules": 1, "times": timed, "asked": asked}}
    modules["MLP"] = {"submodules": 4, "times": timed, "asked": None}
    return {"hotpath_reason": None, "by_looking": False, "modules": modules, "bars": bars}


def graphs() -> dict[str, Any]:
    """A chain, a layer at one batch, and what was counted."""
    ways = times(plain=100.0, **{"the graph": 20.0, "reduce-overhead": 40.0})
    ratios = {"plain": 0.2, "reduce-overhead": 0.5, "chosen online": 0.8}
    chain = {case: {"host_us": ways, "ratios": ratios} for case in ("the same input", "fresh inputs")}
    batch = {"forward_us": ways, "host_us": ways, "ratios": ratios, "best": "reduce-overhead", "held_back": True}
    return {
        "chain": {**chain, "seconds": 1.0},
        "layer": {"4": batch, "seconds": 1.0},
        "kept": {"calls": 1000, "kept": 100, "changed": 0},
        "streams": {"calls": 1000, "differences": 0},
        "shapes": {"calls": 1000, "sizes": 50, "wrong": 0, "bytes": [0, 1 << 20], "bound": 1 << 28},
    }


def libraries() -> dict[str, Any]:
    """Two tests that end alike, one kernel that was called."""
    one = {"hits": 13, "misses": 2, "bypasses": 1}
    kernels = {"wrapped": 2, "called": 1, **one, "why": {"a reason": 1}}
    outcomes = {"before": {"passed": 2}, "after": {"passed": 2}}
    run = {"library": "fla", "listed": 3, "ran": 2, "outcomes": outcomes, "differences": []}
    return {**run, "kernels": kernels, "each": {"ops.a._softmax_kernel": one}}


def host_time() -> dict[str, Any]:
    """One operation."""
    return {
        "operations": {"softmax": {"before_us": 9.0, "after_us": 6.0, "ratio": 0.67, "result": "equal"}},
        "median": 0.67,
    }


def store_kill() -> dict[str, Any]:
    """A run that lost nothing."""
    counts = {"acknowledged": 1234, "kills": 22, "rows": 1200}
    bad = dict.fromkeys(("lost", "changed", "corrupt", "reader_exceptions", "writer_exceptions"), 0)
    return {"form": "sqlite", "seconds": 2.0, "writers": 8, "seed": 0, **counts, **bad}


def fuzz() -> dict[str, Any]:
    """A run that found nothing."""
    counts = {"calls": 2000, "hits": 1500, "misses": 500, "bypasses": 50, "raised_by_both": 60, "mismatches": 0}
    asked = {"seed": 1, "asked": 2000, **counts, "exceptions": 0, "deaths": 0, "notes": [], "road": "C"}
    return {**asked, "shapedispatch": "0.1", "rate_below": 0.0015, "seconds": 6.5}


RESULTS = {
    "call_overhead": call_overhead,
    "launch_overhead": launch_overhead,
    "key_cost": key_cost,
    "hotpath_cost": hotpath_cost,
    "hint_matrix": hint_matrix,
    "exact_vs_dynamic": exact_vs_dynamic,
    "kernel_choices": kernel_choices,
    "regret": regret,
    "ties": ties,
    "tuning_stall": tuning_stall,
    "warm_start": warm_start,
    "lessons": lessons,
    "models": models,
    "cold_model": cold_model,
    "first_calls": first_calls,
    "kernel_first_calls": kernel_first_calls,
    "module_hits": module_hits,
    "graphs": graphs,
    "libraries": libraries,
    "host_time": host_time,
    "store_kill": store_kill,
    "fuzz": fuzz,
}
"""By script."""


def document(script: str, environment: dict[str, Any] = GPU) -> dict[str, Any]:
    """A whole result."""
    return {"environment": environment, **RESULTS[script]()}
