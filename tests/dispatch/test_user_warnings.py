from __future__ import annotations

import warnings

import pytest

from shapedispatch.dispatch.user_warnings import UserWarnings
from shapedispatch.records import Refusal
from tests.fake_core import Backend, call, core_of


def test_a_misfit_runs_plain_with_one_warning() -> None:
    """However often it comes."""
    backend = Backend("other")
    backend.misfit = "x has 3 axes"
    core = core_of(backend, timed=False)
    with pytest.warns(UserWarning, match="x has 3 axes") as seen:
        call(core, 3)
    call(core, 4)
    assert len(seen) == 1
    assert backend.ran == ["plain", "plain"]


def test_one_warning_where_nothing_can_be_built() -> None:
    """At the line of the caller, once."""
    backend = Backend()
    failure = Refusal("exact", ("no compiler",))
    backend.given |= {"refusals": (failure,), "failures": (failure,)}
    core = core_of(backend, timed=False)
    with pytest.warns(UserWarning, match="exact: no compiler") as seen:
        core.call((3,), {})
    call(core, 4)
    assert [warning.filename for warning in seen] == [__file__]


def test_a_refusal_that_is_a_matter_of_size_is_no_warning() -> None:
    """That a hint takes no size 1 is what everybody expects."""
    backend = Backend()
    backend.given["refusals"] = (Refusal("hint[M=64]", ("too small",)),)
    call(core_of(backend, timed=False), 1)


def test_reasons_without_end_are_not_all_told() -> None:
    """And a call that nothing is said of is not rendered."""
    user_warnings = UserWarnings()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for i in range(300):
            user_warnings.bypassed(f"reason {i}", lambda: "the call")
    assert len(seen) == 256
    user_warnings.bypassed("reason 0", lambda: pytest.fail("it was rendered"))
