from __future__ import annotations

from typing import Any

import torch

from shapedispatch.keys import key as keys
from shapedispatch.keys.layout import AmbientPart, TensorPart, differences


def key(*args: Any) -> keys.Key:
    """The key of a call in normal form."""
    return keys.key(args, {})


def test_differences_name_the_part_that_differs() -> None:
    """``new_because`` of a choice is made of these."""
    x = torch.ones(2, 3)
    one = key(x, 1)
    assert differences(one, key(torch.ones(4, 3), 1), ("x", "n")) == ("sizes of x",)
    assert differences(one, key(x.double(), 2), ("x", "n")) == ("dtype of x", "n")
    with torch.no_grad():
        assert differences(one, key(x, 1), ("x", "n")) == ("grad mode",)
    with torch.inference_mode():
        assert differences(one, key(torch.ones(2, 3), 1), ("x", "n")) == (
            "grad mode",
            "inference mode",
            "inference tensor of x",
        )
    assert differences(key(x, x), key(x, torch.ones(2, 3)), ("x", "y")) == ("which tensors are the same",)


def test_the_names_of_parts_fit_a_key() -> None:
    """Keys are plain tuples, which those who read them put names to."""
    state, part = key(torch.ones(2, 3))
    assert AmbientPart(*state) == state
    assert AmbientPart(*state).grad_mode is True
    assert TensorPart(*part)._asdict()["sizes"] == (2, 3)
    stored, *_ = keys.storable((state, part, ()))
    assert AmbientPart(*stored).number_of_threads is None
    assert keys.storable((state, part)) == keys.storable((state, part, ())) == (state[:-1], part)
