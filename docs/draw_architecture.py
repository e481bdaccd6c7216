"""Draw the pictures of ``architecture.md`` from the code: ``python docs/draw_architecture.py`` writes them anew.

Rooms and arrows are the packages and their imports, what stands beside a name is the first sentence of its docstring,
and the file of a function is where it is defined. Only the order of the steps is said here; a step whose function is
gone is an error, and `tests/test_architecture.py` compares the page with what this script would draw.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "shapedispatch"
PAGE = Path(__file__).with_name("architecture.md")
WIDTH = 118

# The steps of a call in order; of several names with | between them, the one that there is.
HIT = [
    "stand_in",
    "HitPath.call",
    "CallSigner.sign",
    "key",
    "Table.find",
    "all_hold",
    "HitPath.run",
    "past_wrappers",
]
MISS = [
    "Core.miss",
    "TuningLock.acquired",
    "decide",
    "look_up",
    "KernelStore.find",
    "without_timing",
    "TorchFunction.offer",
    "trace_effects",
    "Builder.find",
    "fake_arguments",
    "trace",
    "compiler",
    "choose",
    "Trial.outcome",
    "difference",
    "interleaved_bench",
    "persist",
    "KernelStore.keep",
    "Store.put",
    "Table.publish",
]
KERNEL = ["TritonKernel.offer", "ConfigSearch.offer", "TritonLauncher"]


# -- reading


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name below the package; a package is its ``__init__``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text("utf-8"))
    return found


def file_of(module: str) -> str:
    """Where a module stands, below the package."""
    path = Path(*module.split("."))
    return str(path / "__init__.py" if (PACKAGE / path).is_dir() else path.with_suffix(".py"))


def sentence(node: ast.AST, width: int = WIDTH) -> str:
    """The first sentence of a docstring, or its first part, in a line of that width."""
    text = " ".join((ast.get_docstring(node) or "").split())  # type: ignore[arg-type]
    return textwrap.shorten(re.split(r"\. |; ", text)[0].removesuffix("."), width, placeholder=" ...")


def imported(module: str) -> Iterator[str]:
    """The modules of this package that a module imports, wherever in it."""
    inside = (PACKAGE / Path(*module.split("."))).is_dir()
    package = ["shapedispatch", *(module.split(".") if inside else module.split(".")[:-1])]
    for node in ast.walk(modules()[module]):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module.split(".") if node.module else [])][1:]
            for name in node.names:
                full = ".".join([*base, name.name])
                yield full if full in modules() else ".".join(base) or "__init__"


@cache
def definitions() -> dict[str, list[tuple[str, ast.AST]]]:
    """Every function, class and method, with each place where one of that name is defined."""
    found: dict[str, list[tuple[str, ast.AST]]] = {}
    for module, tree in modules().items():
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.setdefault(node.name, []).append((module, node))
            for part in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(part, ast.FunctionDef):
                    found.setdefault(f"{node.name}.{part.name}", []).append((module, part))
    return found


# -- drawing


def room_of(module: str) -> str:
    """The room of a module: its package, or the module itself at the root."""
    return module if module in rooms() else module.rpartition(".")[0]


@cache
def rooms() -> tuple[str, ...]:
    """The packages, and the modules at the root that others import."""
    packages = {module for module in modules() if (PACKAGE / Path(*module.split("."))).is_dir()}
    alone = {module for module in modules() if "." not in module and not module.startswith("__")}
    return tuple(sorted(packages | alone))


@cache
def arrows(room: str) -> frozenset[str]:
    """The rooms that a room imports from."""
    inside = [module for module in modules() if not module.startswith("__") and room_of(module) == room]
    found = {target for module in inside for target in imported(module) if not target.startswith("__")}
    return frozenset(room_of(target) for target in found) - {room}


@cache
def floor(room: str) -> int:
    """One above the highest room that it imports from."""
    return 1 + max((floor(below) for below in arrows(room)), default=-1)


def picture() -> str:
    """The rooms, the highest floor first: name, what stands there, and what it imports from above the ground."""
    lines: list[str] = []
    for level in sorted({floor(room) for room in rooms()}, reverse=True):
        lines.append(f"floor {level} ".ljust(WIDTH, "-"))
        for room in (room for room in rooms() if floor(room) == level):
            name = room.replace(".", "/") + ("/" if (PACKAGE / Path(*room.split("."))).is_dir() else ".py")
            below = sorted((each for each in arrows(room) if floor(each)), key=lambda each: (-floor(each), each))
            lines.append(f"  {name:<20}{sentence(modules()[room], WIDTH - 22)}")
            lines += [f"{'':<20}-> {', '.join(below).replace('.', '/')}"] if below else []
    return "\n".join(lines)


def found(names: str) -> tuple[str, str, ast.AST]:
    """The one place where a step of a call is defined; the command line is on no call's way."""
    for name in names.split("|"):
        places = [(name, *place) for place in definitions().get(name, ()) if not place[0].startswith("cli.")]
        if len(places) == 1:
            return places[0]
    raise LookupError(f"{names} is not defined in one place: name another function in {Path(__file__).name}")


def way(steps: list[str]) -> str:
    """The steps of a call in order: the file, the function, and what it says of itself."""
    lines = []
    before = ""
    for names in steps:
        step, module, node = found(names)
        file = file_of(module)
        lead = f"{file if file != before else '':<32}{step}{'()' if isinstance(node, ast.FunctionDef) else ''}"
        lines.append(f"{lead:<60}{sentence(node, WIDTH - 60)}")
        before = file
    return "\n".join(lines)


def drawn(text: str) -> str:
    """The page with each picture between its markers drawn anew."""
    for name, content in {"rooms": picture(), "hit": way(HIT), "miss": way(MISS), "kernel": way(KERNEL)}.items():
        begin, end = f"<!-- {name} begins -->\n", f"<!-- {name} ends -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}```text\n{content}\n```\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text("utf-8")), "utf-8")
