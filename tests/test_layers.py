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
    "effects",
    "shapes",
    "interpreter",
    "settings",
    "private",
    "backward",
    "background",
    "keys",
    "hit",
    "backend",
    "store",
    "autotune",
    "graphs",
    "online",
    "ranks",
    "functions.guards",
    "functions.unseen",
    "functions.checks",
    "functions.parts",
    "functions.compile",
    "functions",
    "kernels.runtime",
    "kernels",
    "choices",
    "dispatch",
    "api",
    "__init__",
    "cli",
    "__main__",
]

# Downward, and yet not meant: the two backends never meet, and what decides about calls knows only their contract.
STRANGERS = {("kernels", "functions")} | {
    (here, backend) for here in ("choices", "dispatch") for backend in ("functions", "kernels")
}

MOST_AT_THE_ROOT, MOST_MODULES, MOST_C_FILES = 8, 12, 23  # of C: a noun of a hit each, none beyond MOST_LINES
MOST_LINES, MOST_LINES_OF_A_FUNCTION = 400, 40

# The only files with private names of torch or Triton in them, each with what it needs them for.
PRIVATE = {
    "graphs/recorder.py": "the current stream without an object around it, and the end of a recording that failed",
    "graphs/operators.py": "what an operator is called, and which are operators",
    "functions/compile/autograd.py": "what AOTAutograd knows of the graph of a trace, and a trace through it alone",
    "functions/compile/artifact.py": "AOTAutograd's record of compiled code, and how it becomes code again",
    "functions/compile/code.py": "Inductor's list of generated modules, and what else it keeps",
    "functions/compile/graph.py": "what a captured graph does: its operators, and the trace under way",
    "functions/checks/given.py": "a mode that sees each operator, and trees of what it is given",
    "functions/checks/graph_check.py": "a mode that sees each operator, and trees of results",
    "functions/compile/inductor.py": "Inductor as a compiler of graphs",
    "functions/compile/operators.py": "what Inductor takes operators apart by, and how it calls one",
    "functions/compile/parcel.py": "a traced graph as bytes",
    "functions/compile/process_state.py": "settings of Inductor and of attention, which another process takes over",
    "functions/compile/remote.py": "a trace under way, in a process that has traced nothing",
    "functions/checks/shadow.py": "a mode that sees each operator, and what memory is whose",
    "functions/checks/views.py": "what a tensor is a view of, and how that was made",
    "functions/compile/tracer.py": "Dynamo as a tracer, and the guards that it made",
    "functions/parts/cut.py": "a mode that sees each operator, what memory is whose, and which tensors were written",
    "functions/parts/regions.py": "how Dynamo writes a switch of grad mode or of autocast into a graph",
    "functions/fake_args.py": "fake tensors, and marks on them for Dynamo",
    "functions/guards/class_values.py": "how Dynamo reads a class",
    "functions/unseen/comparisons.py": "how Dynamo compares, and what it builds of a value",
    "functions/unseen/dict_keys.py": "how Dynamo guards a dict",
    "functions/guards/guard_filter.py": "Dynamo's guards, and settings that it takes for constant",
    "functions/guards/instance_guards.py": "the managers of Dynamo's guards, and the dispatcher's state",
    "functions/guards/object_guard.py": "Dynamo's guards on dicts, and what it has in place of lists",
    "functions/unseen/sizes.py": "what stands for a size, where Dynamo follows code",
    "functions/guards/operator_guards.py": "what torch has registered for operators",
    "functions/guards/reads.py": "what an operator is",
    "functions/guards/owners.py": "where what Dynamo follows in place of Python's own code lies",
    "functions/unseen/captures.py": "how Dynamo calls a function of torch's",
    "functions/unseen/caught.py": "where Dynamo finds who catches an error, and how it looks up a key",
    "functions/unseen/changes.py": "what Dynamo has noted of objects that a call changes",
    "functions/unseen/context_vars.py": "how Dynamo calls a method of an object",
    "functions/unseen/hooks.py": "where Dynamo builds what stands for a value, and calls a builtin",
    "functions/unseen/lookups.py": "how Dynamo loads an attribute, and what it has in place of functions and modules",
    "functions/unseen/own_names.py": "the steps that Dynamo follows, and its guards on a dict",
    "functions/unseen/python_state.py": "how Dynamo loads a global of Python's own modules",
    "functions/unseen/unseen.py": "how Dynamo makes a text, and calls a function that keeps its results",
    "functions/request.py": "an integer's dispatch keys tell a tensor that compiled code can take",
    "hit/call.py": "grad mode is set without an object around it",
    "hit/checkpoint.py": "the saved-tensor hooks of a checkpoint, which are taken off while a call is decided",
    "hit/native.py": "what the C module is handed at its start",
    "kernels/runtime/compile.py": "whether Triton compiles in the background",
    "kernels/runtime/launch.py": "the current stream without an object around it",
    "kernels/runtime/mutation_analysis.py": "Triton's own reader of a kernel's intermediate code",
    "keys/key.py": "tensors of transforms, which no public function tells",
}

# Words of this project's first months for what the field has a name for.
OLD_WORDS = re.compile(
    "afresh|baked|calm|draft|errand|facets|finds|followed|implied|journal|looks?|misfit|notices|pack|packed|quiet|recall"
    "|rehears(e|al)|roads?|said|settled?|shel(f|ved)|shortcut|spelling|stand(s|ing)|stopwatch|strange|told|turn"
    "|unbuildable|unkeyed|unsettled|untouched|unwatched|wish",
    re.IGNORECASE,
)


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
        ("shapes.dims", "from ..api.decorator import x"),
        ("shapes.dims", "from ..api import decorator"),
        ("shapes.dims", "import shapedispatch.api.decorator"),
        ("shapes.dims", "from shapedispatch.api import decorator"),
        ("shapes.dims", "def f():\n    from ..api.decorator import x"),
        ("shapes.dims", "if TYPE_CHECKING:\n    from ..api.decorator import x"),
        ("shapes.dims", "from ..keys.key import key"),
        ("shapes.dims", "import shapedispatch"),
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
        ("shapes.dims", "from ..errors import DeclarationError"),
        ("shapes.dims", "from os import path"),
        ("shapes.dims", "from . import buckets"),
    ],
)
def test_a_downward_import_is_fine(module: str, line: str) -> None:
    """The check is not red for everything."""
    assert wrong_arrows(module, line) == []


# ---------------------------------------------------------------------------------------------------------------- sizes


def packages() -> list[Path]:
    """Every folder with modules in it, the root first."""
    return sorted({path.parent for path in FILES.values()})


@pytest.mark.parametrize("folder", packages(), ids=lambda folder: folder.name)
def test_a_package_can_be_known(folder: Path) -> None:
    """At most a dozen modules a package, eight at the root; its own paragraph, and nothing else, says what is there."""
    modules = [path for path in folder.glob("*.py") if path.name not in ("__init__.py", "__main__.py")]
    assert len(modules) <= (MOST_AT_THE_ROOT if folder == PACKAGE else MOST_MODULES)
    if folder != PACKAGE:
        tree = ast.parse((folder / "__init__.py").read_text("utf-8"))
        doc = ast.get_docstring(tree)
        assert doc is not None
        assert "\n\n" not in doc
        assert len(tree.body) == 1


def test_the_c_of_the_hit_can_be_known() -> None:
    """All C lies in one folder, of at most so many files."""
    found = [path for path in PACKAGE.rglob("*") if path.suffix in (".c", ".h")]
    assert {path.parent for path in found} == {PACKAGE / "hit" / "csrc"}
    assert len(found) <= MOST_C_FILES


C_FUNCTION = re.compile(
    r"^(?!typedef|struct|enum|union)\w[^;={}]*?(\w+)\([^;={}]*\)\s*\{\n.*?^\}", re.MULTILINE | re.DOTALL
)


def functions_in(path: Path, text: str) -> Iterator[tuple[str, int]]:
    """Each function of a module or of a C file, with its length."""
    if path.suffix != ".py":
        yield from ((found[1], found[0].count("\n") + 1) for found in C_FUNCTION.finditer(text))
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, (node.end_lineno or 0) - node.lineno + 1


SOURCES = sorted([*FILES.values(), *PACKAGE.rglob("*.[ch]")])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_and_functions_stay_short(path: Path) -> None:
    """What is longer is two things; but for what is listed, as long as it is."""
    text = path.read_text("utf-8")
    found = {name for name, length in functions_in(path, text) if length > MOST_LINES_OF_A_FUNCTION}
    if text.count("\n") > MOST_LINES:
        found.add("the file")
    assert found == set()


def test_functions_in_c_are_seen() -> None:
    """The pattern finds what C functions there are: a function that is too long is not one that nobody saw."""
    text = (PACKAGE / "hit" / "csrc" / "module.c").read_text("utf-8")
    assert "PyInit__native" in dict(functions_in(Path("module.c"), text))


# ---------------------------------------------------------------------------------------------------------------- names


def is_private(path: list[str]) -> bool:
    """Whether a part of a dotted name is private; double underscores are Python's own."""
    return any(part.startswith("_") and not part.startswith("__") for part in path)


def path_of(node: ast.AST) -> list[str]:
    """The parts of ``a.b.c``; none of anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return [node.id, *parts] if isinstance(node, ast.Name) else []


def imports_of_compilers(tree: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Each name that an import binds to something of torch's or Triton's, with what it is bound to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                path = name.name.split(".")
                if path[0] in ("torch", "triton"):
                    yield name.asname or path[0], path if name.asname else path[:1]
                    yield "", path
        elif isinstance(node, ast.ImportFrom) and not node.level:
            path = (node.module or "").split(".")
            if path[0] in ("torch", "triton"):
                yield from ((name.asname or name.name, [*path, name.name]) for name in node.names)


def private_names(tree: ast.AST) -> set[str]:
    """The private names of torch and Triton in a module, however they are reached by name."""
    bound = list(imports_of_compilers(tree))
    roots = dict(bound)
    used = (path_of(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    reached = [[*roots[path[0]], *path[1:]] for path in used if path and path[0] in roots]
    return {".".join(path) for path in [*(path for _, path in bound), *reached] if is_private(path)}


def test_private_names_of_compilers_have_few_places() -> None:
    """Names of torch and Triton that may change with any version lie in the files listed, and no file needlessly."""
    found = {path for path in PACKAGE.rglob("*.py") if private_names(ast.parse(path.read_text("utf-8")))}
    assert {str(path.relative_to(PACKAGE)) for path in found} == set(PRIVATE)


@pytest.mark.parametrize(
    "line",
    ["import torch._dynamo", "from torch import _C", "import torch\nx = torch._C.y", "import torch._C as c\nc.y"],
)
def test_a_private_name_is_seen(line: str) -> None:
    """However it is written."""
    assert private_names(ast.parse(line)) != set()
    assert private_names(ast.parse("import torch\nfrom torch import nn\ntorch.__version__\nnn.Module._x.y")) != set()
    assert private_names(ast.parse("import torch\ntorch.nn.Module\ntorch.__version__")) == set()


def public_names(body: list[ast.stmt]) -> Iterator[str]:
    """What a module or a class gives to others: its functions, classes, constants, and the fields of these classes."""
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from public_names(node.body)


def test_names_are_the_fields() -> None:
    """No module and no public name has a word of this project's own for what others have named before."""
    found = {
        f"{module}.{name}"
        for module, path in FILES.items()
        for name in [module.rpartition(".")[2], *public_names(ast.parse(path.read_text("utf-8")).body)]
        if not name.startswith("_")
        if any(OLD_WORDS.fullmatch(word) for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name))
        if name not in ("look_up", "IMPLIED")  # to look up in a table; a guard that the key implies
    }
    assert found == set()


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
    ("name", "owners"),
    [
        ("cachetools", {"hit.table", "hit.facts", "hit.lru"}),
        ("tomllib", {"settings.resolve"}),
        ("os.environ", {"settings.resolve"}),
    ],
)
def test_few_rooms_own(name: str, owners: set[str]) -> None:
    """The LRUs live in the table and its facts, and one module reads the environment and TOML."""
    users = {module for module, path in FILES.items() if name in outside_names(ast.parse(path.read_text("utf-8")))}
    assert users <= owners


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
def test_what_the_c_code_cites_is_there(source: Path) -> None:
    """Its comments name the functions in Python that it agrees with, each in the module where it stands."""
    known = {module.rpartition(".")[2]: path for module, path in FILES.items()}
    comments = " ".join(re.findall(r"/\*.*?\*/", source.read_text("utf-8"), re.DOTALL))
    cited = [(module, name) for module, name in CITED.findall(comments) if module in known and name != "py"]
    tops = {module: names_at_top(ast.parse(known[module].read_text("utf-8"))) for module, _ in cited}
    assert [f"{module}.{name}" for module, name in cited if name not in tops[module]] == []
