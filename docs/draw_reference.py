"""Write ``reference.md`` and the table of ``settings.md`` from the code: ``python docs/draw_reference.py``.

What is public is what ``shapedispatch`` exports, in the order below; each with its signature and its docstring. Of a
setting its built-in value and what is allowed are read from the table of settings, and what it does is said here.
`tests/test_reference.py` compares the pages with what this script would write.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import shapedispatch
from shapedispatch.settings.schema import TABLE, Setting

HERE = Path(__file__).parent
REFERENCE, SETTINGS = HERE / "reference.md", HERE / "settings.md"
BEGIN, END = "<!-- settings begin -->\n", "<!-- settings end -->"

ORDER = {
    "The decorator": ["shapedispatch", "Variant"],
    "What comes back": ["Dispatcher"],
    "What one is told": ["Choice", "Timing", "Refusal", "CacheInfo"],
    "For the process": ["set_mode", "dispatchers", "load", "wait", "sync"],
    "Choices on disk": ["Store"],
    "Errors": [
        "ShapeDispatchError",
        "DeclarationError",
        "SettingsError",
        "MissError",
        "NoVariantError",
        "SyncError",
    ],
}

HEAD = """# Everything public

Written from the docstrings by `docs/draw_reference.py`. What is not here is private and may change with any release.
`import shapedispatch` gives all of it; `hotpath_available` says whether known calls are answered in C, and
`hotpath_reason` why not (None where they are).
"""

MEANING = {
    "hints": "sizes that are expected: a build for each ([how to](how-to/sizes.md#hints))",
    "static": "dims that are constants in every build",
    "exact": "one more build for each shape that is met, with all sizes constant",
    "buckets": "sizes that share one measurement ([how to](how-to/sizes.md#buckets))",
    "maxsize": "most choices kept",
    "max_builds": "most builds kept",
    "mode": "what may be built and timed ([modes](how-to/keep-choices.md#modes))",
    "on_miss": "what a frozen or sealed call of an unknown shape runs",
    "store": "where choices are kept: the platform's cache folder, nowhere, or a path",
    "tables": "where the user has nothing that fits, the tables that come with the package answer "
    "([which](how-to/keep-choices.md#tables-that-come-with-the-package))",
    "budget_ms": "wall time that timing one shape may take",
    "margin": "by how much a later candidate must win",
    "check": 'how numbers are compared. Built in: each build once by its graph. `"sample"`: on the call only; '
    "`[rtol, atol]`: so, with these tolerances; `false`: not at all",
    "copy_limit": "share of free memory that copies of a call may take; beyond it a build that its "
    "graph vouches for runs on calls alone, and nothing else is tried",
    "isolate": "try candidates, and kernels' configs, in a worker process first: a crash or a hang costs one; "
    "for what stands at the top level of a module, not in the program that is started",
    "judge": '`"online"`: calls are themselves the samples, each run once, until the best is known; a backward '
    "counts where one follows",
    "learn": 'how the choice for a new shape comes about. `"now"`: within the call. `"background"`: [no call '
    'waits](how-to/background.md). `"record"`, or the path of a record: [the same bits '
    "twice](how-to/background.md#the-same-bits-twice)",
    "earn": "in the background a build is ordered when so many times what it costs was spent where it would be used; "
    "`0`: at once",
    "builders": "in the background: how many processes compile at a time, of all programs of a user on this host",
    "regime": 'what a call costs: `"graph"` as inside a CUDA graph; with `judge = "online"` the `"device"`\'s time, '
    'the `"host"`\'s, that of a caller who waits (`"sync"`), or `"auto"`: as the program around it shows',
    "retime": "share of later hits of what was learned online that are timed again, the winner and the next best: one "
    "that has become much slower is left for the other, and a choice from the store is verified so; 0: none",
    "ranks": "in a `torch.distributed` group of more than one rank: all run the same, and change it in "
    '`shapedispatch.sync()` only; `"alone"`: each for itself ([many ranks](ranks.md))',
    "graphs": "builds on a CUDA device come as CUDA graphs, too ([how to](how-to/graphs.md))",
    "max_graph_bytes": "bytes that CUDA graphs may hold on a device",
    "pick": "force a variant by name; it is not compared with plain",
    "hotpath": "known calls are answered in C, where that is built",
    "trust_newer": "use builds, answers in C and direct launches on a torch or Triton newer than what was tried, too",
}
NOT_FIXED = {
    "max_graph_bytes": "a twentieth of its memory",
    "builders": "a quarter of the cores that the process may use, 8 at most",
    "check": "by graph",
    "pick": "none",
    "buckets": "none",
}


# ---------------------------------------------------------------------------------------------------------- reference


def reference() -> str:
    """The page."""
    parts = [HEAD]
    for title, names in ORDER.items():
        parts.append(f"## {title}\n")
        parts += [entry(name, getattr(shapedispatch, name)) for name in names]
    return "\n".join(parts)


def entry(name: str, thing: Any) -> str:
    """A function, or a class with its public methods and properties."""
    if is_error(thing):
        return f"### `{name}`\n\n{prose(thing)}"
    parts = [f"### `{name}`\n\n{code(signature(name, thing))}{prose(thing)}"]
    for label, member in members(thing) if inspect.isclass(thing) else ():
        parts.append(f"#### `{name}.{label}`\n\n{code(signature(label, member))}{prose(member)}")
    return "\n".join(parts)


def is_error(thing: Any) -> bool:
    """Whether it is raised."""
    return inspect.isclass(thing) and issubclass(thing, Exception)


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, in the order in which they are written."""
    for label, member in vars(kind).items():
        if not label.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            yield label, member


def signature(name: str, thing: Any, width: int = 110) -> str:
    """As it is called, a parameter a line where one line is too short; what was left out is ``...``."""
    if isinstance(thing, property):
        return f"{name}: {shown(inspect.signature(thing.fget).return_annotation)}"
    if inspect.isclass(thing) and getattr(thing, "_is_protocol", False):
        return ""
    found = inspect.signature(thing)
    parameters = [each for each in found.parameters.values() if each.name not in ("self", "unknown")]
    texts = [parameter(each) for each in parameters]
    kinds = [each.kind for each in parameters]
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        texts.insert(kinds.index(inspect.Parameter.POSITIONAL_ONLY) + 1, "/")
        kinds.insert(kinds.index(inspect.Parameter.POSITIONAL_ONLY) + 1, inspect.Parameter.POSITIONAL_ONLY)
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        texts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = "" if inspect.isclass(thing) else f" -> {shown(found.return_annotation)}"
    line = f"{name}({', '.join(texts)}){result}"
    if len(line) <= width:
        return line
    return "\n".join([f"{name}(", *(f"    {text}," for text in texts), f"){result}"])


def parameter(found: inspect.Parameter) -> str:
    """One parameter, with its type where that says something."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(found.kind, "")
    kind = shown(found.annotation)
    typed = f"{stars}{found.name}" + (f": {kind}" if kind not in ("", "Any") else "")
    if found.default is inspect.Parameter.empty:
        return typed
    default = "..." if type(found.default).__module__.startswith("shapedispatch") else repr(found.default)
    if default.startswith(("<factory>", "<")):
        default = "..."
    return f"{typed} = {default}" if ":" in typed else f"{typed}={default}"


def shown(annotation: Any) -> str:
    """A type as it is written."""
    if annotation is inspect.Signature.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def code(text: str) -> str:
    """A block, or nothing; it is no Python that runs."""
    return f"```text\n{text}\n```\n\n" if text else ""


def prose(thing: Any) -> str:
    """A docstring as Markdown: its sections as lists, what it names in single backticks as links to it."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.getdoc(thing) or ""):
        head, _, rest = paragraph.partition("\n")
        if head in ("Args:", "Raises:", "Returns:"):
            lines.append(f"**{head.removesuffix(':')}**\n\n{items(rest)}")
        else:
            lines.append(paragraph)
    return linked("\n\n".join(lines).replace("``", "\0")) + "\n"


def items(text: str) -> str:
    """The entries of a section, each with what it goes on with in the lines below."""
    entries = re.split(r"^    (?=\S)", text, flags=re.MULTILINE)
    rows = [re.sub(r"\s*\n\s*", " ", each).strip() for each in entries if each.strip()]
    return "\n".join(re.sub(r"^(\w+):", r"- \0\1\0:", row) for row in rows)


def linked(text: str) -> str:
    """``X`` in double backticks stays code; one in single ones that is public leads to its heading."""
    known = {name for names in ORDER.values() for name in names}
    methods = {label for label, _ in members(shapedispatch.Dispatcher)}

    def link(match: re.Match[str]) -> str:
        name = match[1]
        if name in known:
            return f"[`{name}`](#{name.lower()})"
        label = name.removeprefix("Dispatcher.")
        return f"[`{name}`](#dispatcher{label})" if label in methods else f"`{name}`"

    return re.sub(r"`([^`\n]+)`", link, text).replace("\0", "`")


# ----------------------------------------------------------------------------------------------------------- settings


def table() -> str:
    """A row a setting."""
    lines = ["| setting | built-in | allowed | |", "|---|---|---|---|"]
    lines += [row(setting, MEANING[name]) for name, setting in TABLE.items()]
    return "\n".join(lines) + "\n"


def row(setting: Setting, meaning: str) -> str:
    """Its name, what it is where nobody says, what it may be, what it does."""
    process = "" if setting.per_kernel else " (*process*)"
    built_in = NOT_FIXED.get(setting.name) or f"`{as_toml(setting.built_in)}`"
    return f"| `{setting.name}`{process} | {built_in} | {setting.allowed} | {meaning} |"


def as_toml(value: Any) -> str:
    """A built-in value as a file would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value)) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)


def with_table(text: str) -> str:
    """The page of settings with its table written anew."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


PAGES: dict[Path, Callable[[], str]] = {
    REFERENCE: reference,
    SETTINGS: lambda: with_table(SETTINGS.read_text("utf-8")),
}


if __name__ == "__main__":
    for page, written in PAGES.items():
        page.write_text(written(), "utf-8")
