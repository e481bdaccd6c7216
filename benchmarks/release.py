"""What does a release of this commit still lack? Prints it; the exit code is 1 where there is anything.

    make release

The tree is clean; the changelog begins with the version of the project; each number that the README and docs/ quote
was measured at an ancestor, and nothing that its benchmark measures has changed since; an sdist and a wheel are built
of the commit, and what is compiled in the wheel asks for Python and the C library alone. Nothing is published.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import quotes  # noqa: E402 - of this checkout, wherever the script is called from
from benchmarks.documents import newest, results_of  # noqa: E402
from benchmarks.measures import MEASURES  # noqa: E402

PACKAGE = "shapedispatch"
HOOKS = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
SYSTEM = {"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
SHOWN = 6  # names in a sentence


def main(root: Path = ROOT) -> int:
    """Ask all; print what is missing."""
    missing = {title: asked(root) for title, asked in CHECKS.items()}
    for title, sentences in missing.items():
        print(f"{title}: {'' if sentences else 'good'}")
        for sentence in sentences:
            print(f"  - {sentence}")
    return int(any(missing.values()))


def git(root: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """What git says of a checkout."""
    return subprocess.run(["git", *words], cwd=root, capture_output=True, check=False)


# The tree, and the version.


def unclean(root: Path) -> list[str]:
    """Files that differ from the commit, or are in none."""
    lines = git(root, "status", "--porcelain").stdout.decode().splitlines()
    return [f"not as in the commit: {some([line[3:] for line in lines])}"] if lines else []


def some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def other_versions(root: Path) -> list[str]:
    """The project's version is the package's, and what the changelog tells of first, with a day."""
    version = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    inside = re.search(r'^__version__ = "(.*)"', (root / PACKAGE / "__init__.py").read_text("utf-8"), re.MULTILINE)
    top = re.search(r"^## (\S+)(.*)", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    told = top[1] if top else "nothing"
    found = []
    if inside is None or inside[1] != version:
        found.append(f"the project is {version}, the package {inside[1] if inside else 'says no version'}")
    if told != version:
        found.append(f"the project is {version}, CHANGELOG.md begins with {told}")
    if top and "unreleased" in top[2]:
        found.append(f"CHANGELOG.md calls {told} unreleased")
    return found


# The numbers.


class Number(NamedTuple):
    """A result that is quoted: its file, the script, the commit that it names."""

    file: str
    script: str
    commit: str


def old_numbers(root: Path) -> list[str]:
    """A sentence for each result that is quoted and is not of this code."""
    sentences = (stale(root, number) for number in quoted(root / "benchmarks" / "results"))
    return [sentence for sentence in sentences if sentence]


def quoted(folder: Path) -> Iterator[Number]:
    """The results that the README and docs/ draw on, each once."""
    scripts = dict.fromkeys(name for section in quotes.SECTIONS.values() for name in section)
    results = [quotes.model_run(folder), *(newest(name, folder) for name in scripts), *results_of("fuzz", folder)]
    for result in filter(None, results):
        stem = result.path.stem
        script = max((name for name in MEASURES if stem.startswith(f"{name}-")), key=len)
        yield Number(result.path.name, script, result.environment.get("commit", "unknown"))
    table = folder / "matrix.json"
    for cell in json.loads(table.read_text("utf-8"))["cells"] if table.exists() else ():
        versions = f"torch {cell['torch']}, Python {cell['python']}"
        yield Number(f"{table.name} ({versions})", "matrix", cell["commit"])


def stale(root: Path, number: Number) -> str:
    """Why a number is not of this code; nothing where it is."""
    commit = number.commit.rstrip("+")
    if commit == "unknown":
        return f"{number.file} names no commit"
    if commit != number.commit:
        return f"{number.file} was measured with changes beside {commit} that are in no commit"
    if git(root, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
        return f"{number.file} is of {commit}, which is not in the history here"
    if git(root, "merge-base", "--is-ancestor", commit, "HEAD").returncode:
        return f"{number.file} is of {commit}, which led to something else"
    changed = changed_since(root, commit, MEASURES[number.script])
    return f"{number.file} is of {commit}; since then changed: {some(changed)}" if changed else ""


def changed_since(root: Path, commit: str, packages: tuple[str, ...]) -> list[str]:
    """Those of the packages that are not as they were; files that stand in none count by their names."""
    places = [f"{PACKAGE}/{name}".rstrip("/") for name in packages]
    lines = git(root, "diff", "--name-only", commit, "HEAD", "--", *places).stdout.decode().splitlines()
    return sorted({line.split("/")[1] for line in lines})


# The packages.


def unbuilt(root: Path) -> list[str]:
    """Whether an sdist and a wheel are built of the commit, and what is wrong with the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(git(root, "archive", "HEAD").stdout)) as archive:
            archive.extractall(folder, filter="data")
        ran = subprocess.run([sys.executable, "-c", HOOKS], cwd=folder, capture_output=True, text=True, check=False)
        wheels, sdists = (list(Path(folder, "dist").glob(ending)) for ending in ("*.whl", "*.tar.gz"))
        if ran.returncode or len(wheels) != 1 or len(sdists) != 1:
            return [f"no sdist or no wheel is built: {(ran.stderr.strip() or 'nothing is said').splitlines()[-1]}"]
        return wrong_abi(wheels[0])


def wrong_abi(wheel: Path) -> list[str]:
    """Whether the wheel's one compiled module is of the wheel's Python and system, and asks for nothing else."""
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        compiled = [name for name in archive.namelist() if name.endswith((".so", ".pyd"))]
        if len(compiled) != 1:
            return [f"{wheel.name} has {len(compiled)} compiled modules, not one"]
        python, abi, _ = wheel.stem.split("-")[-3:]
        found = [] if f".{python.replace('cp', 'cpython-')}-" in compiled[0] else [f"{compiled[0]} is not of {python}"]
        found += [] if abi == python else [f"{wheel.name} is for {abi}, its Python is {python}"]
        return found + foreign(Path(archive.extract(compiled[0], folder)))


def foreign(library: Path) -> list[str]:
    """What a compiled module asks for beside Python and the C library: by readelf, which comes with the compiler."""
    try:
        told = [read_elf(library, option) for option in ("--dynamic", "--dyn-syms")]
    except (OSError, subprocess.CalledProcessError) as error:
        return [f"readelf cannot say what {library.name} asks for: {error}"]
    libraries = set(re.findall(r"\(NEEDED\).*\[(.+)\]", told[0])) - SYSTEM
    symbols = re.findall(r"\b(?:GLOBAL|WEAK)\s+DEFAULT\s+UND\s+(\S+)", told[1])
    others = {
        name
        for name in symbols
        if not re.match(r"_?Py|_ITM_|__gmon_start__|__cxa_finalize", name) and "@GLIBC" not in name
    }
    return [f"{library.name} asks for {name}" for name in sorted(libraries | others)]


def read_elf(library: Path, option: str) -> str:
    """A part of what readelf prints."""
    command = ["readelf", "--wide", option, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


CHECKS: Mapping[str, Callable[[Path], list[str]]] = {
    "the tree": unclean,
    "the version": other_versions,
    "the numbers": old_numbers,
    "the packages": unbuilt,
}
"""What is asked, by the title that it is printed under."""


if __name__ == "__main__":
    sys.exit(main())
