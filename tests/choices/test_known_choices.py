"""Choices between processes. Most tests make a dispatcher anew where a process would start: it shares nothing but the
store with the one before. The first few start processes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shapedispatch import Store, Variant, set_mode, shapedispatch
from shapedispatch.choices import known_choices
from shapedispatch.functions import builder
from shapedispatch.functions.compile import tracer
from shapedispatch.functions.compile.build import Build
from shapedispatch.keys.identity import Environment
from shapedispatch.settings import resolve
from shapedispatch.store import kernel_store
from shapedispatch.store.kernel_store import KernelStore
from shapedispatch.store.store import Row
from shapedispatch.store.tables import file_name
from tests import forked
from tests.faults import ERRORS, Faults, faulty
from tests.helpers import Ladder, assert_same, built, no_time

pytestmark = [pytest.mark.usefixtures("unhurried"), pytest.mark.operators_called]

ROOT = Path(__file__).parent.parent.parent


def call(rows: int) -> Tensor:
    """An argument of that many rows."""
    return torch.linspace(-1, 1, rows * 8).reshape(rows, 8)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """What processes of this test share."""
    return Store(tmp_path / "store")


def waves(x: Tensor) -> Tensor:
    """Something worth fusing."""
    return torch.sin(x) * 2 + torch.cos(x)


def written_otherwise(x: Tensor) -> Tensor:
    """The same numbers."""
    return waves(x)


def wrong(x: Tensor) -> Tensor:
    """Other numbers."""
    return waves(x) + 1


def wrong_when_long(x: Tensor) -> Tensor:
    """Right for a few rows."""
    return waves(x) + (len(x) > 10)


def process(fn: Callable[..., Any], store: Any, timed: bool = False, **given: Any) -> Any:
    """The dispatcher that a process which starts has; where it may time, the last variant wins that is right."""
    builder.made.clear()  # of the process before
    kernel_store._kernel_stores.clear()
    said = {"dims": {"x": "M K"}, "hints": {"M": (8,)}, "static": ("K",), "name": "waves", **given}
    dispatcher = shapedispatch(**said, store=store)(fn)
    dispatcher.core.timer_for = (lambda *_: Ladder()) if timed else no_time
    return dispatcher


def supplied(store: Any, timed: bool = False, fn: Any = waves, variants: Any = (written_otherwise,)) -> Any:
    """One that has no builds, so that its tests compile nothing."""
    return process(fn, store, timed, hints=(), variants=list(variants))


def forge(store: Store, **changes: Any) -> None:
    """Change each row that is there."""
    for row in store.rows():
        given = {"hard": row.hard, "soft": row.soft, "variant": row.variant, "config": row.config, **changes}
        store.put(Row.make(row.kernel, row.key, timings=row.timings, **given), instead=True)


# -- processes

SCRIPT = """
import json, sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "plain")  # its variant is wrong, and that is told
import torch
from torch import nn
from shapedispatch.dispatch import dispatcher as core; from shapedispatch import shapedispatch
from tests.helpers import Ladder, no_time

torch.set_num_threads(1)
cold = sys.argv[1] == "cold"
if len(sys.argv) == 2:  # what code computes is no matter of this, and what runs plain alone has no compiler
    import torch._inductor.config
    torch._inductor.config.fallback_by_default = True
core.timer = (lambda *_: Ladder()) if cold else no_time
declared = {"dims": {"x": "M K"}, "static": ("K",)}

def waves(x): return torch.sin(x) * 2 + torch.cos(x)

hinted = shapedispatch(hints={"M": (8, 64)}, **declared)(waves)
exact = shapedispatch(hints=(), exact=True, name="exact")(waves)
bare = shapedispatch(name="bare")(waves)
supplied = shapedispatch(hints=(), variants=[lambda x: waves(x)], name="supplied")(waves)
plain = shapedispatch(hints=(), variants=[lambda x: waves(x) + 1], name="plain")(waves)
scaled = [shapedispatch(hints={"M": (8,)}, name="scaled", **declared)(lambda x, by=by: x.sin() * by) for by in (2, 3)]

@shapedispatch(hints={"M": (8,)}, name="writer", **declared)
def writer(x):
    x += torch.sin(x)
    return torch.cos(x)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((8,), 2.0))

    @shapedispatch(hints={"M": (8,)}, **declared)
    def forward(self, x):
        return torch.sin(x * self.weight) if self.training else torch.cos(x * self.weight)

layer = Layer()
told = {}
for fn, name in [(plain, "plain"), (supplied, "supplied"), (hinted, "hinted"), (exact, "exact"), (bare, "bare"),
                 (writer, "writer"), (scaled[0], "scaled 2"), (scaled[1], "scaled 3"), (layer, "layer")]:
    if len(sys.argv) > 2 and name not in sys.argv[2:]:
        continue
    for rows in (16, 100, 30):
        x = torch.linspace(-1, 1, rows * 8).reshape(rows, 8)
        given = x.clone()
        of = Layer.forward if fn is layer else fn
        expected = of.__wrapped__(*((layer, x.clone()) if fn is layer else (x.clone(),)))
        torch.testing.assert_close(fn(x), expected)
        args = (layer, given) if fn is layer else (given,)
        choice = of.explain(*args)
        told.setdefault(name, {"chosen": []})["chosen"].append([choice.variant, choice.origin])
    info = of.cache_info()
    told[name] |= {"builds": info.builds, "timings": info.timings, "held": info.builds_held}
told["dynamo"] = "torch._dynamo" in sys.modules
print(json.dumps(told))
"""


def run(tmp_path: Path, *words: str) -> dict[str, Any]:
    """What a process tells; its store is this test's."""
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    imported = forked.COMPILES if words == ("cold",) else forked.TORCH  # the others tell whether they import Dynamo
    ran = forked.python("script.py", *words, env=env, folder=tmp_path, imported=imported)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])  # type: ignore[no-any-return]  # as printed by the script


def test_a_second_process_times_nothing_and_builds_what_was_chosen(tmp_path: Path) -> None:
    """Over the same store: every kind of dispatcher, in a process whose stopwatches fail.

    What was chosen to be plain does not even import Dynamo.
    """
    cold, warm, plain = run(tmp_path, "cold"), run(tmp_path, "warm"), run(tmp_path, "warm", "plain")
    for name, told in cold.items():
        if name == "dynamo":
            continue
        assert [variant for variant, _ in warm[name]["chosen"]] == [variant for variant, _ in told["chosen"]], name
        assert {origin for _, origin in warm[name]["chosen"]} == {"stored"}, name
        variants = [variant for variant, _ in told["chosen"]]
        chosen = variants.count("exact") + len({variant for variant in variants if variant.startswith("hint[")})
        assert (warm[name]["timings"], warm[name]["held"]) == (0, chosen), name
        assert warm[name]["builds"] <= chosen, name
    chosen = {name: [variant for variant, _ in told["chosen"]] for name, told in cold.items() if name != "dynamo"}
    assert chosen["plain"] == ["plain"] * 3
    assert chosen["supplied"] == ["<lambda>"] * 3
    assert set(chosen["exact"]) == {"exact"}
    assert chosen["bare"][0] == "exact"
    for name in ("hinted", "bare", "writer", "scaled 2", "scaled 3", "layer"):
        assert chosen[name][-1].startswith("hint["), name
    assert (warm["dynamo"], plain["dynamo"], plain["plain"]["chosen"]) == (True, False, [["plain", "stored"]] * 3)


# -- judged afresh


GAIN = [torch.ones(8)]


def gained(x: Tensor) -> Tensor:
    """By what the process has."""
    return x * GAIN[0]


def test_what_was_stored_is_compared_by_no_backward_through_what_was_computed_before(store: Store) -> None:
    """An alternative that may not be compared with plain is not run; the graph is there for its owner."""
    GAIN[0] = torch.ones(8, requires_grad=True)
    x = call(4).requires_grad_()
    first = supplied(store, timed=True, fn=gained, variants=(lambda x: GAIN[0] * x,))
    first(x)
    assert first.explain(x).variant == "<lambda>"
    base = torch.ones(8, requires_grad=True)
    GAIN[0] = base.exp()
    second = supplied(store, timed=True, fn=gained, variants=(lambda x: GAIN[0] * x,))
    second(x).sum().backward()
    assert base.grad is not None
    assert second.explain(x).variant == "plain"
    assert any("computed before the call" in note for note in second.explain(x).notes)


def test_numbers_are_checked_once_a_class(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a build: once in a process, not at each shape."""
    first = process(waves, store, timed=True)
    for rows in (16, 20, 30):
        first(call(rows))
    checked = []
    judge = known_choices.refusal
    monkeypatch.setattr(known_choices, "refusal", lambda *args: checked.append(args[0].name) or judge(*args))
    again = process(waves, store)
    for rows in (16, 20, 30):
        assert_same(again(call(rows)), waves(call(rows)))
        assert again.explain(call(rows)).origin == "stored"
    assert checked == ["hint[M=8]"]
    x = call(16).requires_grad_()
    again.core.timer_for = lambda *_: Ladder()
    again(x)
    assert checked == ["hint[M=8]"]


def test_a_supplied_variant_is_checked_at_each_key(store: Store) -> None:
    """Nobody knows at which sizes it is right."""
    first = supplied(store, True, variants=[wrong_when_long])
    for rows in (4, 16):
        first(call(rows))
    assert first.explain(call(16)).variant == "plain"
    forge(store, variant="wrong_when_long")
    again = supplied(store, True, variants=[wrong_when_long])
    for rows in (4, 16):
        assert_same(again(call(rows)), waves(call(rows)))
    assert again.explain(call(4)).origin == "stored"
    assert again.explain(call(16)).variant == "plain"


FORGED = [
    "nonsense", "", "exact", "hint[]", "hint[M=0]", "hint[M=1]", "hint[M=7]", "hint[M=²]", "hint[N=8]", "hint[K=8]",
    "hint[M=8,K=8]", f"hint[M={2**70}]", f"hint[M={'9' * 900}]", "hint[M=8,M=8]", "__import__('os')", "wrong",
]  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_name_costs_time_and_is_replaced(store: Store, name: str) -> None:
    """The answer is plain's, the shape is timed again and says why, and the next process finds what was timed."""
    said = {"variants": [Variant(wrong), Variant(written_otherwise)]}
    process(waves, store, timed=True, **said)(call(16))
    forge(store, variant=name)
    again = process(waves, store, timed=True, **said)
    assert_same(again(call(16)), waves(call(16)))
    choice = again.explain(call(16))
    assert (choice.variant, choice.origin) == ("written_otherwise", "timed")
    assert f"{name} was stored, and cannot be used for this call" in choice.notes
    assert [row.variant for row in store.rows()] == ["written_otherwise"]
    assert again.cache_info().builds == 1


@pytest.mark.parametrize("config", ['"BLOCK: 4"', "[[[[[[[[1]]]]]]]]", '{"__class__": 1}', "1e999"])
def test_a_forged_config_is_nothing_to_a_function(store: Store, config: str) -> None:
    """It has none, and shows none."""
    supplied(store, True)(call(16))
    forge(store, config=config)
    again = supplied(store)
    assert_same(again(call(16)), waves(call(16)))
    assert again.explain(call(16)).config is None


def test_a_build_that_is_wrong_is_not_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored or not: its numbers are looked at before its first answer."""
    process(waves, store, timed=True)(call(16))
    again = process(waves, store, timed=True)
    monkeypatch.setattr(Build, "run", property(lambda build: wrong))
    assert_same(again(call(16)), waves(call(16)))
    assert again.explain(call(16)).variant == "plain"


def test_a_variant_that_no_longer_may_run_is_not_used(store: Store) -> None:
    """What its ``when`` says now counts."""
    supplied(store, True)(call(16))
    why = Variant(written_otherwise, when=lambda x: "it is out of order")
    again = supplied(store, True, variants=[why])
    assert_same(again(call(16)), waves(call(16)))
    assert again.explain(call(16)).variant == "plain"


def test_where_copies_are_too_large_a_supplied_variant_is_not_trusted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers cannot be looked at; a build's come from the compiler."""
    supplied(store, True)(call(16))
    process(waves, store, timed=True, name="of a build")(call(16))
    monkeypatch.setenv("SHAPEDISPATCH_COPY_LIMIT", "0")
    core_settings = sys.modules["shapedispatch.settings.resolve"]
    core_settings.reset()
    again = supplied(store)
    again(call(16))
    assert again.explain(call(16)).variant == "plain"
    again = process(waves, store, name="of a build")
    again(call(16))
    assert (again.explain(call(16)).variant, again.explain(call(16)).origin) == ("hint[M=8]", "stored")


# -- other circumstances


def test_soft_differences(store: Store) -> None:
    """Used when frozen, timed again and replaced in tune, and shown either way."""
    supplied(store, True)(call(16))
    (row,) = store.rows()
    forge(store, soft={**row.soft, "torch": "1.13"})
    again = supplied(store)
    with set_mode("frozen"):
        assert_same(again(call(16)), waves(call(16)))
        choice = again.explain(call(16))
        assert (choice.variant, choice.origin) == ("written_otherwise", "stored")
        assert "stored where torch was 1.13 when this was stored" in str(choice)
    again.core.timer_for = lambda *_: Ladder()
    again(call(16))
    choice = again.explain(call(16))
    assert choice.origin == "timed"
    assert "written_otherwise was stored, and timed again: torch was 1.13" in str(choice)
    assert store.rows() == [row]


def test_a_contest_takes_no_undecided_choice_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is held once, so that what won in a slow spell would stand for ever; where calls are samples, none is held."""
    supplied(store, True)(call(16))
    (row,) = store.rows()
    store.clear()
    store.put(Row.make(row.kernel, row.key, hard=row.hard, soft=row.soft, variant="plain", undecided="2 samples"))
    again = supplied(store)
    assert again.explain(call(16)).origin == "unseen"
    with set_mode("frozen"):
        again(call(16))
        assert "stored, though undecided there: 2 samples" in again.explain(call(16)).notes
    again.core.timer_for = lambda *_: Ladder()
    again(call(16))
    assert "plain was stored, and timed again: undecided there, 2 samples" in again.explain(call(16)).notes
    assert store.rows() == [row]


def test_hard_differences(store: Store) -> None:
    """What is stored for another device is not found."""
    supplied(store, True)(call(16))
    (row,) = store.rows()
    store.clear()
    store.put(dataclasses.replace(Row.make(row.kernel, row.key, hard={"family": "x"}, soft={}, variant="plain")))
    again = supplied(store, True)
    again(call(16))
    assert again.explain(call(16)).origin == "timed"


def test_explain_tells_why_nothing_is_known(store: Store) -> None:
    """Of a shape that was never called: nothing stored, another shape stored, this one stored."""
    first = supplied(store, True)
    assert "nothing is stored for waves" in str(first.explain(call(16)))
    first(call(16))
    again = supplied(store)
    assert "16 and this call has 20" in str(again.explain(call(20)))
    choice = again.explain(call(16))
    assert (choice.variant, choice.origin) == ("written_otherwise", "stored")
    assert "nothing is built in this process yet" in str(choice)
    assert again.cache_info().builds == again.cache_info().currsize == 0


def test_a_shipped_file(store: Store, tmp_path: Path) -> None:
    """Given at the decorator in a Store; the user's own rows come first."""
    supplied(store, True)(call(16))
    file = tmp_path / "shipped.json"
    assert store.export(file) == 1
    own = Store(tmp_path / "own", shipped=[file])
    again = supplied(own)
    assert_same(again(call(16)), waves(call(16)))
    assert again.explain(call(16)).origin == "shipped"
    assert own.rows() == []
    again.core.timer_for = lambda *_: Ladder()
    again.tune(call(16))
    again = supplied(own)
    again(call(16))
    assert again.explain(call(16)).origin == "stored"


@pytest.fixture
def table(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's table for this machine, made of what another process has found; and tables are not off."""
    supplied(store, True)(call(16))
    (row,) = store.rows()
    name = file_name(Environment(row.hard, row.soft))
    assert name is not None
    (tmp_path / "package").mkdir()
    store.export(tmp_path / "package" / name)
    monkeypatch.setattr("shapedispatch.store.tables.FOLDER", tmp_path / "package")
    monkeypatch.delenv("SHAPEDISPATCH_TABLES")
    resolve.reset()
    return tmp_path / "package" / name


def test_a_table_of_the_package_answers_untimed(table: Path, tmp_path: Path) -> None:
    """From the first call on; `explain` says so before and after it, and the user's store stays empty."""
    own = Store(tmp_path / "own")
    again = supplied(own)
    assert again.explain(call(16)).origin == "shipped"
    assert_same(again(call(16)), waves(call(16)))
    choice = again.explain(call(16))
    assert (choice.variant, choice.origin) == ("written_otherwise", "shipped")
    assert again.cache_info().timings == 0
    assert own.rows() == []


@pytest.mark.parametrize("given", [{"store": False}, {"SHAPEDISPATCH_TABLES": "false"}])
def test_tables_of_the_package_can_be_off(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """By their own setting, and where nothing is stored nothing is read."""
    if "SHAPEDISPATCH_TABLES" in given:
        monkeypatch.setenv("SHAPEDISPATCH_TABLES", given["SHAPEDISPATCH_TABLES"])
        resolve.reset()
    table.write_bytes(b"what would be warned of, if it were read")
    again = supplied(given.get("store", Store(tmp_path / "own")), True)
    again(call(16))
    assert again.explain(call(16)).origin == "timed"


def test_a_sealed_process_asks_no_table_of_the_package(table: Path, tmp_path: Path) -> None:
    """What it names is not built, and `load` would not build it: `on_miss` answers, without a warning."""
    again = supplied(Store(tmp_path / "own"))
    with set_mode("sealed", on_miss="plain"):
        again(call(16))
        assert again.explain(call(16)).origin == "nearest"


def test_a_path_at_the_decorator(tmp_path: Path) -> None:
    """Text or Path."""
    supplied(tmp_path / "here", True)(call(16))
    again = supplied(str(tmp_path / "here"))
    again(call(16))
    assert again.explain(call(16)).origin == "stored"


# -- one process and another


def test_what_another_process_stored_meanwhile_is_taken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """While this one was timing."""
    supplied(store, True)(call(16))
    forge(store, variant="plain")
    monkeypatch.setattr(KernelStore, "find", lambda *_: None)
    again = supplied(store, True)
    again(call(16))
    assert (again.explain(call(16)).variant, again.explain(call(16)).origin) == ("plain", "stored")


def test_tune_replaces_what_is_stored(store: Store) -> None:
    """It decides anew."""
    supplied(store, True)(call(16))
    forge(store, variant="plain")
    again = supplied(store, True)
    again(call(16))
    assert again.explain(call(16)).variant == "plain"
    assert again.tune(call(16)).variant == "written_otherwise"
    assert [row.variant for row in store.rows()] == ["written_otherwise"]


def test_choices_survive_a_clear(store: Store) -> None:
    """They are read again."""
    dispatcher = supplied(store, True)
    dispatcher(call(16))
    dispatcher.cache_clear()
    dispatcher.core.timer_for = no_time
    dispatcher(call(16))
    assert dispatcher.explain(call(16)).origin == "stored"


def test_a_forced_variant_is_not_overruled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stored choice; and it is not stored."""
    supplied(store, True)(call(16))
    monkeypatch.setenv("SHAPEDISPATCH_PICK", "plain")
    sys.modules["shapedispatch.settings.resolve"].reset()
    again = supplied(store)
    again(call(16))
    assert (again.explain(call(16)).variant, again.explain(call(16)).origin) == ("plain", "pinned")
    assert [row.variant for row in store.rows()] == ["written_otherwise"]


def test_a_function_that_writes_finds_its_choices(store: Store) -> None:
    """Its keys hold overlaps from when it is known to write, which a process that starts does not know."""

    def add(x: Tensor) -> Tensor:
        return x.add_(torch.sin(x))

    first = process(add, store, timed=True)
    for rows in (16, 20):
        first(call(rows))
    again = process(add, store)
    for rows in (20, 16):
        assert_same(again(call(rows)), add(call(rows)))
        assert again.explain(call(rows)).origin == "stored"


def test_a_bare_dispatcher_knows_axes_that_it_has_not_seen_vary(store: Store) -> None:
    """From the store: the build for a hint is made at the first call."""
    said = {"dims": {}, "hints": (8, 64), "static": ()}
    first = process(waves, store, timed=True, **said)
    for rows in (16, 20):
        first(call(rows))
    assert first.explain(call(20)).variant == "hint[x.0=8]"
    again = process(waves, store, **said)
    assert_same(again(call(20)), waves(call(20)))
    assert (again.explain(call(20)).variant, again.explain(call(20)).origin) == ("hint[x.0=8]", "stored")
    assert again.cache_info().builds == 1
    again(call(16))
    assert again.explain(call(16)).variant == "exact"


def test_one_name_and_two_functions(store: Store) -> None:
    """Each has rows of its own."""
    said = {"hints": (), "name": "one name", "store": store}
    both = [built(**said, variants=[lambda x, by=by: x * by])(lambda x, by=by: x * by) for by in (2, 3)]
    for dispatcher in both:
        dispatcher(call(16))
    assert sorted(row.kernel for row in store.rows()) == ["one name", "one name#2"]


class Doubler(nn.Module):
    """A module with a decorated method."""

    def forward(self, x: Tensor) -> Tensor:
        """Twice."""
        return torch.sin(x) * 2 if self.training else torch.sin(x) * 3


def test_a_method_in_two_states(store: Store) -> None:
    """One row for the type; in each state the build is made for that state, and nothing is timed."""
    plain, module = Doubler.forward, Doubler()
    first = process(plain, store, timed=True)
    first(module, call(16))
    again = process(plain, store)
    for mode in (True, False, True):
        module.train(mode)
        assert_same(again(module, call(16)), plain(module, call(16)))
        assert again.explain(module, call(16)).variant == "hint[M=8]"
    assert again.cache_info().builds == 2


def test_threads_that_start_together(store: Store) -> None:
    """All get plain's answer, and nothing is timed."""
    supplied(store, True)(call(16))
    again = supplied(store)
    ready, answers = threading.Barrier(8), []

    def work() -> None:
        ready.wait()
        answers.extend(again(call(16)) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 160
    for answer in answers:
        assert_same(answer, waves(call(16)))
    assert again.explain(call(16)).origin == "stored"


# -- a store in trouble


def unwritable(folder: Path) -> None:
    """Nothing may be made in it, not even by root: it is a file."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_text("no folder")


def damaged(folder: Path) -> None:
    """Each file is cut in the middle of a page and has other bytes."""
    for file in folder.iterdir():
        if file.is_file():
            file.write_bytes(b"\xff" * (file.stat().st_size // 2 + 1))


@pytest.mark.parametrize("harm", [unwritable, damaged, shutil.rmtree], ids=["unwritable", "damaged", "removed"])
@pytest.mark.parametrize("when", ["before", "while running"])
def test_a_store_in_trouble(store: Store, harm: Callable[[Path], Any], when: str) -> None:
    """The call answers as plain does, with one warning at most; afterwards there are choices as ever."""
    supplied(store, True)(call(16))
    if when == "before":
        store.close()
        harm(store.path)
    one = Store(store.path)
    again = supplied(one, True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for rows in (16, 20):
            assert_same(again(call(rows)), waves(call(rows)))
            if when == "while running" and rows == 16:
                store.close()
                harm(store.path)
        for rows in (30, 16, 20):
            assert_same(again(call(rows)), waves(call(rows)))
            assert again.explain(call(rows)).variant == "written_otherwise"
        again.cache_clear()
        assert_same(again(call(30)), waves(call(30)))
    assert len(told) <= 1, [str(each.message) for each in told]


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("look_up", [False, True])
def test_calls_answer_whatever_the_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_up: bool, reproducible: bool
) -> None:
    """The first operation of a store fails, the second, ..., once or from then on: each call answers as plain does."""
    before, number, count = tmp_path / "before", 0, 1
    traced: list[Any] = []  # once: what the function does is no matter of the store
    trace = tracer.trace

    def once(*args: Any, **said: Any) -> Any:
        if not traced:
            traced.append(trace(*args, **said))
        return traced[0]

    monkeypatch.setattr(tracer, "trace", once)
    supplied(Store(before), True)(call(16))
    while number < count:
        number += 1
        store = Store(tmp_path / f"store {number}")
        if look_up:
            shutil.copytree(before, store.path)
        codes = list(ERRORS)
        faults = Faults(codes[number % len(codes)], lambda n, at=number: n >= at if reproducible else n == at)  # type: ignore[misc]
        again = supplied(store, True)
        with warnings.catch_warnings(record=True) as told, faulty(faults):
            warnings.simplefilter("always")
            assert_same(again(call(16)), waves(call(16)))
            assert again.explain(call(16)).variant == "written_otherwise"
            store.close()
        assert len(told) <= 1, [str(each.message) for each in told]
        count = max(count, faults.count)
    assert count > 10


def test_a_warning_that_is_an_error_harms_no_later_call(store: Store) -> None:
    """It is raised once, where the user asked for that, and the lock is free."""
    unwritable(store.path)
    dispatcher = supplied(store, True)
    with pytest.raises(RuntimeWarning, match="store"):
        dispatcher(call(16))
    assert_same(dispatcher(call(16)), waves(call(16)))
    assert dispatcher.explain(call(16)).origin == "timed"


def test_without_a_store_nothing_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    dispatcher = built(hints=(), variants=[written_otherwise], store=False)(waves)
    dispatcher(call(16))
    assert dispatcher.explain(call(16)).notes == ()
    assert not (tmp_path / "none").exists()


def test_that_nothing_but_plain_may_run_is_stored(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is a matter of the call: another process need not try again. Of the moment: it must."""
    process(waves, store)(call(1))
    monkeypatch.setattr(tracer, "trace", no_time)
    again = process(waves, store)
    again(call(1))
    assert (again.explain(call(1)).variant, again.explain(call(1)).origin) == ("plain", "stored")
    monkeypatch.setattr(tracer, "trace", unable)
    one = process(waves, store, name="without a compiler")
    with pytest.warns(UserWarning, match="no compiler"):
        one(call(16))
    assert [row.kernel for row in store.rows()] == ["waves"]


def unable(*_: Any, **__: Any) -> Any:
    """What tracing is where something is missing."""
    raise tracer.Untraceable("there is no compiler")
