"""Models of transformers, where it is installed: dispatched whole, and as plain."""

from __future__ import annotations

import pytest
import torch

from shapedispatch import shapedispatch
from tests.helpers import assert_same, pinned

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.operators_called

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
IMAGE = {"image_size": 16, "patch_size": 8}
IDS = torch.arange(16).reshape(2, 8)
DISTIL = {"vocab_size": 32, "dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64}
PIXELS = torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16)


@pytest.mark.parametrize(
    ("name", "config", "given"),
    [
        ("Bert", {"vocab_size": 32, **SIZES}, {"input_ids": IDS}),
        (
            "DistilBert",
            {"vocab_size": 32, "dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64},
            {"input_ids": IDS},
        ),
        ("ViT", {**SIZES, **IMAGE}, {"pixel_values": PIXELS}),
        ("CLIPVision", {**SIZES, **IMAGE}, {"pixel_values": PIXELS}),
        ("Dinov2", {**SIZES, **IMAGE}, {"pixel_values": PIXELS}),
        ("ResNet", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}, {"pixel_values": PIXELS}),
    ],
)
@torch.no_grad()
def test_a_model_is_dispatched_whole(name: str, config: dict[str, object], given: dict[str, torch.Tensor]) -> None:
    """What it gives is what it would give, and a build makes it."""
    torch.manual_seed(0)
    plain = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**config)).eval()
    expected = plain(**given)
    model = shapedispatch(plain, hints=(), exact=True, store=False)
    pinned(model.forward, "exact")
    for _ in range(3):
        found = model(**given)
        assert type(found) is type(expected)
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    assert model.forward.explain(**given).variant == "exact"


@torch.no_grad()
def test_layers_of_a_llama_are_dispatched_whole() -> None:
    """The model itself asks whether all of a mask is true; what is around its layers runs as written."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=32, num_key_value_heads=1, **SIZES)
    model = transformers.LlamaModel(config).eval()
    expected = model(input_ids=IDS, use_cache=False).last_hidden_state
    mine = shapedispatch(model, hints=(), exact=True, store=False)
    for _ in range(3):
        assert_same(mine(input_ids=IDS, use_cache=False).last_hidden_state, expected)
    assert hasattr(type(mine.layers[0]).forward, "explain") or hasattr(mine.layers[0].forward, "explain")
