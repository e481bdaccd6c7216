"""What is released: a wheel and an sdist that work where nothing but the requirements is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from shapedispatch import __version__

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "shapedispatch"
BUILT = ("*.so", "*.pyd", "__pycache__")
TRY = """
import torch
import shapedispatch
from shapedispatch import shapedispatch as dispatched

f = dispatched(hints=(), variants=[torch.nn.functional.silu], store=False)(lambda x: x * torch.sigmoid(x))
x = torch.randn(8)
torch.testing.assert_close(f(x), torch.nn.functional.silu(x))
print(shapedispatch.__version__, shapedispatch.hotpath_available, shapedispatch.__file__, f.explain(x).origin)
"""


def run(*command: str | Path, folder: Path) -> str:
    """What a command prints that ends well, with nothing of this checkout on its path."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return ran.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and an sdist, by the hooks that `python -m build` calls, of a checkout without what is built in it."""
    checkout = tmp_path_factory.mktemp("checkout")
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    shutil.copytree(PACKAGE, checkout / "shapedispatch", ignore=shutil.ignore_patterns(*BUILT))
    (checkout / "tests").mkdir()
    (checkout / "tests" / "test_nothing.py").touch()  # setuptools takes such a file, if it is not told
    hooks = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
    run(sys.executable, "-c", hooks, folder=checkout)
    return checkout / "dist"


def environment(folder: Path) -> Path:
    """The interpreter of a new environment that sees what is installed beside this checkout, and not the checkout."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder.parent)
    python = folder / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder).strip()
    (Path(site) / "requirements.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    return python


@pytest.mark.soak
@pytest.mark.parametrize("ending", ["*.whl", "*.tar.gz"])
def test_it_installs_where_only_the_requirements_are(dist: Path, ending: str, tmp_path: Path) -> None:
    """By pip, without an index; with hits in C, the command, and all that is no Python."""
    (file,) = dist.glob(ending)
    python = environment(tmp_path / "environment")
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")  # of here, for there
    run(*pip, "install", "--no-index", "--no-deps", "--no-build-isolation", file, folder=tmp_path)
    version, in_c, place, origin = run(python, "-c", TRY, folder=tmp_path).split()
    assert (version, in_c, origin) == (__version__, "True", "timed")
    assert Path(place).is_relative_to(tmp_path)
    assert __version__ in run(tmp_path / "environment" / "bin" / "shapedispatch", "--version", folder=tmp_path)
    tables = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*_tables/*.json")}
    assert {str(path.relative_to(Path(place).parent)) for path in Path(place).parent.rglob("*_tables/*.json")} == tables
    assert (Path(place).parent / "py.typed").exists()


@pytest.mark.soak
def test_an_sdist_has_what_a_build_needs_and_no_part_of_the_tests(dist: Path) -> None:
    """Each module, each file in C, the licence, what has changed."""
    (file,) = dist.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".c", ".json", ".typed")]
    assert {str(path.relative_to(ROOT)) for path in sources} <= names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= names
    assert [name for name in names if name.startswith(("tests/", "benchmarks/", "docs/"))] == []


@pytest.mark.soak
def test_a_wheel_holds_the_package_alone(dist: Path) -> None:
    """And what describes it."""
    (file,) = dist.glob("*.whl")
    tops = {name.split("/")[0] for name in zipfile.ZipFile(file).namelist()}
    assert tops == {"shapedispatch", f"shapedispatch-{__version__}.dist-info"}


@pytest.mark.soak
@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")
def test_every_public_name_has_a_known_type(tmp_path: Path) -> None:
    """For whoever checks types against the package: what it exports, what that has, and all that is inside."""
    command = (sys.executable, "-m", "pyright", "--verifytypes", "shapedispatch", "--ignoreexternal", "--outputjson")
    ran = subprocess.run(
        [*command, "--pythonpath", sys.executable],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(ran.stdout)["typeCompleteness"]
    assert len([one for one in found["symbols"] if one["name"].startswith(PUBLIC)]) > 100
    assert [one["name"] for one in found["symbols"] if not one["isTypeKnown"] or one["isTypeAmbiguous"]] == []
    assert found["completenessScore"] == 1.0


PUBLIC = tuple(
    f"shapedispatch.{module}."
    for module in ("records", "errors", "api.decorator", "api.registry", "settings.modes", "store.store")
)
"""Where what is exported stands. All others are private, although no name of theirs says so: they are asked, too."""


def test_the_version_is_one() -> None:
    """That of the package is that of the project."""
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text("utf-8")
