"""A table of choices shipped beside a module, and a process that is sealed with it.

`python examples/shipped_table.py tune` measures on this machine, and writes `shipped_table.json` beside this file;
`python examples/shipped_table.py` serves with it: nothing is compiled that is not named there, and nothing is measured.
In CI `shapedispatch store check shipped_table.json shipped_table:score` fails where the code has changed since.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shapedispatch import Store, load, set_mode, shapedispatch

TABLE = Path(__file__).with_name("shipped_table.json")
SIZES = (1, 64, 2048)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make(sizes: Mapping[str, int], like: Any) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """A call of that many rows: ``x`` (M, 128) and two weights (128, 128)."""
    draw = torch.Generator(DEVICE).manual_seed(0)
    shapes = ((rows, 128) for rows in (sizes["M"], 128, 128))
    return tuple(torch.randn(shape, device=DEVICE, generator=draw) / 128**0.25 for shape in shapes), {}


def merged(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The same with the weights multiplied first: less work for many rows."""
    return (x @ (a @ b)).tanh()


STORE = Store(Path(__file__).with_name(".measured"), shipped=[TABLE] if TABLE.exists() else [])


@shapedispatch(dims={"x": "M _"}, hints=(), variants=[merged], inputs=make, store=STORE, name="shipped_table.score")
def score(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """What is served."""
    return ((x @ a) @ b).tanh()


def tune() -> None:
    """Measure, and write the table."""
    print(score.prepare({"M": SIZES}))
    print(f"{STORE.export(TABLE)} rows written to {TABLE.name}")


def serve() -> None:
    """Every size as the table says, and one that it does not have."""
    load(score)
    with set_mode("sealed", on_miss="nearest"):
        for rows in (*SIZES, 300):
            call, _ = make({"M": rows}, None)
            torch.testing.assert_close(score(*call), score.__wrapped__(*call), rtol=1e-3, atol=1e-3)
            times = []
            for run in (score, score.__wrapped__):
                begun_s = time.perf_counter()
                for _ in range(200):
                    run(*call)
                score.__wrapped__(*call).cpu()  # whatever came before is done
                times.append(time.perf_counter() - begun_s)
            choice = score.explain(*call)
            print(f"{rows} rows: {choice.variant} ({choice.origin}), {times[1] / times[0]:.2f} × as fast as written")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", nargs="?", choices=("tune", "serve"), default="serve")
    parser.add_argument("--device", default=DEVICE)
    chosen = parser.parse_args()
    DEVICE = chosen.device
    tune() if chosen.do == "tune" else serve()
