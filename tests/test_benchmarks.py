"""The benchmarks' common parts, and that every number in the READMEs and in docs/ comes from a recorded result."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import json
import logging
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks import front_page, plots, quotes
from benchmarks.answers import ANSWERS, first_seconds, soundness
from benchmarks.documents import Result, newest, read, results_of
from tests import made_up_results
from tests.pages import anchors_of
from tests.paths import NO_COMPILER

FOLDER = plots.HERE
MEASURED = re.compile(r"\d[\d.,]*\s*(?:µs|ms|us|ns|×|MB|GB)(?!\w)")
COMMIT = re.compile(r"(?:\bat|\bcommit|\|) ([0-9a-f]{7,12})\b")
BEGINS_0_2 = "2767721"
OTHERS = ("first_calls", "online", "ranks", "repeatable", "soak", "false_refusals", "background_faults")
"""Scripts with results that are quoted or named, and have no paragraph of their own."""
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)

Load = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports a script as Python does when it is run: its own folder is on the path."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(FOLDER):
            del sys.modules[name]


def put(folder: Path, name: str, document: dict[str, Any]) -> Path:
    """A result in a folder."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return path


# The pages.


@pytest.mark.parametrize("page", plots.PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_the_numbers_of_a_page_are_those_of_the_results(page: Path) -> None:
    """Every number between the markers comes from a file: where this fails, run benchmarks/plots.py."""
    text = page.read_text("utf-8")
    assert plots.filled(text, plots.PAGES[page]) == text


def test_every_name_has_its_place_on_a_page() -> None:
    """Each script's answer on the benchmarks' page, each part on the project's or in docs/."""
    bench, *others = (page.read_text("utf-8") for page in plots.PAGES)
    assert {match[2] for match in plots.MARKED.finditer(bench)} == plots.ALL.keys()
    assert {match[2] for text in others for match in plots.MARKED.finditer(text)} == front_page.PARTS.keys()


@pytest.mark.parametrize("page", plots.PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_no_measured_number_is_written_by_hand(page: Path) -> None:
    """Outside the markers there is no time, no memory and no ratio, but for bars and tolerances that are said to be."""
    text = FENCED.sub("", plots.MARKED.sub("", page.read_text("utf-8")))
    lines = [line for line in text.splitlines() if MEASURED.search(line) and not line.startswith("Bar")]
    assert lines == []


def git(*words: str) -> subprocess.CompletedProcess[str]:
    """What git says of this checkout."""
    return subprocess.run(["git", *words], cwd=FOLDER, capture_output=True, text=True, check=False)


def test_the_commits_of_numbers_are_ancestors() -> None:
    """What was measured was code that led to this one; where there is no history, nobody can tell."""
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("there is no history here")
    texts = [match[0] for page in plots.PAGES for match in plots.MARKED.finditer(page.read_text("utf-8"))]
    commits = {commit for text in texts for commit in COMMIT.findall(text)}
    assert len(commits) > 5
    assert [one for one in commits if git("merge-base", "--is-ancestor", one, "HEAD").returncode] == []


def test_every_full_result_has_its_pictures() -> None:
    """Drawn and linked; a picture of no result is left nowhere."""
    text, expected = (FOLDER / "README.md").read_text("utf-8"), set()
    for name, answer in plots.ALL.items():
        for result in results_of(name):
            expected |= {result.picture(picture) for picture in answer.draw(result)}
    assert expected == set((FOLDER / "results").glob("*.svg"))
    for path in expected:
        assert f"(results/{path.name})" in text


@pytest.mark.parametrize("path", sorted((FOLDER / "results").glob("*.json")), ids=lambda path: path.stem)
def test_a_recorded_result_names_no_folder_of_a_machine(path: Path) -> None:
    """Neither somebody's home nor a temporary folder."""
    assert re.findall(r"/(?:home|root|tmp|Users|var/folders)/[^\s\"]*", path.read_text("utf-8")) == []


# What a result says.


@pytest.mark.parametrize("name", plots.ALL)
def test_a_result_is_told_and_drawn_as_soon_as_it_is_there(name: str, tmp_path: Path) -> None:
    """In the form that its script writes: where it ran, a table, a picture with device and versions in the corner."""
    put(tmp_path, f"{name}-a1", made_up_results.document(name))
    (result,) = results_of(name, tmp_path)
    assert plots.drawn(name, result)
    text = plots.paragraphs(name, tmp_path)
    assert text.startswith(
        "**NVIDIA A1 2GB** (torch 2.99.1+cu1, Triton 3.9, Python 3.12.0, commit 0123456789ab; `python"
    )
    assert "\n| --- |" in text
    for path in tmp_path.glob("*.svg"):
        assert f"(results/{path.name})" in text
        assert "nvidia a1 2gb, torch 2.99.1+cu1, triton 3.9" in path.read_text("utf-8").lower()


def test_a_model_has_one_picture_of_two_runs(tmp_path: Path) -> None:
    """Its first seconds alone, or beside them the steady state on the same device; no bar for what was not measured."""
    put(tmp_path, "cold_model-a1", made_up_results.document("cold_model"))
    (cold,) = results_of("cold_model", tmp_path)
    alone = first_seconds.draw_cold_model(cold)["picture"]
    assert [axes.get_title(loc="left").split(",")[0] for axes in alone.axes] == ["first seconds"]
    put(tmp_path, "models-b2", made_up_results.document("models", {**made_up_results.GPU, "device": "NVIDIA B2"}))
    assert len(first_seconds.draw_cold_model(cold)["picture"].axes) == 1
    put(tmp_path, "models-a1", made_up_results.document("models"))
    (tmp_path / "models-b2.json").unlink()
    both = first_seconds.draw_cold_model(cold)["picture"]
    assert [axes.get_title(loc="left").split(":")[0] for axes in both.axes][1] == "steady state"
    numbers = [text.get_text() for text in both.axes[1].texts]
    assert sorted(numbers) == ["", "0.80", "0.80", "0.90", "1", "1"]


def test_the_picture_of_a_model_is_whole(tmp_path: Path) -> None:
    """Nothing is drawn beyond its edges, no two numbers lie over each other, and it has a ground of its own."""
    for name in ("cold_model", "models"):
        put(tmp_path, f"{name}-a1", made_up_results.document(name))
    (cold,) = results_of("cold_model", tmp_path)
    figure = first_seconds.draw_cold_model(cold)["picture"]
    figure.canvas.draw()
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    seen = [text for axes in figure.axes for text in [*axes.texts, *axes.get_xticklabels(), axes.title]]
    boxes = [text.get_window_extent() for text in [*seen, *figure.legends, *figure.texts]]
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in boxes)
    for axes in figure.axes:
        labels = [text.get_window_extent() for text in axes.get_xticklabels()]
        assert not any(one.overlaps(other) for one, other in itertools.pairwise(labels))


def test_the_front_page_has_the_picture_of_a_model_once_it_was_measured_on_a_gpu(tmp_path: Path) -> None:
    """And was drawn; of a CPU alone there is none."""
    put(tmp_path, "cold_model-cpu", made_up_results.document("cold_model", made_up_results.CPU))
    (tmp_path / "cold_model-cpu-picture.svg").touch()
    assert front_page.model(tmp_path) == ""
    put(tmp_path, "cold_model-a1", made_up_results.document("cold_model"))
    assert front_page.model(tmp_path) == ""
    (tmp_path / "cold_model-a1-picture.svg").touch()
    assert "(benchmarks/results/cold_model-a1-picture.svg)" in front_page.model(tmp_path)


@pytest.mark.parametrize("name", plots.ALL)
def test_a_question_without_a_full_run_says_so(name: str, tmp_path: Path) -> None:
    """A fresh checkout of the scripts alone has no numbers; a small run is none, nor is a file of another form."""
    put(tmp_path, f"{name}-cpu-small", made_up_results.document(name))
    put(tmp_path, f"{name}-cpu", {"us": 3.0})
    assert plots.paragraphs(name, tmp_path) == plots.NONE_YET


def test_the_pages_leave_out_what_is_not_recorded(tmp_path: Path) -> None:
    """No result, no line, and no number in a comparison."""
    assert [quotes.table(section, tmp_path).count("\n") for section in quotes.SECTIONS] == [2] * len(quotes.SECTIONS)
    assert MEASURED.search(front_page.comparison(tmp_path)) is None
    assert front_page.picture(tmp_path) == ""
    assert quotes.whole_model(tmp_path) == front_page.fuzz(tmp_path) == plots.NONE_YET


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A folder with a made-up result of each script."""
    quoted = [name for section in quotes.SECTIONS.values() for name in section]
    for name in dict.fromkeys([*ANSWERS, *quoted]):
        put(tmp_path, f"{name}-a1", made_up_results.document(name.partition("-")[0]))
    return tmp_path


@pytest.mark.parametrize("section", quotes.SECTIONS)
def test_each_line_says_on_what_it_was_measured_and_leads_to_all_of_it(section: str, recorded: Path) -> None:
    """A line or more for each script: device, versions, commit, and a heading of the benchmarks' page."""
    rows = quotes.table(section, recorded).splitlines()[2:]
    files = {f"{quotes.SCRIPTS.get(name, name)}.py" for name in quotes.SECTIONS[section]}
    assert {row.split("`")[-2] for row in rows} == files
    assert all("| A1, torch 2.99, version 9.8 at 0123456 |" in row for row in rows)
    headings = anchors_of((FOLDER / "README.md").read_text("utf-8"))
    assert {row.rpartition("#")[2].partition(")")[0] for row in rows} <= headings


def test_what_a_graph_would_take_is_told_from_what_was_chosen(recorded: Path) -> None:
    """Both over eager: a graph that is best may not have been chosen yet."""
    rows = {row.split(" | ")[0].rpartition(", ")[2]: row for row in quotes.table("graphs", recorded).splitlines()}
    assert "| 0.20 × eager; 0.50 × reduce-overhead |" in rows["by the graph"]
    assert "| 0.25 × eager |" in rows["by what is chosen while it learns"]


def test_a_contender_that_was_not_at_all_calls_is_said_to_be(tmp_path: Path) -> None:
    """Its mean is of those that it was at; of none of a kind there is a dash."""
    found = made_up_results.document("models")
    found["times"]["decode 4 × 1"] = {"eager": made_up_results.time(9.0)}
    found["ratios"]["decode 4 × 1"] = {}
    put(tmp_path, "models-a1", found)
    rows = {row.split(" | ")[0]: row.split(" | ")[1:3] for row in quotes.whole_model(tmp_path).splitlines()}
    assert rows["| eager"] == ["1", "1"]
    assert rows["| torch.compile, the whole model"] == ["0.90 (1 of 2 calls)", "-"]


def test_a_comparison_says_on_what_it_was_measured(recorded: Path) -> None:
    """Three numbers of ours and of others, each with device, versions and commit."""
    rows = {
        row.split(" | ")[0].strip("| `"): row.split(" | ")[6:] for row in front_page.comparison(recorded).splitlines()
    }
    assert rows["shapedispatch"] == ["3.0 µs", "10 ms", "- |"]
    assert rows["triton.autotune"] == ["18.0 µs", "310 ms", "- |"]
    assert rows["Helion"] == ["-", "-", "- |"]
    assert front_page.comparison(recorded).count(": A1, torch 2.99, version 9.8 at 0123456") == 3
    assert "2,000 generated calls" in front_page.fuzz(recorded)


@pytest.mark.parametrize(
    ("environment", "version"),
    [
        ({"shapedispatch": "0.3.1", "date": "2026-11-21T00:00:00+00:00"}, "0.3"),
        ({"date": "2026-11-22T02:06:53+00:00"}, "0.1"),
        ({"date": "2026-11-22T09:59:31+00:00"}, "0.2"),
    ],
)
def test_a_result_says_of_which_version_it_is(environment: dict[str, Any], version: str) -> None:
    """Noted in it, or else by its day."""
    assert Result(Path("a.json"), {"environment": environment}).version == version


def test_the_version_by_the_day_is_that_by_the_commit() -> None:
    """What was measured at a commit before 0.2 is not said to be of 0.2, nor the other way round."""
    if git("cat-file", "-e", BEGINS_0_2).returncode:
        pytest.skip("there is no history here")
    results = [result for name in (*plots.ALL, *OTHERS) for result in results_of(name)]
    silent = [result for result in results if "shapedispatch" not in result.environment]
    commits = {result.path: result.environment.get("commit", "none").rstrip("+") for result in silent}
    known = [result for result in silent if git("cat-file", "-e", commits[result.path]).returncode == 0]
    assert len(known) > 5
    later = [
        result
        for result in known
        if git("merge-base", "--is-ancestor", BEGINS_0_2, commits[result.path]).returncode == 0
    ]
    assert {result.path.name for result in known if result.version != "0.1"} == {result.path.name for result in later}


def test_a_run_on_a_gpu_comes_before_a_later_one_on_a_cpu(tmp_path: Path) -> None:
    """And of several on GPUs the last."""
    put(tmp_path, "regret-cpu", made_up_results.document("regret", made_up_results.CPU))
    assert newest("regret", tmp_path).environment["device"] == "CPU"
    put(tmp_path, "regret-a1", made_up_results.document("regret"))
    later = {**made_up_results.GPU, "device": "NVIDIA B2", "date": "2026-02-02T00:00:00+00:00"}
    put(tmp_path, "regret-b2", made_up_results.document("regret", later))
    assert newest("regret", tmp_path).environment["device"] == "NVIDIA B2"


def test_a_run_of_some_parts_comes_after_a_whole_one(tmp_path: Path) -> None:
    """Though it is later."""
    put(tmp_path, "regret-a1", made_up_results.document("regret"))
    later = {**made_up_results.GPU, "command": "python regret.py --part one", "date": "2027-02-02T00:00:00+00:00"}
    put(tmp_path, "regret-a1-one", made_up_results.document("regret", later))
    assert newest("regret", tmp_path).path.stem == "regret-a1"


def test_a_fuzz_that_found_something_is_not_among_those_that_did_not(tmp_path: Path) -> None:
    """It says so on the benchmarks' page, and the front page sums the others."""
    put(tmp_path, "fuzz-a", {**made_up_results.document("fuzz"), "mismatches": 3, "rate_below": None})
    assert "Differences were found." in plots.paragraphs("fuzz", tmp_path)
    assert front_page.fuzz(tmp_path) == plots.NONE_YET


def test_the_first_fuzz_runs_are_read(tmp_path: Path) -> None:
    """They noted versions and no environment."""
    versions = {"python": "3.11.7", "torch": "2.13.0", "machine": "x86_64"}
    path = put(tmp_path, "fuzz-old", {**made_up_results.fuzz(), "versions": versions, "command": "python fuzz.py"})
    assert read(path)["environment"]["cpu"] == "x86_64"
    assert plots.paragraphs("fuzz", tmp_path).startswith("**x86_64** (torch 2.13.0, Python 3.11.7; `python fuzz.py`)")


# What the scripts share.


def test_where_a_result_was_written_is_no_part_of_its_command(script: Load) -> None:
    """Neither as two words nor as one."""
    command = script("common").command
    assert command(["/a/b/fuzz.py", "--calls", "9", "--out", "/c/d", "--seed", "2"]) == (
        "python benchmarks/fuzz.py --calls 9 --seed 2"
    )
    assert command(["regret.py", "--json=/c/d"]) == "python benchmarks/regret.py"


def test_a_result_holds_no_folder_of_this_machine(script: Load, tmp_path: Path) -> None:
    """Not even in a reason that quotes one."""
    common = script("common")
    chosen = argparse.Namespace(json=tmp_path / "found.json", small=True)
    reasons = [f"{common.ROOT}/x.py:3 failed", f"in {sys.prefix}/lib", (f"{Path.home()}/y", 3)]
    common.write("a.py", {"rows": {"refused": reasons}, "time": common.summary([1.0, 2.0])}, {"device": "CPU"}, chosen)
    found = json.loads(chosen.json.read_text())
    assert found["rows"]["refused"][0] == "<checkout>/x.py:3 failed"
    assert not any(folder in chosen.json.read_text() for folder in common.PLACES if len(folder) > 1)
    assert found["time"]["median_us"] == 1.5


def test_results_are_told_apart_by_device_part_and_size(
    script: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file each."""
    common = script("common")
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    for small, part in ((False, ""), (True, "c-road")):
        common.write("fuzz.py", {}, {"device": "NVIDIA A1"}, argparse.Namespace(json=None, small=small), part=part)
    assert {path.name for path in tmp_path.glob("*.json")} == {
        "fuzz-nvidia-a1.json",
        "fuzz-nvidia-a1-c-road-small.json",
    }


def test_a_device_that_is_not_here_is_a_sentence(script: Load, capsys: pytest.CaptureFixture[str]) -> None:
    """And exit code 2."""
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit) as ended:
        script("common").options("About. It", ["--device", "cuda"])
    assert ended.value.code == 2
    assert "no CUDA device is available here" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["launch_overhead", "kernel_choices"])
def test_a_script_that_needs_a_gpu_says_so_in_a_line(
    script: Load, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And ends well."""
    if name == "launch_overhead" and importlib.util.find_spec("triton") is None:
        pytest.skip("there is no Triton")
    script(name).main(["--device", "cpu", "--small"])
    assert capsys.readouterr().out.replace("\n", " ").strip().endswith("it needs a GPU, and there is none here")


def test_all_scripts_are_run_by_make_bench(script: Load) -> None:
    """Every one that measures, in the order of the answers."""
    everything = script("everything")
    measuring = {path.stem for path in FOLDER.glob("*.py") if "ran_on = banner(" in path.read_text("utf-8")}
    assert measuring == everything.SCRIPTS.keys() == ANSWERS.keys()


def test_one_script_that_fails_or_hangs_costs_no_other(
    script: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each outcome is told, and the exit code says that not all is well."""
    everything = script("everything")
    for name, code in {"regret": "import sys; sys.exit(3)", "lessons": "while True: pass", "fuzz": "pass"}.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setattr(everything, "HERE", tmp_path)
    assert everything.run("lessons", "cpu", True, 0.2) == "stopped after 0.2 s"
    assert everything.main(["--small", "--only", "regret", "--only", "fuzz"]) == 1
    out = capsys.readouterr().out
    assert "failed: exit code 3" in out
    assert "done" in out
    assert everything.main(["--small", "--only", "fuzz"]) == 0


def test_the_fuzz_adds_up_its_slices(script: Load) -> None:
    """Counts, and a bound on the rate as long as nothing was found."""
    fuzz = script("fuzz")
    start = {"seed": 1, "asked": 200, **dict.fromkeys(fuzz.COUNTED, 0), "notes": []}
    one = {"road": "C", "calls": 100, "hits": 60, "misses": 40, "mismatches": 0, "notes": []}
    both = fuzz.added(fuzz.added(start, one), one)
    assert (both["calls"], both["hits"], both["road"], both["rate_below"]) == (200, 120, "C", 3 / 200)
    dead = fuzz.added(both, {"deaths": 1, "exceptions": 0, "notes": ["it said"]})
    assert (dead["deaths"], dead["rate_below"], dead["notes"]) == (1, None, ["it said"])


def test_the_soak_sees_a_wrong_answer_a_written_argument_and_a_death(script: Load, tmp_path: Path) -> None:
    """Of one call both ways, and of a child that ends badly."""
    soak, soaked = script("soak"), script("soaked")
    run = soak.Soak(1, tmp_path)
    make = lambda rng: ((soaked.tensor(rng, 3),), {})  # noqa: E731
    spec = soak.Spec(1, grad=False, inference=False, autocast=False)
    for name, other in {"right": lambda x: x * 2, "wrong": lambda x: x * 2.1, "writes": lambda x: x.mul_(2)}.items():
        run.call(soaked.Subject(name, lambda x: x + x, other, make), spec)
    assert dict(run.tally.differences) == {"wrong": 1, "writes": 1}
    run.subjects = [soaked.Subject("dies", lambda x: x, lambda x: os._exit(1), make)]
    run.pools = {"dies": [spec]}
    run.on_fork()
    assert run.tally.differences["fork"] == 1


def test_the_growth_of_memory_is_a_fitted_line(script: Load) -> None:
    """In megabytes an hour; of two points nothing is said."""
    slope = script("soak").slope
    assert slope([(0.0, 100.0), (1800.0, 101.0), (3600.0, 102.0)]) == pytest.approx(2.0)
    assert slope([(0.0, 1.0), (1.0, 2.0)]) is None


def test_the_cost_of_a_key_is_less_an_empty_call(script: Load) -> None:
    """Never below nought, with a median, a spread and a least for each part."""
    key_cost = script("key_cost")
    found = key_cost.measured(key_cost.parts(), 5, 3)
    assert key_cost.EMPTY not in found
    assert all(0 <= one["least_us"] <= one["time"].median_us for one in found.values())


def test_the_bars_of_launches_are_ratios_of_what_was_measured(script: Load) -> None:
    """By number of tensors, of one shape and of many; and of many keys to one."""
    pytest.importorskip("triton")
    found = {bar["what"]: bar for bar in script("launch_overhead").bars(made_up_results.launch_overhead()["C"])}
    assert found["ours / cuLaunchKernel in C, 2 tensors"] == {
        "what": "ours / cuLaunchKernel in C, 2 tensors",
        "measured": 1.5,
        "at most": 1.45,
    }
    assert found["triton.autotune / ours, 8 tensors, 64 shapes in turn"]["measured"] == 6.0
    assert found["µs that a grid at the call takes more, 2 tensors"]["measured"] == 1.0
    assert found["9 keys / 1 key"]["measured"] == pytest.approx(3.1 / 3.0)


def test_contenders_take_turns(script: Load) -> None:
    """One sample of each in a round, and each is the first in its turn."""
    order: list[str] = []
    samplers = {name: (lambda name=name: (order.append(name), 2.0)[1]) for name in "abc"}
    found = script("common").interleaved(samplers, 3)
    assert "".join(order) == "abcbcacab"
    assert found["a"].median_us == 2.0
    assert found["a"].samples == 3


def test_what_comes_after_another_candidate_is_no_sample(script: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same one always comes after the slowest."""
    pytest.importorskip("triton")
    online, before = script("online"), [print]

    def loop(name: str, call: Any, calls: int, device: str) -> float:
        after, before[0] = before[0], call
        return calls * (10.0 if after is call else 11.0)

    monkeypatch.setattr(online, "loop", loop)
    found = online.oracle({"plain": abs, "one": min, "another": max}, "free", 20, "cpu")
    assert found == {"plain": 10.0, "one": 10.0, "another": 10.0}


def test_a_ratio_is_that_of_the_rounds(script: Load) -> None:
    """A slow spell hits both of a round, and says nothing about either; without rounds it is that of the medians."""
    common = script("common")
    one = common.Measured(2.0, 0.0, 3, each_us=[2.0, 6.0, 2.0])
    assert common.ratio(one, common.Measured(3.0, 0.0, 3, each_us=[1.0, 3.0, 4.0])) == 2.0
    assert common.ratio(one, common.Measured(4.0, 0.0, 5)) == 0.5


def test_an_excess_is_that_of_the_rounds(script: Load) -> None:
    """As a ratio is."""
    common = script("common")
    one = common.Measured(4.0, 0.0, 3, each_us=[2.0, 6.0, 4.0])
    assert common.excess_us(one, common.Measured(2.0, 0.0, 3, each_us=[1.0, 2.0, 3.0])) == 1.0
    assert common.excess_us(one, common.Measured(1.0, 0.0, 5)) == 3.0


def test_the_commit_is_what_the_caller_says(script: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a tree was copied, git may know another."""
    monkeypatch.setenv("COMMIT", "abc123")
    assert script("common").commit() == "abc123"
    monkeypatch.delenv("COMMIT")
    assert script("common").commit() != "abc123"


def test_what_a_script_writes_is_what_its_answer_reads(script: Load, tmp_path: Path) -> None:
    """One script run small, from its options to its paragraph; the counts of two others by their names."""
    threads = torch.get_num_threads()
    script("key_cost").main(["--small", "--out", str(tmp_path / "key_cost-cpu.json")])
    torch.set_num_threads(threads)
    text = plots.paragraphs("key_cost", tmp_path)
    assert "| key of two tensors |" in text
    assert "`python benchmarks/" in text
    assert str(tmp_path) not in text
    assert script("fuzz").COUNTED == soundness.FUZZED
    assert set(script("store_kill").BAD) < set(soundness.KILLED)


# The model.


@pytest.fixture
def programs(script: Load, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The model's contenders, of which none builds anything, over nothing that was stored."""
    monkeypatch.setenv("SHAPEDISPATCH_HINTS", "[]")
    monkeypatch.setenv("SHAPEDISPATCH_STORE", "false")
    return script("programs")


def test_a_model_is_measured_from_its_options_to_its_paragraph(
    script: Load, programs: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Times, first calls, places, and what the dispatchers chose; a contender that is not there costs no other."""
    models, ours = script("models"), f"shapedispatch, {programs.PLACES}"
    monkeypatch.setattr(models, "prepare_compilers", lambda folder: None)
    broken = {**programs.ways(), "broken": (None, lambda model: model.nothing)}
    monkeypatch.setattr(programs, "ways", lambda: broken)
    called = ["--small", "--device", "cpu", "--rounds", "2", "--contender", ours, "--contender", "broken"]
    models.main([*called, "--json", str(tmp_path / "models-cpu.json")])
    found = json.loads((tmp_path / "models-cpu.json").read_text())
    assert found["left_out"]["broken"].startswith("AttributeError")
    assert set(found["times"]) == {str(call) for call in programs.SMALL.calls}
    assert all(set(row) == {"eager", ours} for row in found["times"].values())
    assert set(found["dispatched"][ours]) == {*programs.Own.places}
    text = plots.paragraphs("models", tmp_path)
    assert "| `MLP.forward` | 2 |" in text
    assert f"| {ours} / eager |" in text


@pytest.mark.operators_called
@pytest.mark.skipif(NO_COMPILER is not None, reason=NO_COMPILER or "")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile about torch
def test_hits_of_a_module_are_measured_from_the_options_to_the_paragraph(
    script: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The smallest module: both variants run, what a hit in C asks is timed, and each bar is told."""
    module_hits = script("module_hits")
    monkeypatch.setattr(module_hits, "SMALL_ROUNDS", 3)
    module_hits.main(
        ["--small", "--device", "cpu", "--module", "RMSNorm", "--json", str(tmp_path / "module_hits-cpu.json")]
    )
    (found,) = json.loads((tmp_path / "module_hits-cpu.json").read_text())["modules"].values()
    assert set(found["times"]) == {module_hits.PLAIN, module_hits.COMPILED, *module_hits.OURS.values()}
    asked = {module_hits.KEY, module_hits.GUARDS, module_hits.NOW_AND_THEN, module_hits.BUILD, module_hits.EMPTY}
    assert set(found["asked"] or ()) in (asked, set())
    assert "| RMSNorm: exact chosen / torch.compile |" in plots.paragraphs("module_hits", tmp_path)


def test_contenders_share_weights_and_no_code(programs: ModuleType) -> None:
    """What one compiles or counts is no other's, and all have the same answers to find."""
    program = programs.Own(programs.SMALL, "cpu")
    module, model = program.twin("one")
    other, again = program.twin("another")
    assert module.MLP.forward.__code__ is not other.MLP.forward.__code__
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    assert all(one is not two and one.data_ptr() == two.data_ptr() for one, two in pairs)


def test_the_model_decodes_what_it_prefills(programs: ModuleType) -> None:
    """Token by token over a cache, the last logits are those of all tokens at once."""
    program = programs.Own(programs.SMALL, "cpu", torch.float64)
    model, config = program.model, programs.SMALL.config
    tokens = torch.randint(config.vocabulary, (2, 5))
    cache = sys.modules[type(model).__module__].Cache.empty(config, 2, 8, next(model.parameters()))
    with torch.no_grad():
        for place in range(5):
            found = model(tokens[:, place : place + 1], torch.tensor([place]), cache)
        torch.testing.assert_close(found, model(tokens, torch.arange(5), last=True))


def test_two_tokens_are_decoded_as_one_and_one(programs: ModuleType) -> None:
    """Each sees those before it and itself, in every group of heads."""
    program = programs.Own(programs.SMALL, "cpu", torch.float64)
    model, config = program.model, programs.SMALL.config
    tokens = torch.randint(config.vocabulary, (2, 4))
    cache = sys.modules[type(model).__module__].Cache.empty(config, 2, 8, next(model.parameters()))
    with torch.no_grad():
        model(tokens[:, :2], torch.arange(2), cache)
        found = model(tokens[:, 2:], torch.arange(2, 4), cache)
        torch.testing.assert_close(found, model(tokens, torch.arange(4))[:, 2:])


@pytest.mark.parametrize("kind", ["decode", "prefill", "train"])
def test_a_wrong_answer_is_not_timed(script: Load, programs: ModuleType, kind: str) -> None:
    """Of any kind of call, by a thousandth; the right one passes."""
    models, program = script("models"), programs.Own(programs.SMALL, "cpu")
    call = next(call for call in programs.SMALL.calls if call.kind == kind)
    module, model = program.twin("one")
    contender = programs.Contender("one", module, model, model, FOLDER)
    judge = models.Judge(program, dataclasses.replace(programs.SMALL, calls=(call,)))
    judge.errors("right", models.Step(program, contender, call))
    contender.run = lambda **told: model(**told) * 1.001
    with pytest.raises(AssertionError, match=f"wrong, {call}"):
        judge.errors("wrong", models.Step(program, contender, call))


def test_a_contender_that_takes_too_long_is_named(script: Load, programs: ModuleType) -> None:
    """At the calls that it was not started at; eager is always there."""
    models, program = script("models"), programs.Own(programs.SMALL, "cpu")
    made, _ = programs.contenders(program, ["eager", f"shapedispatch, {programs.PLACES}"], FOLDER)
    found, judge = models.Found({}, {}), models.Judge(program, programs.SMALL)
    steps = models.first_calls(program, made, judge, found, models.Clock(0.0), 0.0)
    assert found.not_reached == {f"shapedispatch, {programs.PLACES}": [str(call) for call in programs.SMALL.calls]}
    assert all(set(ready) == {"eager"} for ready in steps.values())


def test_means_are_of_contenders_that_were_at_all_calls(script: Load) -> None:
    """By kind and of all; one that was not reached is not flattered by what it has left out."""
    models, common = script("models"), script("common")

    def row(**us: float) -> dict[str, Any]:
        return {name: common.Measured(one, 0.0, 1, each_us=[one]) for name, one in us.items()}

    found = models.Found({}, {})
    found.times = {"decode 1 × 1": row(eager=4.0, a=1.0, b=2.0), "decode 4 × 1": row(eager=4.0, a=4.0)}
    assert models.means(found) == {"decode": {"a": pytest.approx(0.5)}, "all": {"a": pytest.approx(0.5)}}


# Learning in the background, where sizes hardly repeat.


def test_the_sizes_of_the_first_program_never_repeat(script: Load) -> None:
    """A thousand, each once; those of the others do."""
    costs = script("background_costs")
    once, zipf, hot = (costs.drawn(kind, 500, 1000, random.Random(0)) for kind in ("once", "zipf", "hot"))
    assert len(set(once)) == len(once) == 1000
    assert len(set(zipf)) < len(zipf) == 500
    assert hot.count(costs.HOT) > 400


def test_who_has_built_is_told_with_the_reasons(script: Load, capsys: pytest.CaptureFixture[str]) -> None:
    """Of ten variants nine were built elsewhere: that is the bar."""
    costs = script("background_costs")
    costs.tell({"who": {"one": {"made": 6, "lacking": {}}, "two": {"made": 3, "lacking": {"exact": "a reason"}}}})
    told = capsys.readouterr().out
    assert "0.90 (holds 0.9)" in told
    assert "a reason" in told


def test_a_result_has_its_own_pictures_alone(tmp_path: Path) -> None:
    """Not those of another whose name goes on."""
    for name in ("cold_model-a1", "cold_model-a1-again"):
        put(tmp_path, name, made_up_results.document("cold_model"))
        (tmp_path / f"{name}-picture.svg").touch()
    shown = [plots.links("cold_model", result) for result in results_of("cold_model", tmp_path)]
    assert sorted(shown) == [
        "![cold_model: picture](results/cold_model-a1-again-picture.svg)",
        "![cold_model: picture](results/cold_model-a1-picture.svg)",
    ]


def test_a_call_is_asked_for_in_all_its_forms(script: Load, tmp_path: Path) -> None:
    """What each gives is the function's own answer, and what it takes over plain is told."""
    call_forms = script("call_forms")
    call_forms.SMALL_CALLS, call_forms.SMALL_LOOPS, call_forms.WARM_CALLS = 5, 3, 40
    call_forms.main(["--small", "--device", "cpu", "--json", str(tmp_path / "call_forms-cpu.json")])
    found = json.loads((tmp_path / "call_forms-cpu.json").read_text())["forms"]
    assert found.keys() == call_forms.forms("cpu").keys()
    assert all(one["us"].keys() == {call_forms.PLAIN, call_forms.OURS} for one in found.values())


def test_sizes_that_never_come_again_are_called_once(
    script: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each way in each round, whose answers are plain's."""
    monkeypatch.setenv("SHAPEDISPATCH_LEARN", "background")
    new_sizes = script("new_sizes")
    seen: list[int] = []
    monkeypatch.setattr(new_sizes, "product", lambda x, w: (seen.append(len(x)), x * w)[1])
    monkeypatch.setattr(new_sizes, "fresh", lambda fn: fn)
    monkeypatch.setattr(new_sizes, "ways", lambda: {new_sizes.PLAIN: lambda fn: fn, new_sizes.OURS: lambda fn: fn})
    written = tmp_path / "new_sizes-cpu.json"
    new_sizes.main(["--small", "--device", "cpu", "--program", "a product", "--json", str(written)])
    calls, rounds = new_sizes.SMALL_CALLS, new_sizes.SMALL_ROUNDS
    assert set(seen) == set(range(2, 2 + calls))
    assert len(seen) == 3 * calls + 3 * rounds  # once more to find memory, and to compare
    (one,) = json.loads(written.read_text())["programs"].values()
    assert {len(us) for us in one["us"].values()} == {rounds}
    assert 0.1 < one["over_plain"] < 10


def test_layers_are_near_their_last_time_when_a_second_first_is(script: Load) -> None:
    """By the median of each second's calls, which one that stops for long is not."""
    layers = script("layers")
    times, at = [0.5, 0.02, 0.02, 0.011, 0.01, 0.01, 3.0, 0.01], [0.5, 0.6, 1.5, 2.2, 2.5, 3.1, 3.2, 3.9]
    found = layers.summed(times, at, 4.0)
    assert (found["calls"], found["worst_s"], found["near_s"]) == (8, 3.0, 2)
    assert found["late_median_us"] == pytest.approx(1e4)
    assert found["median_us"] == pytest.approx([2.6e5, 2e4, 1.05e4, 1e4])


def test_a_long_call_is_for_what_was_said_of_its_look(script: Load) -> None:
    """By what took the longest of what may be said; elsewhere nothing was."""
    said = script("said")
    look = "f: a call was looked at for 6.3 ms"
    told = {
        "a trace or an order": ["f: something else", f"{look}, loaded for 1.0 ms, ordered for 2.9 ms"],
        "a load": [f"{look}, warmed up for 5.0 ms"],
        "a look at numbers": [f"{look}, compared for 5.0 ms"],
        "a look": [look],
        "nothing was said": ["f: it was loaded for somebody"],
    }
    assert {why: said.cause(lines) for why, lines in told.items()} == {why: why for why in told}
    found = said.by_cause([("a look", 6.0), ("a load", 30.0), ("a look", 8.0)])
    assert found["a look"] == {"calls": 2, "sum_ms": 14.0, "worst_ms": 8.0}
    assert said.by_time(found) == [("a load", "1", "30", "30"), ("a look", "2", "14", "8")]


def test_what_is_said_is_taken_once(script: Load) -> None:
    """It is about the call that ran last."""
    said = script("said").Said()
    log = logging.getLogger("shapedispatch")
    try:
        log.debug("f: a call was looked at for %.1f ms", 2.0)
        assert said.taken() == ["f: a call was looked at for 2.0 ms"]
        assert said.taken() == []
    finally:
        log.removeHandler(said)
        log.setLevel(logging.NOTSET)


def test_later_calls_of_a_kernel_are_told_by_what_was_said(script: Load) -> None:
    """Not first calls, which compile."""
    first_calls = script("kernel_first_calls")
    calls = [first_calls.Call(0.4, 0.4, 0.0, "a look"), first_calls.Call(0.006, 0.5, 0.0, "a load")]
    calls += [first_calls.Call(0.001, 0.6, 0.0, "")] * 20
    found = first_calls.summary({"softmax": calls})
    assert found["long"] == {"a load": {"calls": 1, "sum_ms": 6.0, "worst_ms": 6.0}}
    assert found["longest_ms"]["later"][0] == (6.0, "softmax", 1, 0.0, "a load")
