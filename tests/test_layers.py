"""The rooms of the house: imports run downward between packages, and each package stays small enough to be known."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "shapedispatch"

# The places of the package, the lowest first. A module may import from its own package and from places above it in
# this list, that is from lower ones.
PLACES = [
    "errors",
    "records",
    "shapes",
    "settings",
    "keys",
    "hit",
    "backend",
    "store",
    "autotune",
    "functions.guards",
    "functions.compile",
    "functions",
    "kernels.runtime",
    "kernels",
    "dispatch",
    "api",
    "__init__",
    "cli",
    "__main__",
]

# PLANNED begins
PLANNED: dict[str, str] = {}
# PLANNED ends

# Downward, and yet not meant: the two backends never meet, and what decides about calls knows only their contract.
STRANGERS = {("kernels", "functions"), ("dispatch", "functions"), ("dispatch", "kernels")}


def module_files(package: Path = PACKAGE) -> dict[str, Path]:
    """Every module of the package, by its dotted name below the package."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return found


FILES = module_files()


def place_of(module: str) -> str | None:
    """The place that a module belongs to: the longest name in the list that it starts with."""
    module = PLANNED.get(module, module)
    names = [place for place in PLACES if module == place or module.startswith(f"{place}.")]
    return max(names, key=len, default=None)


def is_package(module: str) -> bool:
    """Whether relative imports in the module start at itself and not at its parent."""
    return (PACKAGE / Path(*module.split("."))).is_dir()


def modules_imported(module: str, tree: ast.AST) -> Iterator[tuple[str, int]]:
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
                    yield inner if inner in FILES else ".".join(path[1:]) or "__init__", node.lineno


def wrong_arrows(source: str, text: str) -> list[str]:
    """A sentence for each import in ``text``, which stands in the module ``source``, that does not run downward."""
    found = []
    mine = place_of(source)
    assert mine is not None, f"{source} stands in no place: add its package to PLACES"
    for target, line in modules_imported(source, ast.parse(text)):
        theirs = place_of(target)
        if theirs is None:
            found.append(f"{source}:{line} imports {target}, which stands in no place: add it to PLACES")
        elif PLACES.index(theirs) > PLACES.index(mine):
            found.append(f"{source}:{line} imports {target}: {theirs} stands above {mine}")
        elif (mine.partition(".")[0], theirs.partition(".")[0]) in STRANGERS:
            found.append(f"{source}:{line} imports {target}: {mine} does not know {theirs}")
    return found


@pytest.mark.parametrize("module", FILES)
def test_imports_run_downward(module: str) -> None:
    """No module imports from a place above its own."""
    assert wrong_arrows(module, FILES[module].read_text("utf-8")) == []


def test_no_circle_within_a_package() -> None:
    """Modules can be read one after the other: none imports itself by way of others, in functions or anywhere."""
    arrows = {
        module: {target for target, _ in modules_imported(module, ast.parse(path.read_text("utf-8")))} - {module}
        for module, path in FILES.items()
    }
    while leaves := {module for module, targets in arrows.items() if not targets & arrows.keys()}:
        for leaf in leaves:
            del arrows[leaf]
    assert arrows == {}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("shapes.hints", "from ..api.decorator import x"),
        ("shapes.hints", "from ..api import decorator"),
        ("shapes.hints", "import shapedispatch.api.decorator"),
        ("shapes.hints", "from shapedispatch.api import decorator"),
        ("shapes.hints", "def f():\n    from ..api.decorator import x"),
        ("shapes.hints", "if TYPE_CHECKING:\n    from ..api.decorator import x"),
        ("shapes.hints", "from ..keys.key import key"),
        ("shapes.hints", "import shapedispatch"),
        ("functions.guards.code_guard", "from ..compile.tracer import trace"),
        ("kernels.call", "from ..functions.request import x"),
        ("functions.request", "from ..kernels.call import x"),
        ("dispatch.miss", "from ..functions.backend import x"),
        ("keys.key", "from ..nowhere import x"),
    ],
)
def test_a_wrong_import_is_seen(module: str, line: str) -> None:
    """However it is written, and wherever it stands, an arrow upward or to a stranger is found."""
    assert wrong_arrows(module, line) != []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("functions.backend", "from ..backend import Offer"),
        ("functions.backend", "from .compile.tracer import trace"),
        ("kernels.backend", "from .runtime.wrappers import x"),
        ("dispatch.miss", "from ..autotune.choose import choose"),
        ("shapes.hints", "from ..errors import DeclarationError"),
        ("shapes.hints", "from os import path"),
        ("shapes.hints", "from . import declaration"),
    ],
)
def test_a_downward_import_is_fine(module: str, line: str) -> None:
    """The check is not red for everything."""
    assert wrong_arrows(module, line) == []


# --------------------------------------------------------------------------------------------------------------- owners


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
    ("name", "owner"),
    [("cachetools", "hit.table"), ("tomllib", "settings.resolve"), ("os.environ", "settings.resolve")],
)
def test_one_room_owns(name: str, owner: str) -> None:
    """The LRUs live in one module, and one reads the environment and TOML."""
    users = {
        PLANNED.get(module, module)
        for module, path in FILES.items()
        if name in outside_names(ast.parse(path.read_text("utf-8")))
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
    trees = {module: ast.parse(path.read_text("utf-8")) for module, path in FILES.items()}
    taken = {pair for module, tree in trees.items() for pair in names_taken(module, tree)}
    own = {(module, name) for module, tree in trees.items() for name in names_at_top(tree) - listed(tree)}
    assert sorted(f"{module}.{name}" for module, name in taken & own if not name.startswith("__")) == []


CITED = re.compile(r"\b([a-z_]+)\.([A-Za-z_]+)\b")


@pytest.mark.parametrize("source", sorted(PACKAGE.rglob("*.[ch]")), ids=lambda source: source.name)
def test_what_the_c_road_cites_is_there(source: Path) -> None:
    """Its comments name the functions in Python that it agrees with, each in the module where it stands."""
    known = {module.rpartition(".")[2]: path for module, path in FILES.items()}
    comments = " ".join(re.findall(r"/\*.*?\*/", source.read_text("utf-8"), re.DOTALL))
    cited = [(module, name) for module, name in CITED.findall(comments) if module in known and name != "py"]
    tops = {module: names_at_top(ast.parse(known[module].read_text("utf-8"))) for module, _ in cited}
    assert [f"{module}.{name}" for module, name in cited if name not in tops[module]] == []
