from __future__ import annotations

from typing import Any

import torch

from shapedispatch.keys import key as keys
from shapedispatch.keys.layout import AmbientPart, TensorPart, differences, kin, numberless
from tests.attributes import AnotherThing, Thing
from tests.fuzzing import Config


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


def test_keys_are_kin_that_differ_in_sizes_alone() -> None:
    """What is known of one size says something of another."""
    x = torch.ones(4, 3)
    of_x = kin(key(x, 1))
    assert kin(key(torch.ones(8, 5), 1)) == of_x
    for other in (key(x.double(), 1), key(x, 2), key(torch.ones(3, 4).t(), 1), key(torch.ones(4), 1)):
        assert kin(other) != of_x
    with torch.no_grad():
        assert kin(key(x, 1)) != of_x


def test_keys_are_no_kin_where_a_size_is_a_constant_of_one() -> None:
    """The builds of one take no call of the other, so that what is best there says nothing here."""
    sizes = ((4, 3), (1, 3), (4, 1), (1, 1), (0, 3))
    assert len({kin(key(torch.ones(one))) for one in sizes}) == len(sizes)
    assert kin(key(torch.ones(1, 3))) == kin(key(torch.ones(1, 5)))


def test_what_looks_like_a_tensor_in_a_key_is_none() -> None:
    """A list of seven numbers has as many parts."""
    assert kin(key([0, (1,), (2,), 3, 4, 5, 6])) != kin(key([0, (9,), (2,), 3, 4, 5, 6]))


def test_keywords_are_kin_too() -> None:
    """By their names."""
    named = {size: kin(keys.key((), {"x": torch.ones(size)})) for size in (3, 5)}
    assert named[3] == named[5] != kin(keys.key((), {"y": torch.ones(3)}))


def test_numbers_are_left_out_wherever_they_stand() -> None:
    """In a dict, and among an object's attributes: one that counts would make each call a new kind."""
    for made in (
        lambda n: n,
        lambda n: [n],
        lambda n: {"n": n},
        lambda n: Thing(n),
        lambda n: Config(torch.ones(2), n),
    ):
        assert numberless(key(made(5))) == numberless(key(made(6))) != numberless(key(made(60)))
    assert numberless(key(Thing(5))) != numberless(key(AnotherThing(5)))
    assert numberless(key({"n": 5})) != numberless(key({"m": 5}))
