from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from shapedispatch.functions.compile.build import Trace
from shapedispatch.functions.compile.tracer import trace
from tests.helpers import as_written

X = torch.linspace(-1, 1, 32).reshape(4, 8)


def traced(fn: Any, *args: Any) -> Trace:
    """What stands for a function's class of calls; its code runs the graph as traced."""
    return trace(fn, args, {}, as_written, tag="test")


def doubled(x: Tensor) -> Tensor:
    """Reads nothing but its argument."""
    return x * 2


def test_all_guards_are_asked_of_a_frame() -> None:
    """Nothing is said where they hold; else what does not, as text without a place in the source."""
    found = traced(doubled, X)
    assert found.accepts({"x": X + 1}) == ()
    (why,) = found.accepts({"x": X[:3]})
    assert "x" in why
    assert "#" not in why


def test_the_check_asks_what_no_key_holds() -> None:
    """An attribute of a module that the function reads, and not the sizes of its argument."""
    module = nn.Module()
    module.scale = 2.0  # type: ignore[assignment]  # a number among its attributes

    def scaled(x: Tensor, module: nn.Module) -> Any:
        return x * module.scale

    check = traced(scaled, X, module).check()
    assert check((X, module), {})
    assert check((X[:3],), {"module": module})
    module.scale = 3.0  # type: ignore[assignment]  # as above
    assert not check((X, module), {})


def test_no_call_is_accepted_after_an_object_of_its_guards_has_gone() -> None:
    """Another could get its address."""
    found = traced(doubled, X)
    found.code_guard._dead.append("an object that the function reads is gone")
    assert found.invalidated() == "an object that the function reads is gone"
    assert found.accepts({"x": X}) == ("an object that the function reads is gone",)
    assert not found.check()((X,), {})


def scaler(scale: Tensor) -> Callable[[Tensor], Tensor]:
    """Functions of one code, each with its own closure."""

    def scaled(x: Tensor) -> Tensor:
        return x * scale

    return scaled


def test_the_code_serves_another_function_of_the_same_code() -> None:
    """With that one's closure, in its answers and in its guards."""
    one, other = scaler(torch.full((8,), 2.0)), scaler(torch.full((8,), 3.0))
    found = traced(one, X)
    moved = found.moved_to(other)  # type: ignore[arg-type]  # a plain function
    assert torch.equal(found.call(X), X * 2)
    assert torch.equal(moved.call(X), X * 3)
    assert moved.function is other
    assert moved.check()((X,), {})


def test_the_guards_on_sizes_can_be_read() -> None:
    """Of a trace whose sizes are free, what it asks of them."""
    fake = X.clone()
    torch._dynamo.mark_dynamic(fake, 0)

    def halves(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] % 2 == 0 else x

    found = trace(halves, (fake,), {}, as_written, tag="test")
    assert any("size()[0] % 2" in guard for guard in found.shape_guards())
    assert traced(doubled, X).shape_guards() == []


def test_default_casts_that_have_changed_are_seen() -> None:
    """Where the function enters an autocast that does not say its dtype."""

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            return x @ x.T

    found, before = traced(cast, X), torch.get_autocast_dtype("cpu")
    check = found.check()
    try:
        assert check((X,), {})
        torch.set_autocast_dtype("cpu", torch.float16)
        assert not check((X,), {})
        assert found.accepts({"x": X}) == ("what autocast casts to by default has changed",)
    finally:
        torch.set_autocast_dtype("cpu", before)
