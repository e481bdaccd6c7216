"""Imports run downward only: read from the source, so that an arrow inside a function counts too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "shapedispatch"

# The rooms, ground floor first. A module may import from lower floors only.
FLOORS = {
    "errors": 0,
    "records": 0,
    "calls": 0,
    "journal": 1,
    "profiling": 1,
    "dims": 1,
    "keys": 1,
    "untouched": 1,
    "memory": 1,
    "fingerprint": 1,
    "timing": 1,
    "settings": 1,
    "hotpath": 2,
    "turn": 2,
    "table": 2,
    "store": 3,  # beside the backends, which know nothing of it
    "backends": 3,
    "backends.torch_function": 3,
    "backends.triton_kernel": 3,
    "choose": 4,
    "dispatcher": 5,
    "report": 6,
    "demo": 6,
    "cli": 7,  # it calls the rooms beside which it stands
    "__init__": 6,
    "__main__": 8,
}

# Rooms that have parts in files of their own, the lowest first. A part stands on its room's floor and may import the
# parts before it; the room itself stands on all of them.
PARTS = {
    "keys": ["tensors", "key_parts"],
    "settings": ["settings_table"],
    "hotpath": ["told_changes"],
    "dims": ["declaration"],
    "timing": ["stopwatches"],
    "untouched": ["copies"],
    "fingerprint": ["environment"],
    "store": ["store_keys", "store_rows", "store_folder", "store_files", "store_database", "store_disk"],
    "backends.torch_function": [
        "backends.frames",
        "backends.fakes",
        "backends.effects",
        "backends.graphs",
        "backends.baked",
        "backends.unkeyed",
        "backends.graph_effects",
        "backends.identity",
        "backends.implied",
        "backends.standing",
        "backends.unwatched",
        "backends.followed",
        "backends.quiet",
        "backends.trace",
        "backends.dynamo",
        "backends.shortcut",
        "backends.refusals",
        "backends.inductor",
        "backends.places",
        "backends.situation",
        "backends.sharing",
        "backends.looks",
        "backends.builds",
        "backends.draft",
    ],
    "dispatcher": [
        "modes",
        "shelf",
        "worker_process",
        "worker",
        "notices",
        "cases",
        "isolation",
        "entries",
        "recall",
        "frozen",
        "miss",
        "questions",
        "core",
        "decorated",
        "said",
    ],
    "backends.triton_kernel": [
        "backends.triton_adopt",
        "backends.triton_build",
        "backends.triton_effects",
        "backends.triton_launch",
        "backends.triton_release",
        "backends.triton_static",
        "backends.triton_builds",
        "backends.triton_key",
        "backends.triton_reads",
        "backends.triton_run",
        "backends.triton_direct",
        "backends.triton_road",
        "backends.triton_call",
        "backends.triton_layout",
        "backends.triton_offer",
        "backends.triton_plan",
        "backends.triton_finds",
        "backends.triton_front",
    ],
    "report": ["sweeps", "plots"],
    "cli": ["keyed_calls", "targets", "doctor", "console", "cli_store", "cli_tune"],
    "choose": ["numbers", "trial", "objectives"],
}

ROOMS = {part: room for room, parts in PARTS.items() for part in [*parts, room]}
FLOORS |= {part: FLOORS[room] for part, room in ROOMS.items()}
ADD = "add it to FLOORS, or to PARTS if it is part of a room"

# Arrows that the floors forbid and that are meant, each with its reason.
ALLOWED: dict[tuple[str, str], str] = {}


def module_files(package: Path = PACKAGE) -> dict[str, Path]:
    """Every module of the package, by its dotted name below the package."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return found


def is_package(module: str) -> bool:
    """Whether relative imports in the module start at itself and not at its parent."""
    return (PACKAGE / Path(*module.split("."))).is_dir()


def modules_imported(module: str, tree: ast.AST, known: set[str]) -> Iterator[tuple[str, int]]:
    """Every module of this package that is imported, with its line; inside functions and TYPE_CHECKING too."""
    package = ["shapedispatch", *(module.split(".") if is_package(module) else module.split(".")[:-1])]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "shapedispatch":
                    yield name.name.partition(".")[2] or "__init__", node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            path = [*base, *(node.module.split(".") if node.module else [])]
            if path[:1] == ["shapedispatch"]:
                for name in node.names:
                    inner = ".".join([*path[1:], name.name])
                    yield inner if inner in known else ".".join(path[1:]) or "__init__", node.lineno


def arrow_is_allowed(source: str, target: str) -> bool:
    """Downward, or written down in ALLOWED; within a room to an earlier part; from a backend to the contract."""
    if source in ROOMS and ROOMS[source] == ROOMS.get(target):
        order = [*PARTS[ROOMS[source]], ROOMS[source]]
        return order.index(target) < order.index(source)
    if source.startswith("backends.") and target == "backends":
        return True
    return FLOORS[target] < FLOORS[source] or (source, target) in ALLOWED or source == "__init__"


def wrong_arrows(source: str, text: str, known: set[str]) -> list[str]:
    """A sentence for each import in ``text`` that does not run downward."""
    found = []
    for target, line in modules_imported(source, ast.parse(text), known):
        if target not in FLOORS:
            found.append(f"{source}:{line} imports {target}, which is on no floor: {ADD}")
        elif target != source and not arrow_is_allowed(source, target):
            found.append(
                f"{source}:{line} (floor {FLOORS[source]}) imports {target} (floor {FLOORS[target]}): not downward"
            )
    return found


@pytest.mark.parametrize("module", module_files())
def test_imports_run_downward(module: str) -> None:
    """No module imports from its own floor or from above."""
    assert module in FLOORS, f"{module} has no floor: {ADD}"
    files = module_files()
    assert wrong_arrows(module, files[module].read_text("utf-8"), set(files)) == []


@pytest.mark.parametrize(
    "line",
    [
        "from .dispatcher import x",
        "from . import dispatcher",
        "import shapedispatch.dispatcher",
        "from shapedispatch import dispatcher",
        "from shapedispatch.dispatcher import x",
        "def f():\n    from .dispatcher import x",
        "if TYPE_CHECKING:\n    from .dispatcher import x",
        "from .keys import key",
        "from . import x",
        "import shapedispatch",
    ],
)
def test_an_upward_or_sideways_import_is_seen(line: str) -> None:
    """However it is written, and wherever it stands, an arrow up or sideways is found."""
    assert wrong_arrows("dims", line, set(FLOORS)) != []


@pytest.mark.parametrize(
    "line",
    ["from ..dispatcher import x", "from . import triton_kernel", "from .triton_key import x", "from ..store import x"],
)
def test_a_backend_reaches_only_down(line: str) -> None:
    """A backend imports neither its neighbour nor what stands beside the backends."""
    assert wrong_arrows("backends.torch_function", line, set(FLOORS)) != []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("backends.torch_function", "from . import Build"),
        ("backends.triton_kernel", "from .triton_adopt import x"),
        ("backends.torch_function", "from ..keys import key"),
        ("choose", "from .backends.triton_kernel import x"),
        ("dims", "from .errors import DeclarationError"),
        ("dims", "from os import path"),
    ],
)
def test_a_downward_import_is_fine(module: str, line: str) -> None:
    """The check is not red for everything."""
    assert wrong_arrows(module, line, set(FLOORS)) == []


def test_a_part_does_not_import_its_room() -> None:
    """Within a room, too, the arrows have one direction."""
    assert wrong_arrows("store_keys", "from .store import x", set(FLOORS)) != []
    assert wrong_arrows("store_keys", "from .store_rows import x", set(FLOORS)) != []
    assert wrong_arrows("store_rows", "from .store_keys import x", set(FLOORS)) == []


def outside_names(tree: ast.AST) -> Iterator[str]:
    """What is imported from elsewhere, and each reading of the environment as ``os.environ``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]
            if node.module == "os" and {name.name for name in node.names} & {"environ", "environb", "getenv"}:
                yield "os.environ"
        elif isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"}:
            yield "os.environ"


@pytest.mark.parametrize(
    ("name", "owner"), [("cachetools", "table"), ("tomllib", "settings"), ("os.environ", "settings")]
)
def test_one_room_owns(name: str, owner: str) -> None:
    """The LRUs live in one module, and one reads the environment and TOML."""
    users = {
        module for module, path in module_files().items() if name in outside_names(ast.parse(path.read_text("utf-8")))
    }
    assert users <= {owner}


def names_at_top(tree: ast.Module) -> set[str]:
    """What a module itself defines; what it imports is another's."""
    found = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def listed(tree: ast.Module) -> set[str]:
    """A module's ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return set(ast.literal_eval(node.value))
    return set()


def names_taken(module: str, tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every name that is imported from a module of this package, behind that module."""
    package = ["shapedispatch", *(module.split(".") if is_package(module) else module.split(".")[:-1])]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            path = [*package[1 : len(package) - node.level + 1], *(node.module.split(".") if node.module else [])]
            yield from ((".".join(path) or "__init__", name.name) for name in node.names)


def test_what_others_import_is_listed() -> None:
    """A module's ``__all__`` says what the others take from it; double underscores are Python's own."""
    trees = {module: ast.parse(path.read_text("utf-8")) for module, path in module_files().items()}
    taken = {pair for module, tree in trees.items() for pair in names_taken(module, tree)}
    own = {(module, name) for module, tree in trees.items() for name in names_at_top(tree) - listed(tree)}
    assert sorted(f"{module}.{name}" for module, name in taken & own if not name.startswith("__")) == []


CITED = re.compile(r"\b([a-z_]+)\.([A-Za-z_]+)\b")


@pytest.mark.parametrize("source", sorted(PACKAGE.glob("_hotpath*.[ch]")), ids=lambda source: source.name)
def test_what_the_c_road_cites_is_there(source: Path) -> None:
    """Its comments name the functions in Python that it agrees with, each in the module where it stands."""
    known = {module.rpartition(".")[2]: path for module, path in module_files().items()}
    comments = " ".join(re.findall(r"/\*.*?\*/", source.read_text("utf-8"), re.DOTALL))
    cited = [(module, name) for module, name in CITED.findall(comments) if module in known and name != "py"]
    tops = {module: names_at_top(ast.parse(known[module].read_text("utf-8"))) for module, _ in cited}
    assert [f"{module}.{name}" for module, name in cited if name not in tops[module]] == []
