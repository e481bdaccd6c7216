"""Settings: what may be set, where it is found, who wins, and what an error says."""

from __future__ import annotations

import math
import re
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapedispatch import shapedispatch
from shapedispatch.errors import DeclarationError, SettingsError
from shapedispatch.settings import resolve
from shapedispatch.settings.resolve import TABLE, Resolved, Settings, load
from shapedispatch.store.store import Store

NAMES = (
    "hints static exact buckets maxsize max_builds mode on_miss store tables budget_ms margin check copy_limit isolate "
    "judge learn earn builders regime retime ranks graphs max_graph_bytes pick hotpath trust_newer"
)


def written(folder: Path, text: str, name: str = "shapedispatch.toml") -> Path:
    """A settings file with that text."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def read(tmp_path: Path, text: str, **environ: str) -> Settings:
    """The settings of a file that was named, and of an environment."""
    return load(written(tmp_path, text), environ=environ)


def resolved(tmp_path: Path, text: str = "", decorator: Any = (), **environ: str) -> Resolved:
    """What holds for the kernel ``ops.mlp``."""
    return read(tmp_path, text, **environ).resolve("ops.mlp", dict(decorator))


# The table.


def test_the_table_has_every_setting() -> None:
    """The names are those of the design, and each is a field of what is resolved."""
    assert list(TABLE) == NAMES.split()
    assert set(TABLE) == set(Resolved.__dataclass_fields__) - {"bare", "origin", "nearly_named", "of_all", "was_found"}


def test_built_ins_are_allowed() -> None:
    """Each built-in value passes its own check, but None, which a file cannot say."""
    for setting in TABLE.values():
        if setting.built_in is not None:
            assert setting.clean(setting.built_in) == setting.built_in


def test_built_ins_hold_where_nothing_is_said() -> None:
    """Without file and environment each setting is the built-in, and says so."""
    found = load(environ={}).resolve("ops.mlp")
    assert all(getattr(found, name) == setting.built_in for name, setting in TABLE.items())
    assert set(found.origin.values()) == {"built-in"}


GOOD = {
    "hints": ["[64]", "[]", "{ M = [2, 4] }", "[{ M = 64, N = 2 }, { M = 2 }]"],
    "static": ['["HQ", "D"]', "[]"],
    "exact": ["true", "false"],
    "buckets": ['{ M = "pow2", N = 64, K = [16, 64] }', "{}"],
    "maxsize": ["1"],
    "max_builds": ["1"],
    "mode": ['"tune"', '"frozen"', '"sealed"', '"off"'],
    "on_miss": ['"nearest"', '"plain"', '"error"'],
    "store": ["true", "false", '"/some/folder"'],
    "tables": ["true", "false"],
    "budget_ms": ["1", "0.5"],
    "margin": ["0", "0.2"],
    "check": ["false", "[0, 1e-3]"],
    "copy_limit": ["0.5", "1"],
    "isolate": ["true"],
    "learn": ['"now"', '"record"', '"some/folder/run.jsonl"'],
    "regime": ['"stream"', '"graph"'],
    "retime": ["0", "0.0005"],
    "graphs": ["true", '"auto"'],
    "max_graph_bytes": ["1048576"],
    "pick": ['"hint[M=64]"'],
    "hotpath": ["false"],
    "trust_newer": ["true"],
}

BAD = {
    "hints": ["64", "[1]", "[true]", "[0.5]", "{ M = 64 }", "{ M = [1] }", "[{ M = [64] }]", "[64, { M = 2 }]", '"64"'],
    "static": ['"HQ"', "[1]", '[""]'],
    "exact": ["1", '"true"'],
    "buckets": ['{ M = "pow3" }', "{ M = 0 }", "{ M = [] }", "{ M = [64, 16] }", "{ M = true }", "[64]"],
    "maxsize": ["0", "-3", "true", "4096.0", '"4096"'],
    "max_builds": ["0", "true"],
    "mode": ['"fast"', "true"],
    "on_miss": ['"raise"', "1"],
    "store": ["1", '""'],
    "tables": ["0", '"a folder"'],
    "budget_ms": ["0", "-1", "nan", "inf", "true", '"200"'],
    "margin": ["-0.1", "1.5", "nan", "true"],
    "check": ["true", "[1]", "[1, 2, 3]", "[-1, 0]", "[nan, 0]", "1e-3"],
    "copy_limit": ["-0.1", "1.1", "nan"],
    "isolate": ["0"],
    "learn": ['"later"', '"run.json"', "true"],
    "regime": ['"eager"'],
    "retime": ["0.01", "-1", "true"],
    "graphs": ["1", '"yes"'],
    "max_graph_bytes": ["0", "-1", "true", "1.5"],
    "pick": ['""', "1"],
    "hotpath": ["1"],
    "trust_newer": ["1"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in GOOD.items() for text in texts])
def test_what_is_allowed_is_read(tmp_path: Path, name: str, text: str) -> None:
    """Each allowed form of each setting is taken under [defaults]."""
    found = resolved(tmp_path, f"[defaults]\n{name} = {text}")
    assert found.origin[name] == "shapedispatch.toml [defaults]"


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BAD.items() for text in texts])
def test_what_is_not_allowed_is_refused(tmp_path: Path, name: str, text: str) -> None:
    """The error names file, section, setting, what was found and what is allowed."""
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, f"[defaults]\n{name} = {text}")
    start = f"{tmp_path / 'shapedispatch.toml'}, [defaults], {name}: found "
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith(f"; allowed is {TABLE[name].allowed}")


def test_values_have_one_form(tmp_path: Path) -> None:
    """Lists become tuples, whole numbers become floats where a float is meant."""
    found = resolved(
        tmp_path,
        "[defaults]\nhints = { M = [64] }\nstatic = ['D']\nbuckets = { M = [16, 64] }\nbudget_ms = 5\ncheck = [0, 1]",
    )
    assert found.hints == {"M": (64,)}
    assert found.static == ("D",)
    assert found.buckets == {"M": (16, 64)}
    assert (type(found.budget_ms), found.check) == (float, (0.0, 1.0))


@given(st.integers(), st.integers(max_value=(1 << 31) - 1))
def test_sizes_are_whole_and_positive(size: int, hint: int) -> None:
    """A size is at least 1, a hint at least 2."""
    for name, value, least in (("maxsize", size, 1), ("hints", [hint], 2)):
        if (size if name == "maxsize" else hint) >= least:
            TABLE[name].clean(value)
        else:
            with pytest.raises(ValueError):
                TABLE[name].clean(value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_python_values_are_checked_too(number: float) -> None:
    """The table serves the decorator as well: NaN and infinities are no budget."""
    with pytest.raises(ValueError):
        TABLE["budget_ms"].clean(number)


# Unknown names.


def test_an_unknown_setting_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    """A misspelt setting names the near one and all that are allowed."""
    with pytest.raises(
        SettingsError, match=r'\[kernels\."ops\.mlp"\]: found the unknown setting hint\. .*mean hints\?'
    ):
        read(tmp_path, '[kernels."ops.mlp"]\nhint = [64]')


def test_an_unknown_section_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    """A misspelt section names the near one."""
    with pytest.raises(SettingsError, match="unknown section default. Did you mean defaults"):
        read(tmp_path, "[default]\nmode = 'off'")


def test_a_setting_outside_sections_says_where_it_belongs(tmp_path: Path) -> None:
    """A setting at the top of the file is told of [defaults]."""
    with pytest.raises(SettingsError, match=r"unknown section mode\..*belongs under \[defaults\]"):
        read(tmp_path, "mode = 'off'")


def test_an_unknown_variable_is_an_error_with_a_suggestion() -> None:
    """A misspelt variable in the environment does not pass in silence."""
    with pytest.raises(SettingsError, match="unknown variable SHAPEDISPATCH_FOO. Allowed are"):
        load(environ={"SHAPEDISPATCH_FOO": "1"})  # what all have in front makes none of them near
    with pytest.raises(SettingsError, match="unknown variable SHAPEDISPATCH_MOD. Did you mean SHAPEDISPATCH_MODE"):
        load(environ={"SHAPEDISPATCH_MOD": "off"})


@pytest.mark.parametrize("text", ["defaults = 1", "kernels = []", "[kernels]\n'ops.mlp' = 1"])
def test_a_section_that_is_no_table_is_an_error(tmp_path: Path, text: str) -> None:
    """A value in the place of a section says that a table is allowed."""
    with pytest.raises(SettingsError, match="allowed is a table of settings"):
        read(tmp_path, text)


def test_a_kernel_name_without_quotes_is_seen(tmp_path: Path) -> None:
    """[kernels.ops.mlp] is TOML for a table in a table: the error names what is unknown."""
    with pytest.raises(SettingsError, match=r'\[kernels\."ops"\]: found the unknown setting mlp.*needs quotes'):
        read(tmp_path, "[kernels.ops.mlp]\nexact = true")


def test_what_belongs_to_the_process_is_refused_for_a_kernel(tmp_path: Path) -> None:
    """``hotpath`` has no meaning for one kernel."""
    with pytest.raises(SettingsError, match="hotpath belongs to the process"):
        read(tmp_path, '[kernels."ops.mlp"]\nhotpath = false')


def test_a_file_that_is_no_toml_is_an_error(tmp_path: Path) -> None:
    """The error has TOML's own reason and place."""
    with pytest.raises(SettingsError, match=r"shapedispatch\.toml: the settings file is no TOML: .*line 1"):
        read(tmp_path, "mode = tune")


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are a settings error, not a UnicodeDecodeError."""
    path = tmp_path / "shapedispatch.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="no TOML"):
        load(path, environ={})


# Who wins.

SAYS = {
    "environment SHAPEDISPATCH_MAXSIZE": 6,
    "set_mode": 5,
    'shapedispatch.toml [kernels."ops.mlp"]': 4,
    "decorator": 3,
    "shapedispatch.toml [defaults]": 2,
    "built-in": 4096,
}


@pytest.mark.parametrize("silent", range(len(SAYS)))
def test_the_strongest_that_speaks_wins(tmp_path: Path, silent: int) -> None:
    """Environment, set_mode, section, decorator, defaults, built-in: with the first so many silent, the next wins."""
    speaking = list(SAYS)[silent:]
    says = {name: value for name, value in SAYS.items() if name in speaking}
    text = ""
    if "shapedispatch.toml [defaults]" in says:
        text += "[defaults]\nmaxsize = 2\n"
    if 'shapedispatch.toml [kernels."ops.mlp"]' in says:
        text += '[kernels."ops.mlp"]\nmaxsize = 4\n'
    environ = {"SHAPEDISPATCH_MAXSIZE": "6"} if "environment SHAPEDISPATCH_MAXSIZE" in says else {}
    decorator = {"maxsize": 3} if "decorator" in says else {}
    override = {"maxsize": 5} if "set_mode" in says else None
    found = read(tmp_path, text, **environ).resolve("ops.mlp", decorator, override=override)
    assert (found.origin["maxsize"], found.maxsize) == next(iter(says.items()))


def test_a_section_is_one_kernels(tmp_path: Path) -> None:
    """Another kernel does not see it."""
    found = read(tmp_path, '[kernels."ops.mlp"]\nexact = true')
    assert found.resolve("ops.mlp").exact
    assert not found.resolve("ops.rope").exact


def test_sections_that_match_nothing_are_named(tmp_path: Path) -> None:
    """In the file's order, for a person to look at."""
    found = read(tmp_path, '[kernels.b]\n[kernels.a]\n[kernels."ops.mlp"]')
    assert found.sections_unmatched(["ops.mlp"]) == ("b", "a")


def test_only_settings_can_be_given() -> None:
    """A decorator's other arguments are not settings, and a misspelt one must not pass."""
    with pytest.raises(KeyError, match="dims is not a setting"):
        Settings().resolve("ops.mlp", {"dims": "M"})


def test_settings_do_not_change(tmp_path: Path) -> None:
    """What was read once stays as it was read."""
    found = read(tmp_path, "[defaults]\nexact = true")
    with pytest.raises(TypeError):
        found.defaults["exact"] = False  # type: ignore[index]
    with pytest.raises(AttributeError):
        found.resolve("ops.mlp").exact = False  # type: ignore[misc]


# The environment.


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("hints", "[64,256]", (64, 256)),
        ("hints", "{ M = [64] }", {"M": (64,)}),
        ("mode", "off", "off"),
        ("pick", "1", "1"),
        ("pick", "hint[M=64]", "hint[M=64]"),
        ("store", "false", False),
        ("store", "/some/folder", "/some/folder"),
        ("store", '"/some folder"', "/some folder"),
        ("budget_ms", "50", 50.0),
        ("check", "[1e-3, 0]", (1e-3, 0.0)),
        ("exact", "true", True),
    ],
)
def test_the_environment_speaks_toml_or_plain_words(name: str, text: str, value: object) -> None:
    """A list needs TOML; a word, a name or a path needs no quotes."""
    found = load(environ={TABLE[name].variable: text}).resolve("ops.mlp")
    assert getattr(found, name) == value
    assert found.origin[name] == f"environment {TABLE[name].variable}"


def test_a_bad_variable_is_an_error_that_names_it() -> None:
    """The environment is meant by whoever runs the program: it is never left out."""
    with pytest.raises(SettingsError, match=r'environment, SHAPEDISPATCH_MODE: found .fast.; allowed is one of "tune"'):
        load(environ={"SHAPEDISPATCH_MODE": "fast"})


def test_a_variable_holds_one_value() -> None:
    """A line break does not smuggle a second setting in: it is one text, and no number."""
    with pytest.raises(SettingsError, match="SHAPEDISPATCH_MAXSIZE"):
        load(environ={"SHAPEDISPATCH_MAXSIZE": "1\nmode = 'off'"})


def test_an_empty_variable_is_not_set() -> None:
    """``SHAPEDISPATCH_MODE= python ...`` takes a setting away, as shells do."""
    found = load(environ={"SHAPEDISPATCH_MODE": "", "SHAPEDISPATCH_SETTINGS": ""})
    assert found.resolve("ops.mlp").mode == "tune"


# Where the file is.


def found_from(start: Path) -> Settings:
    """What a search from that folder upward finds."""
    return load(environ={}, start=start)


def test_the_nearest_file_wins(tmp_path: Path) -> None:
    """A file in a folder below hides one above, of either name; they do not add up."""
    written(tmp_path, "[defaults]\nmaxsize = 1")
    near = written(tmp_path / "a", "[tool.shapedispatch.defaults]\nexact = true", "pyproject.toml")
    found = found_from(tmp_path / "a")
    assert (found.path, found.resolve("k").maxsize) == (near, 4096)
    assert found.resolve("k").origin["exact"] == "pyproject.toml [tool.shapedispatch.defaults]"


def test_in_one_folder_the_own_file_wins(tmp_path: Path) -> None:
    """shapedispatch.toml goes before pyproject.toml."""
    written(tmp_path, "[tool.shapedispatch.defaults]\nexact = true", "pyproject.toml")
    own = written(tmp_path, "")
    assert found_from(tmp_path).path == own


def test_the_search_goes_upward_past_other_projects_files(tmp_path: Path) -> None:
    """A pyproject.toml that does not speak of us is passed, broken or not."""
    above = written(tmp_path, "")
    (tmp_path / "a" / "b").mkdir(parents=True)
    written(tmp_path / "a", "[tool.other]\n", "pyproject.toml")
    written(tmp_path / "a" / "b", "no toml", "pyproject.toml")
    assert found_from(tmp_path / "a" / "b").path == above


def test_a_bad_file_that_was_found_is_one_warning(tmp_path: Path) -> None:
    """What is no TOML is left out as a whole."""
    written(tmp_path, "[defaults]\nmode = fast")
    with pytest.warns(UserWarning, match=r"is no TOML: (?s:.*)\nThe file is left out\.$") as caught:
        found = found_from(tmp_path)
    assert len(caught) == 1
    assert found.path is None
    assert found.left_out is not None
    assert found.resolve("k").mode == "tune"


WITH_TYPOS = """
kernel = 1
[defaults]
mode = "fast"
maxsise = 3
margin = 0.5
[kernels."a.f"]
static = 1
exact = true
"""


def test_a_typo_in_a_file_that_was_found_leaves_out_its_line(tmp_path: Path) -> None:
    """The rest holds, and one warning names every line, with what was meant."""
    path = written(tmp_path, WITH_TYPOS)
    with pytest.warns(UserWarning, match="left out") as caught:
        found = found_from(tmp_path)
    (warning,) = caught
    said = str(warning.message)
    for part in ("section kernel. Did you mean kernels?", "mode: found 'fast'", "maxsise. Did you mean maxsize?"):
        assert part in said
    assert said.endswith(
        "static: found 1; allowed is a list of dim names\nThese lines are left out; the rest of the file holds."
    )
    assert (found.path, found.left_out) == (path, said.rpartition("\n")[0])
    resolved = found.resolve("a.f")
    assert (resolved.margin, resolved.exact, resolved.mode, resolved.static) == (0.5, True, "tune", ())


def test_a_section_that_is_no_table_is_left_out(tmp_path: Path) -> None:
    """As one line is, where the file was only found."""
    written(tmp_path, "[defaults]\nexact = true\n[kernels]\n'a.f' = 1")
    with pytest.warns(UserWarning, match=r"found 1; allowed is a table (?s:.*)\nThis line is left out; the rest"):
        found = found_from(tmp_path)
    assert found.resolve("a.f").exact is True


@pytest.mark.parametrize("text", ["[tool.shapedispatch]\nmode = ", "[tool]\nshapedispatch = 1"])
def test_a_bad_project_file_that_names_us_is_one_warning(tmp_path: Path, text: str) -> None:
    """A pyproject.toml that means us and cannot be used does not pass in silence."""
    written(tmp_path, text, "pyproject.toml")
    with pytest.warns(UserWarning, match="left out"):
        assert found_from(tmp_path).path is None


def test_a_bad_file_that_was_named_is_the_error(tmp_path: Path) -> None:
    """SHAPEDISPATCH_SETTINGS names a file on purpose: no warning, the error."""
    path = written(tmp_path, "[defaults]\nmode = 'fast'", "mine.toml")
    with pytest.raises(SettingsError, match="mine.toml"):
        load(environ={"SHAPEDISPATCH_SETTINGS": str(path)})


def test_a_file_that_was_named_and_is_not_there_is_the_error(tmp_path: Path) -> None:
    """The error names the path."""
    with pytest.raises(SettingsError, match=re.escape(f"{tmp_path / 'none.toml'}: the settings file cannot be read")):
        load(environ={"SHAPEDISPATCH_SETTINGS": str(tmp_path / "none.toml")})


def test_a_named_file_goes_before_one_that_is_found(tmp_path: Path) -> None:
    """The search is not begun."""
    written(tmp_path, "not toml")
    path = written(tmp_path, "[defaults]\nexact = true", "mine.toml")
    found = load(environ={"SHAPEDISPATCH_SETTINGS": str(path)}, start=tmp_path)
    assert found.resolve("k").origin["exact"] == "mine.toml [defaults]"


def test_the_environment_holds_where_the_file_is_left_out(tmp_path: Path) -> None:
    """A bad file that was found does not take the environment with it."""
    written(tmp_path, "not toml")
    with pytest.warns(UserWarning, match="left out"):
        found = load(environ={"SHAPEDISPATCH_MODE": "off"}, start=tmp_path)
    assert found.resolve("k").mode == "off"


def test_a_folder_that_is_gone_holds_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory that was removed is no error."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load(environ={}) == Settings()


def test_a_store_path_starts_at_the_file(tmp_path: Path) -> None:
    """A relative path means the same wherever the program is started."""
    text = '[defaults]\nstore = "choices"\n[kernels."ops.mlp"]\nstore = "/mine"'
    found = read(tmp_path, text)
    assert found.resolve("ops.rope").store == str(tmp_path / "choices")
    assert found.resolve("ops.mlp").store == "/mine"


# The process's settings.


def test_settings_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written after the first decoration is not seen, until a test resets."""
    monkeypatch.chdir(tmp_path)
    first = resolve.settings()
    written(tmp_path, "[defaults]\nexact = true")
    assert resolve.settings() is first
    resolve.reset()
    assert resolve.settings().resolve("k").exact


def test_threads_get_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decorations in several threads read once, whoever comes first."""
    reads: list[bool] = []
    barrier = threading.Barrier(8)
    found: list[Settings] = []

    def read_once() -> Settings:
        reads.append(resolve._lock.locked())
        return Settings()

    def ask() -> None:
        barrier.wait()
        found.append(resolve.settings())

    monkeypatch.setattr(resolve, "load", read_once)
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reads == [True]
    assert len({id(one) for one in found}) == 1


def test_an_error_is_raised_at_every_decoration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad environment is not forgotten after the first error."""
    monkeypatch.setenv("SHAPEDISPATCH_MODE", "fast")
    for _ in range(2):
        with pytest.raises(SettingsError):
            resolve.settings()


def test_reading_warns_of_nothing_else(tmp_path: Path) -> None:
    """A good file is read in silence."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        written(tmp_path, "[defaults]\nexact = true")
        found_from(tmp_path)
    assert caught == []


def test_a_store_elsewhere_keeps_the_shipped_files(tmp_path: Path) -> None:
    """The environment names another folder; what is shipped beside the code is not dropped. ``false`` is no store."""
    shipped = Store(tmp_path / "a", shipped=[tmp_path / "table.json"])
    read_there = lambda value: load(environ={"SHAPEDISPATCH_STORE": value}, start=tmp_path)  # noqa: E731
    found = read_there(str(tmp_path / "b")).resolve("ops.mlp", {"store": shipped}).store
    assert found.path == tmp_path / "b"
    assert found._shipped_files == (tmp_path / "table.json",)
    assert read_there("false").resolve("ops.mlp", {"store": shipped}).store is False
    assert load(environ={}, start=tmp_path).resolve("ops.mlp", {"store": shipped}).store is shipped
    assert read_there(str(tmp_path / "b")).resolve("ops.mlp", {"store": Store()}).store == str(tmp_path / "b")


@pytest.mark.parametrize(
    ("text", "hints"),
    [
        ("hints = { M = [64] }", (64, 256, 4096)),
        ("hints = { M = [64], B = [128] }", {"B": (128,)}),
        ("hints = [{ M = 64 }, { B = 32 }]", [{"B": 32}]),
        ("hints = [16]", (16,)),
        ("hints = []", ()),
    ],
)
def test_a_default_is_about_the_dims_that_a_function_has(tmp_path: Path, text: str, hints: Any) -> None:
    """What fits one function is no error of another; where nothing is left, the built-in value is meant."""
    found = resolved(tmp_path, f"[defaults]\n{text}").about("hints", "B C".__contains__)
    assert (dict(found) if isinstance(found, Mapping) else type(hints)(found)) == hints


def test_what_is_said_of_one_function_is_all_about_it(tmp_path: Path) -> None:
    """An unknown dim there is a mistake, which whoever reads it tells."""
    assert resolved(tmp_path, decorator={"static": ("M",)}).about("static", "B C".__contains__) == ("M",)
    assert resolved(tmp_path, '[defaults]\nstatic = ["M", "B"]').about("static", "B C".__contains__) == ["B"]


def test_functions_without_a_default_dim_are_decorated(monkeypatch: pytest.MonkeyPatch) -> None:
    """All the same, by what else holds for them."""
    said = Settings(defaults={"hints": {"M": (64,)}, "static": ("N",), "store": False})
    monkeypatch.setattr("shapedispatch.api.function_object.settings", lambda: said)
    f = shapedispatch(dims={"x": "B C"})(lambda x: x * 2)
    assert f.core.backend.spec.hints == (64, 256, 4096)
    assert f.core.backend.spec.static == ()


@pytest.mark.parametrize("text", ["False", "FALSE", "True", "off", "no", "none", "On"])
def test_a_word_for_no_is_no_folder(text: str) -> None:
    """Nobody means one of that name."""
    with pytest.raises(SettingsError, match="true, false or a path"):
        load(environ={"SHAPEDISPATCH_STORE": text})


def test_a_hint_can_be_counted_with() -> None:
    """A tensor of such sizes is made up when it is built for."""
    with pytest.raises(SettingsError, match=r"below 2\*\*31"):
        load(environ={"SHAPEDISPATCH_HINTS": f"[{1 << 31}]"})
    assert load(environ={"SHAPEDISPATCH_HINTS": f"[{(1 << 31) - 1}]"}).environment["hints"] == ((1 << 31) - 1,)


DIMS_OF_NOBODY = ("hints = {Q = [3]}", 'static = ["Q"]', "buckets = {Q = 4}")


@pytest.mark.parametrize("line", DIMS_OF_NOBODY)
def test_a_dim_of_nobody_in_a_file_that_was_found_is_a_warning(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line is left out; the import of a program does not stop."""
    (tmp_path / "shapedispatch.toml").write_text(f'[kernels."mine"]\n{line}\n')
    monkeypatch.chdir(tmp_path)
    resolve.reset()
    with pytest.warns(UserWarning, match="(?s)'Q'.*left out"):
        shapedispatch(lambda x: x, dims={"x": "M K"}, name="mine")
    resolve.reset()


@pytest.mark.parametrize("line", DIMS_OF_NOBODY)
def test_a_dim_of_nobody_in_a_file_that_was_named_is_an_error(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that stands is said."""
    (tmp_path / "mine.toml").write_text(f'[kernels."mine"]\n{line}\n')
    monkeypatch.setenv("SHAPEDISPATCH_SETTINGS", str(tmp_path / "mine.toml"))
    resolve.reset()
    with pytest.raises(DeclarationError, match="(?s)mine.toml.*'Q'"):
        shapedispatch(lambda x: x, dims={"x": "M K"}, name="mine")
    resolve.reset()
