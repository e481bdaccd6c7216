from __future__ import annotations

from typing import Any

import torch

from shapedispatch.keys import key as keys
from shapedispatch.keys.layout import differences


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
