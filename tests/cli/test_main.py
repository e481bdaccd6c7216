from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

import shapedispatch
from shapedispatch import set_mode
from shapedispatch.cli import tune
from shapedispatch.cli.console import screen
from shapedispatch.cli.main import main
from shapedispatch.records import Choice
from shapedispatch.store.rows import Row, rows_to_file
from shapedispatch.store.store import Store
from tests.cli_app import APP, runner
from tests.fuzzing import last_wins

pytestmark = pytest.mark.own_store

ROOT = Path(__file__).parent.parent.parent
COMMANDS = ("demo", "doctor", "tune", "warm", "show", "why", "plot", "store")
STORE_COMMANDS = ("path", "stats", "export", "import", "prune", "clear", "why", "check")


@contextlib.contextmanager
def imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module ``ops`` in the working directory, imported afresh."""
    Path("ops.py").write_text(APP)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    importlib.invalidate_caches()
    sys.modules.pop("ops", None)
    yield importlib.import_module("ops")
    sys.modules.pop("ops", None)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module ``ops``, on a real clock."""
    with imported(monkeypatch) as module:
        yield module


@pytest.fixture
def never_plain(app: Any) -> Any:
    """The same where the last variant that is right wins: what is stored has something to be built."""
    app.mlp.core.timer_for = last_wins
    return app


def run(*arguments: object) -> Result:
    """The command with these arguments."""
    return runner().invoke(main, [str(argument) for argument in arguments])


def done(*arguments: object) -> str:
    """The output of a command that must succeed."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(code: int, *arguments: object) -> str:
    """The one sentence of a command that must fail with ``code``; no traceback and nothing on the output."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return result.stderr.partition("Error: ")[2].strip()


def rows(*arguments: object) -> list[dict[str, Any]]:
    """What ``show --json`` prints."""
    return json.loads(done("show", *arguments, "--json"))  # type: ignore[no-any-return]


# What there is.


@pytest.mark.parametrize(
    "command", [(), *[(name,) for name in COMMANDS], *[("store", name) for name in STORE_COMMANDS]]
)
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    """``--help`` works everywhere, and begins with what the command does."""
    text = done(*command, "--help")
    assert text.startswith("Usage: ")
    assert len(text.splitlines()[2].strip()) > 20


def test_nobody_need_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell may have closed what is printed to."""
    monkeypatch.setattr(sys, "stdout", None)
    screen().print("a table")


def test_the_version_is_the_packages() -> None:
    """A program can ask which version it is."""
    assert shapedispatch.__version__ in done("--version")


@pytest.mark.parametrize(
    "command", [["-m", "shapedispatch"], ["-c", "from shapedispatch.cli.main import main; main()"]]
)
def test_both_ways_in_are_one(command: list[str], tmp_path: Path) -> None:
    """The module and the console script's function do the same, and end with its exit code."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, *command, "show"], capture_output=True, text=True, env=environment, check=False
    )
    assert found.returncode == 1
    assert found.stderr == f"Error: nothing is stored in {tmp_path / 'shapedispatch'}\n"
    assert found.stdout == ""


# tune


def test_tuning_decides_at_every_size_and_keeps_it(app: Any) -> None:
    """One row a size, in the store of the dispatcher; the table on the output."""
    text = done("tune", "ops:mlp", "M=16,64:128:64")
    assert all(f"│ {size} " in text.replace("  ", " ") for size in (16, 64, 128))
    assert {row["sizes"]["arg0.0"] for row in rows()} == {16, 64, 128}


def test_several_dims_are_combined(app: Any) -> None:
    """Two dims of two sizes are four calls."""
    found = json.loads(done("tune", "ops:mlp", "M=2,3", "K=4,5", "--json"))
    assert [(choice["sizes"]["M"], choice["sizes"]["K"]) for choice in found["choices"]] == [
        (2, 4),
        (2, 5),
        (3, 4),
        (3, 5),
    ]
    assert found["kernel"] == "ops.mlp"
    assert f"torch {torch.__version__}" in found["ran_on"]


def test_tuning_tells_refusals_to_a_program(app: Any) -> None:
    """A variant whose numbers are wrong is refused, and the reason is in the JSON."""
    found = json.loads(done("tune", "ops:mlp", "M=2", "--json"))
    assert "wrong" in found["choices"][0]["refusals"]


def test_the_grad_mode_of_the_calls_can_be_said(app: Any) -> None:
    """What is tuned for inference mode is another key than what is tuned with gradients."""
    done("tune", "ops:mlp", "M=2")
    done("tune", "ops:mlp", "M=2", "--under", "inference")
    assert len(rows()) == 2


def test_an_interrupt_keeps_what_is_done(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the third size: two are kept and shown, and the exit code is that of an interrupted command."""
    do, met = tune._do, []

    def interrupted(*arguments: Any) -> None:
        met.append(arguments)
        if len(met) == 3:
            raise KeyboardInterrupt
        do(*arguments)

    monkeypatch.setattr(tune, "_do", interrupted)
    result = run("tune", "ops:mlp", "M=2,3,4,5")
    assert result.exit_code == 130
    assert "interrupted: 2 choices" in result.stderr
    assert len(rows()) == 2


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nope:f", "there is no module nope. A target is module:dispatcher"),
        ("1:f", "'1' is no module's name"),
        ("ops:nothing", "ops has no nothing; its dispatchers are mlp, scale, broken"),
        ("ops:Layer.nothing", "ops has no Layer.nothing"),
        ("ops:not_one", "ops:not_one is no dispatcher"),
        ("ops", "ops has 3 dispatchers: name one of ops:mlp, ops:scale, ops:broken"),
        ("json", "json has no dispatcher"),
        ("needs_more:f", "it imports a_module_that_is_not_there, which is not installed"),
        ("it_raises:f", "the module it_raises cannot be imported: RuntimeError: not today"),
        ("it_exits:f", "the module it_exits cannot be imported: SystemExit"),
    ],
)
def test_a_wrong_target_is_a_sentence(app: Any, name: str, sentence: str) -> None:
    """No such module, nothing of that name, no dispatcher: exit code 2 and what there is."""
    Path("needs_more.py").write_text("import a_module_that_is_not_there")
    Path("it_raises.py").write_text("raise RuntimeError('not today')")
    Path("it_exits.py").write_text("raise SystemExit(0)")
    assert sentence in refused(2, "tune", name, "M=1")


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        (["M"], "'M' names no sizes"),
        (["=3"], "'=3' names no sizes"),
        (["M=a"], "'M=a' has 'a' for a size"),
        (["M="], "'M=' has '' for a size"),
        (["M=-1"], "'-1' for a size"),
        (["M=4:2"], "'4:2' in 'M=4:2' is no range"),
        (["M=1:9:0"], "is no range"),
        (["M=1:2:3:4"], "for a size"),
        (["M=1:100000000"], "is too many sizes; at most 100000"),
        (["M=1", "M=2"], "the sizes of M are given twice"),
        (["M=1:1000", "K=1:1000"], "1000000 combinations"),
        (["Q=1"], "ops.mlp has no dim Q; it has M, K, N"),
        ([], "give SIZES"),
    ],
)
def test_wrong_sizes_are_a_sentence(app: Any, sizes: list[str], sentence: str) -> None:
    """Sizes that are none end with exit code 2 and what was wrong."""
    assert sentence in refused(2, "tune", "ops:mlp", *sizes)


def test_without_inputs_there_is_nothing_to_resize(app: Any) -> None:
    """Nobody else knows the other arguments, so a dispatcher without ``inputs=`` is told what to give."""
    assert "give inputs=" in refused(2, "tune", "ops:scale", "M=3")


def test_an_error_in_the_users_code_is_a_sentence(app: Any) -> None:
    """What ``inputs=`` raises is named with the size, and the exit code is 1."""
    result = run("tune", "ops:broken", "M=3")
    assert result.exit_code == 1
    assert "not tuned: M=3: inputs= made no call of these sizes: ZeroDivisionError" in result.stderr


def test_a_store_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choices are printed, and that they are not kept is a sentence and exit code 1."""
    Path("a_file").write_text("")
    monkeypatch.setenv("SHAPEDISPATCH_STORE", str(Path("a_file/store").absolute()))
    with imported(monkeypatch):
        result = run("tune", "ops:mlp", "M=2")
    assert result.exit_code == 1
    assert "not kept: the store in" in result.stderr
    assert "mm" in result.stdout or "plain" in result.stdout


# warm


def test_what_is_stored_is_built(never_plain: Any) -> None:
    """Each row is a line; nothing is timed, and nothing decided."""
    done("tune", "ops:mlp", "M=2,3")
    never_plain.mlp.cache_clear()
    found = json.loads(done("warm", "ops:mlp", "--json"))
    assert [choice["origin"] for choice in found["choices"]] == ["stored", "stored"]
    assert never_plain.mlp.choices() == []


def test_what_cannot_be_built_is_told(never_plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason, and exit code 1."""
    done("tune", "ops:mlp", "M=2,3")
    monkeypatch.setattr(never_plain.mlp.core.backend, "offer", lambda *_: 1 / 0)
    result = run("warm", "ops:mlp")
    assert result.exit_code == 1
    assert result.stderr.count("not loaded: ") == 2
    assert "ZeroDivisionError" in result.stderr


def test_where_plain_won_everywhere_nothing_is_to_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is a sentence and no error; with ``--json`` the sentence is no part of the output."""
    monkeypatch.setenv("SHAPEDISPATCH_MARGIN", "0.99")  # nothing wins against plain
    with imported(monkeypatch):
        done("tune", "ops:mlp", "M=2,3")
        assert "nothing is to be built for ops.mlp: it is best as written" in done("warm", "ops:mlp")
        assert json.loads(done("warm", "ops:mlp", "--json"))["choices"] == []


def test_nothing_to_build_is_an_error(app: Any) -> None:
    """Before anything is tuned."""
    assert "nothing that is to be built is stored for ops.mlp" in refused(1, "warm", "ops:mlp")


# tune --missed


def miss(app: Any) -> None:
    """Meet five calls in frozen mode: two of mlp, three of scale."""
    with set_mode("frozen"):
        app.mlp(torch.randn(5, 4), torch.randn(4, 2))
        app.mlp(torch.randn(4, 5).T, torch.randn(4, 2))
        app.scale(torch.randn(5, 4))
        with torch.inference_mode():
            app.scale(torch.randn(6, 4)[:, 1:], 3.5)
        app.scale(torch.randint(0, 9, (5, 4)), n=4)


def test_missed_calls_are_made_by_inputs(app: Any) -> None:
    """In the layout of each call; they are tuned and no longer missed."""
    miss(app)
    done("store", "export", "missed.json", "--kind", "missed")
    result = run("tune", "ops:mlp", "--missed", "missed.json")
    assert result.exit_code == 0
    assert "not tuned" not in result.stderr
    assert [row["kind"] for row in rows("mlp")].count("choice") == 2


def test_a_missed_call_that_inputs_does_not_make_is_told(app: Any) -> None:
    """One of another dtype than its tensors."""
    with set_mode("frozen"):
        app.mlp(torch.randn(5, 4).double(), torch.randn(4, 2).double())
        app.mlp(torch.randn(5, 4), torch.randn(4, 2))
    done("store", "export", "missed.json", "--kind", "missed")
    result = run("tune", "ops:mlp", "--missed", "missed.json")
    assert result.exit_code == 0
    assert "1 of 2 missed calls not tuned: the call that can be made is another one" in result.stderr
    assert len(rows("mlp", "--kind", "missed")) == 1


def test_missed_calls_are_made_of_random_numbers_only_if_that_is_said(app: Any) -> None:
    """Without ``inputs=`` it is refused; with ``--random`` every call is made anew, in its own grad mode."""
    miss(app)
    folder = done("store", "path").strip()
    assert "none of the 3 missed calls of ops.scale could be made again" in refused(
        1, "tune", "ops:scale", "--missed", folder
    )
    done("tune", "ops:scale", "--missed", folder, "--random")
    assert [row["kind"] for row in rows("scale")] == ["choice"] * 3


def test_a_method_cannot_be_made_of_its_key(app: Any) -> None:
    """An object is no part of a key, and that is said."""
    with set_mode("frozen"):
        app.Layer().forward(torch.randn(3))
    done("store", "export", "missed.json", "--kind", "missed")
    result = run("tune", "ops:Layer.forward", "--missed", "missed.json", "--random")
    assert result.exit_code == 1
    assert "an argument of type Layer cannot be made of a key" in result.stderr


def test_a_missed_call_of_a_method_is_made_by_inputs(app: Any) -> None:
    """Which makes the object, too; of a view with gaps as well."""
    with set_mode("frozen"):
        app.Scaled().forward(torch.randn(3))
        app.Scaled().forward(torch.randn(10)[::2])
    done("store", "export", "missed.json", "--kind", "missed")
    result = run("tune", "ops:Scaled.forward", "--missed", "missed.json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [row["kind"] for row in rows("forward")] == ["choice"] * 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("", "the file is not JSON"), ("{}", "the file is not one that a store exported")],
)
def test_a_file_that_holds_no_missed_calls_is_a_sentence(app: Any, content: str, sentence: str) -> None:
    """What is no export is told apart from an export without missed calls."""
    Path("missed.json").write_text(content)
    assert sentence in refused(1, "tune", "ops:mlp", "--missed", "missed.json")


def test_a_kernel_that_missed_nothing_is_told(app: Any) -> None:
    """An export of other rows holds no missed call."""
    done("tune", "ops:mlp", "M=2")
    done("store", "export", "table.json")
    assert "holds no missed call of ops.mlp" in refused(1, "tune", "ops:mlp", "--missed", "table.json")


# show and why


@pytest.fixture
def tuned(app: Any) -> Any:
    """Two sizes of mlp are stored."""
    done("tune", "ops:mlp", "M=2,64")
    return app


def test_choices_are_shown_by_name_and_size(tuned: Any) -> None:
    """The call stands in words; with the dispatcher named, sizes stand by their dims."""
    assert "float32[64,4], float32[4,2]" in done("show")
    assert "M=64, K=4, N=2" in done("show", "--target", "ops:mlp")


@pytest.mark.parametrize("encoding", ["ascii", "cp932", "latin-1"])
def test_a_terminal_without_a_letter_is_shown_the_others(tuned: Any, encoding: str) -> None:
    """Units have a µ, frames have lines."""
    result = runner(charset=encoding).invoke(main, ["show"])
    assert result.exit_code == 0, result.exception
    assert "plain" in result.stdout


def test_nobody_who_reads_is_no_error(tuned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of any command whose output is cut."""

    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("shapedispatch.cli.console.click.echo", closed)
    result = run("show", "--json")
    assert result.exit_code == 1
    assert result.stderr == ""


def test_choices_can_be_sorted(tuned: Any) -> None:
    """By any column, either way."""
    sizes = [row["sizes"]["arg0.0"] for row in rows("--sort", "call")]
    assert sizes == [2, 64]
    assert [row["sizes"]["arg0.0"] for row in rows("--sort", "call", "--reverse")] == [64, 2]
    for column in ("kernel", "variant", "device", "time", "gain"):
        assert len(rows("--sort", column)) == 2


def test_choices_can_be_filtered(tuned: Any) -> None:
    """By kernel, variant, device and kind; where nothing is left that is a sentence."""
    assert len(rows("ops", "--device", "cpu", "--kind", "choice")) == 2
    assert "nothing is stored for nope; there is ops.mlp" in refused(1, "show", "nope")
    assert "none of the 2 rows" in refused(1, "show", "--variant", "nope")
    assert "of kind hint" in refused(1, "show", "--kind", "hint")


def test_an_empty_store_is_a_sentence() -> None:
    """Wherever choices are needed and there are none."""
    for command in ("show", "why ab", "plot x", "store export x.json", "store prune --kernel x"):
        assert "nothing is stored in" in refused(1, *command.split())
    assert not Path("x.json").exists()


def test_why_tells_all_of_a_row(tuned: Any) -> None:
    """Timings of every candidate, the key, and what it was made with."""
    row = rows()[0]
    text = done("why", row["id"])
    assert "plain" in text
    assert "mm" in text
    assert '{"dtype":"float32"}' in text
    assert f"torch: {torch.__version__}" in text
    assert json.loads(done("why", row["id"], "--json"))["key"].startswith("[[")


def test_why_needs_one_row(tuned: Any) -> None:
    """An id that begins no row, or several."""
    assert "no row of" in refused(2, "why", "zz")
    assert "2 rows of" in refused(2, "why", "")


def test_why_asks_a_dispatcher_without_deciding(tuned: Any) -> None:
    """Nothing is timed; with ``--tune`` it is, and refusals come with their reasons."""
    before = tuned.mlp.cache_info().timings
    text = done("why", "ops:mlp", "M=7")
    assert "nothing is decided for this call" in text
    assert tuned.mlp.cache_info().timings == before
    told = done("why", "ops:mlp", "M=7", "--tune")
    assert "wrong" in told
    assert "shares other memory" in told
    assert json.loads(done("why", "ops:mlp", "M=7", "--json"))["sizes"]["M"] == 7


def test_why_asks_of_one_call(tuned: Any) -> None:
    """Several sizes are not one call, and a call that cannot be made is told."""
    assert "one call has one size of each dim" in refused(2, "why", "ops:mlp", "M=2,3")
    assert "these are 0" in refused(2, "why", "ops:mlp")
    assert "ZeroDivisionError" in refused(1, "why", "ops:broken", "M=2")


# store


def test_the_store_says_where_it_is_and_what_it_holds(tuned: Any) -> None:
    """Path for a shell, numbers for a program."""
    path = done("store", "path").strip()
    assert Path(path).is_dir()
    assert json.loads(done("store", "stats", "--json"))["rows"] == {"choice": 2}
    assert "2 of kind choice" in done("store", "stats")


def test_what_is_undecided_is_shown_as_such(tuned: Any) -> None:
    """In the list, in the numbers, in what is said of one row, and for a program."""
    (row, other) = Store(done("store", "path").strip()).rows(kind="choice")
    made = {"hard": row.hard, "soft": row.soft, "timings": row.timings, "undecided": "2 samples"}
    Store(done("store", "path").strip()).prune(kernel=row.kernel)
    for one in (Row.make(row.kernel, row.key, variant=row.variant, **made), other):
        Store(done("store", "path").strip()).put(one)
    assert done("show").count("choice, undecided") == 1
    assert sorted(one["undecided"] for one in rows()) == ["", "2 samples"]
    assert "2 of kind choice; 1 undecided" in done("store", "stats")
    assert "undecided: 2 samples" in done("why", row.identity[:10])
    assert "it is used" in done("store", "why", row.identity[:10])
    assert "later calls verify it: it is undecided, 2 samples" in done("store", "why", row.identity[:10])


def test_a_merge_leaves_what_is_decided(tuned: Any) -> None:
    """An undecided choice of another machine does not take its place, and is not counted as taken."""
    row = Store(done("store", "path").strip()).rows(kind="choice")[0]
    made = {"hard": row.hard, "soft": row.soft, "timings": row.timings, "undecided": "2 samples"}
    Path("theirs.json").write_text(rows_to_file([Row.make(row.kernel, row.key, variant="else", **made)]))
    assert "0 rows taken, 1 as they were" in done("store", "merge", "theirs.json")
    assert row in Store(done("store", "path").strip()).rows(kind="choice")


def test_a_table_travels(tuned: Any) -> None:
    """Exported, imported into another store, shown there; twice exported is the same file."""
    assert "2 rows" in done("store", "export", "one.json")
    assert "2 rows taken" in done("store", "import", "one.json", "--store", "other")
    done("store", "export", "two.json", "--store", "other")
    assert Path("one.json").read_bytes() == Path("two.json").read_bytes()
    assert len(rows("--store", "other")) == 2
    again = json.loads(done("store", "import", "one.json", "--json", "--store", "other"))
    assert again == {"taken": 0, "known": 2, "refused": []}


def test_one_kernel_can_be_exported(tuned: Any) -> None:
    """By part of its name, if that names one."""
    done("tune", "ops:scale", "--missed", _missed_of(tuned), "--random")
    assert "1 row written" in done("store", "export", "one.json", "--kernel", "scale")
    assert "3 rows of 2 kernels" in done("store", "export", "all.json")
    assert "is of one kernel" in refused(1, "store", "export", "one.json", "--kernel", "ops")


def _missed_of(app: Any) -> str:
    with set_mode("frozen"):
        app.scale(torch.randn(3, 4))
    done("store", "export", "missed.json", "--kind", "missed")
    return "missed.json"


def test_the_store_forgets_when_told(tuned: Any) -> None:
    """One kernel, what was not made here, or everything; and only if that is said."""
    assert "say which" in refused(2, "store", "prune")
    assert done("store", "prune", "--unlike-here", "--device", "cpu") == "0 rows removed\n"
    assert done("store", "prune", "--unlike-here", "--device", "cuda") == "2 rows removed\n"
    done("tune", "ops:mlp", "M=9")
    assert done("store", "prune", "--kernel", "ops.mlp") == "1 row removed\n"
    assert runner().invoke(main, ["store", "clear"], input="n\n").exit_code == 1
    assert "is empty" in done("store", "clear", "--yes")


def test_the_store_says_why_a_row_is_used(tuned: Any) -> None:
    """As it is; after the code changed it says so, with digests as a person compares them."""
    row = rows()[0]["id"]
    assert "it is used, if the kernel is still the same" in done("store", "why", row)
    assert "it is used\n" in done("store", "why", row, "--target", "ops:mlp")
    _change_the_kernel()
    text = done("store", "why", row, "--target", "ops:mlp")
    assert "its calls are timed again" in text
    assert all(len(word) < 40 for word in text.split())
    told = json.loads(done("store", "why", row, "--target", "ops:mlp", "--json"))
    assert (told["variant"], told["hard"], told["compared with a target"]) == (rows()[0]["variant"], [], True)
    assert any("code" in sentence for sentence in told["soft"])


def _change_the_kernel() -> None:
    Path("ops.py").write_text(APP.replace("torch.relu(x @ w)", "torch.relu(x @ w) + 0"))
    sys.modules.pop("ops")
    importlib.invalidate_caches()
    Path("__pycache__").exists() and [file.unlink() for file in Path("__pycache__").iterdir()]


def test_check_fails_where_the_kernel_changed_and_the_table_did_not(tuned: Any) -> None:
    """Exit code 0 while they fit; 1 after the code changed, and where the table holds nothing of the kernel."""
    done("store", "export", "table.json")
    assert "timed with the kernel as it is" in done("store", "check", "table.json", "ops:mlp")
    _change_the_kernel()
    result = run("store", "check", "table.json", "ops:mlp")
    assert result.exit_code == 1
    assert "before the kernel changed" in result.stdout
    assert "the function's code" in result.stdout
    told = run("store", "check", "table.json", "ops:mlp", "--json")
    assert told.exit_code == 1
    assert json.loads(told.stdout)["current"] is False
    assert run("store", "check", "table.json", "ops:scale").exit_code == 1


@pytest.mark.parametrize("command", [["store", "check", "no.json", "ops:mlp"], ["store", "import", "no.json"]])
def test_a_file_that_is_not_there_is_a_sentence(app: Any, command: list[str]) -> None:
    """Exit code 2: it was asked for wrongly."""
    assert "does not exist" in refused(2, *command)


def test_a_file_that_is_no_table_is_a_sentence(app: Any) -> None:
    """Exit code 1, and which file."""
    for command in (["store", "check", "ops.py", "ops:mlp"], ["store", "import", "ops.py"]):
        assert refused(1, *command) == "ops.py: the file is not JSON: Expecting value: line 2 column 1 (char 1)"


def test_a_folder_that_cannot_be_used_is_a_sentence(tuned: Any) -> None:
    """A store below a file, or one that others may write: exit code 1 and why."""
    done("store", "export", "table.json")
    Path("a_file").write_text("")
    assert "the store cannot be used" in refused(1, "store", "import", "table.json", "--store", "a_file/store")
    Path("open").mkdir()
    Path("open").chmod(0o777)
    assert "writable by others" in refused(1, "show", "--store", "open")
    assert "writable by others" in refused(1, "store", "stats", "--store", "open")


def test_a_place_that_cannot_be_written_is_a_sentence(tuned: Any) -> None:
    """The file that an operating-system error is about is named."""
    assert "nowhere/x.json: No such file or directory" in refused(1, "store", "export", "nowhere/x.json")
    assert refused(2, "plot", "ops.mlp", "-o", "nowhere/x.png") == "nowhere/x.png: there is no folder nowhere"


# plot and demo


@pytest.mark.parametrize("name", ["x.png", "x.svg"])
def test_a_kernel_of_the_store_is_drawn(tuned: Any, name: str) -> None:
    """PNG or SVG, by the ending."""
    assert done("plot", "ops.mlp", "-o", name, "--target", "ops:mlp", "--dim", "M") == f"drawn: {name}\n"
    assert Path(name).read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_what_tune_prints_is_drawn(app: Any) -> None:
    """The JSON of ``tune`` is a source of every picture."""
    Path("sweep.json").write_text(done("tune", "ops:mlp", "M=2,3", "K=4,5", "--json"))
    for kind in ("times", "ratio", "heat"):
        done("plot", "sweep.json", "--kind", kind, "-o", f"{kind}.svg")
        assert Path(f"{kind}.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("code", "arguments", "sentence"),
    [
        (2, ["nothere.json"], "there is no file nothere.json"),
        (2, ["ops.mlp", "-o", "x.gif"], "a picture is written as .png or .svg"),
        (1, ["ops.py"], "ops.py is not JSON"),
        (1, ["empty.json"], "there are no timings at named sizes in it"),
        (1, ["empty.json", "--kind", "shapes"], "nothing measured by number of shapes"),
        (1, ["ops.mlp", "--dim", "Q"], "ops.mlp has no dim Q; it has arg0.0"),
        (1, ["ops.mlp", "--kind", "heat"], "a heat map needs two dims"),
        (1, ["nope"], "nothing is stored for nope"),
    ],
)
def test_what_cannot_be_drawn_is_a_sentence(tuned: Any, code: int, arguments: list[str], sentence: str) -> None:
    """No file, no timings, no such dim, an unknown ending."""
    Path("empty.json").write_text("{}")
    assert sentence in refused(code, "plot", *arguments)


def test_without_matplotlib_plots_say_what_to_install(tuned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1 and the extra's name."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert refused(1, "plot", "ops.mlp") == (
        "plots need matplotlib, which is not installed: pip install 'shapedispatch[plot]'"
    )


def test_the_demo_runs_and_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """At tiny sizes: its tables, and with ``--plot`` a picture of the first."""
    from shapedispatch.cli import demo

    shows = demo.shows
    monkeypatch.setattr(demo, "shows", lambda device: shows("cpu", scale=64, exact=False))
    monkeypatch.setattr(demo, "LIMIT_S", 0.3)
    monkeypatch.setattr(demo, "AGAIN_S", 0.1)
    text = done("demo", "--plot", "demo.png")
    assert "softmax: µs a call" in text
    assert "drawn: demo.png" in text
    assert Path("demo.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("code", "name", "sentence"),
    [
        (2, "demo.gif", "demo.gif: a picture is written as .png or .svg"),
        (2, "nowhere/demo.png", "nowhere/demo.png: there is no folder nowhere"),
    ],
)
def test_a_picture_that_cannot_be_is_refused_before_the_demo(
    monkeypatch: pytest.MonkeyPatch, code: int, name: str, sentence: str
) -> None:
    """Nobody waits for tables to be told that their picture cannot be written."""
    monkeypatch.setattr("shapedispatch.cli.demo.main", lambda: pytest.fail("it ran"))
    assert refused(code, "demo", "--plot", name) == sentence


def test_a_picture_where_nothing_may_be_written_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Access is asked for, since a privileged user may write anywhere."""
    monkeypatch.setattr("shapedispatch.cli.demo.main", lambda: pytest.fail("it ran"))
    monkeypatch.setattr("shapedispatch.cli.main.os.access", lambda path, how: False)
    assert refused(1, "demo", "--plot", "demo.png") == "demo.png: it cannot be written there"


def test_without_matplotlib_the_demo_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And runs without ``--plot``."""
    monkeypatch.setattr("shapedispatch.cli.demo.main", lambda: pytest.fail("it ran"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "plots need matplotlib" in refused(1, "demo", "--plot", "demo.png")


# errors that any command may meet


@pytest.mark.parametrize("command", [("show",), ("why", "abc"), ("store", "stats"), ("store", "clear", "--yes")])
def test_asking_makes_no_store(tmp_path: Path, command: tuple[str, ...]) -> None:
    """One that is not there is empty, and is made by the first choice that is kept."""
    place = tmp_path / "nowhere" / "store"
    assert run(*command, "--store", place).exit_code in (0, 1)
    assert not place.parent.exists()


@pytest.mark.parametrize("command", [("doctor", "it_is_no_python"), ("tune", "it_is_no_python:f", "M=2")])
def test_a_module_that_is_no_python_is_a_sentence(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    """Whichever command imports it."""
    Path("it_is_no_python.py").write_text("def f(:")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    assert refused(2, *command).startswith("the module it_is_no_python cannot be imported: SyntaxError")


def test_settings_that_a_module_meets_are_no_fault_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the variable alone."""
    from shapedispatch.settings import resolve

    Path("it_decorates.py").write_text("from shapedispatch import shapedispatch\n@shapedispatch\ndef f(x): return x\n")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.setenv("SHAPEDISPATCH_MODE", "never")
    resolve.reset()
    assert refused(1, "tune", "it_decorates:f", "M=2").startswith("environment, SHAPEDISPATCH_MODE: found 'never'")


def test_where_nobody_watches_there_is_no_bar(app: Any) -> None:
    """Not even an empty line, once the mistake in one of the variants is told."""
    run("tune", "ops:mlp", "M=2")
    assert run("tune", "ops:mlp", "M=2").stderr == ""


def test_a_wrong_setting_is_a_sentence(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment or in a file that was named: exit code 1 with what is allowed."""
    from shapedispatch.settings import resolve

    monkeypatch.setenv("SHAPEDISPATCH_MODUS", "tune")
    resolve.reset()
    assert "Did you mean SHAPEDISPATCH_MODE?" in refused(1, "show")


def test_warnings_are_lines(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library warns of stands on the standard error as a line, without a place in its code."""
    import warnings

    def warned(*_: Any) -> Choice:
        warnings.warn("something was odd", stacklevel=2)
        return Choice("plain", "only")

    monkeypatch.setattr(app.mlp, "tune", warned)
    monkeypatch.setattr(app.mlp, "tune", lambda *args, **kwargs: warned())
    result = run("tune", "ops:mlp", "M=2")
    assert "Warning: something was odd\n" in result.stderr


def test_tables_are_merged_by_the_mean_of_their_times(app: Any) -> None:
    """And stand in the store then, as often as it is done."""
    done("tune", "ops:mlp", "M=2")
    done("store", "export", "one.json")
    (found,) = json.loads(Path("one.json").read_text())["rows"]
    row = Row.from_json(found)
    times = [0.001 if timing.variant != row.variant else 1e6 for timing in row.timings]
    timings = [replace(timing, median_us=took_us) for timing, took_us in zip(row.timings, times, strict=True)]
    won = next(timing.variant for timing in timings if timing.variant != row.variant)
    other = Row.make(row.kernel, row.key, hard=row.hard, soft=row.soft, variant=won, timings=timings)
    Path("two.json").write_text(rows_to_file([other]))
    assert "1 row taken, 0 as they were, 0 refused" in done("store", "merge", "one.json", "two.json")
    (kept,) = json.loads(done("show", "--json"))
    assert kept["variant"] == won
    assert "0 rows taken, 1 as they were" in done("store", "merge", "two.json", "one.json")


def test_tables_of_other_code_are_not_merged(app: Any) -> None:
    """It says what differs, and where."""
    done("tune", "ops:mlp", "M=2")
    done("store", "export", "one.json")
    (found,) = json.loads(Path("one.json").read_text())["rows"]
    row = Row.from_json(found)
    soft = {**row.soft, "code": "0" * 64}
    other = Row.make(row.kernel, row.key, hard=row.hard, soft=soft, variant="plain", timings=row.timings)
    Path("two.json").write_text(rows_to_file([other]))
    result = run("store", "merge", "one.json", "two.json")
    assert "0 rows taken, 0 as they were, 1 refused" in result.stdout
    assert "the function's code, closure values or globals is 00000000 in two.json" in result.stderr


def test_where_nothing_is_kept_there_is_no_store_to_look_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the folder that there would be, which another program may keep its choices in."""
    monkeypatch.setenv("SHAPEDISPATCH_STORE", "false")
    for command in (["show"], ["store", "path"], ["store", "clear", "--yes"]):
        assert "the setting store is false" in refused(1, *command)
