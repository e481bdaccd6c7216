"""The model of `models.py` as each contender has it: code of its own, weights in common, and the calls that are made.

``Own`` is the decoder in `llama`; ``Transformers`` that of the package of that name, where it is installed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from llama import Config
from torch import Tensor, nn

EAGER = "eager"
PLACES, WHOLE = "the three places", "the whole model"


@dataclass(frozen=True)
class Call:
    """One way to call the model: ``kind`` is decode (one token a sequence, a cache), prefill (no cache) or train."""

    kind: str
    batch: int
    time: int

    def __str__(self) -> str:
        return f"{self.kind} {self.batch} × {self.time}"


@dataclass(frozen=True)
class Size:
    """How large the model is, and which calls are made of it."""

    config: Config
    dtype: torch.dtype
    cached: int
    calls: tuple[Call, ...]


def calls(
    decode: Sequence[int], prefill: Sequence[tuple[int, int]], train: Sequence[tuple[int, int]]
) -> tuple[Call, ...]:
    """Decode by batch, prefill and training by batch and length."""
    return (
        *(Call("decode", batch, 1) for batch in decode),
        *(Call("prefill", *one) for one in prefill),
        *(Call("train", *one) for one in train),
    )


PREFILLED = ((1, 17), (1, 100), (1, 333), (1, 1000), (4, 512))
FULL = Size(
    Config(),
    torch.bfloat16,
    1024,
    calls((1, 4, 16, 64), PREFILLED, ((4, 128), (4, 200), (4, 333), (4, 512))),
)
ON_CPU = Size(
    Config(vocabulary=2048, hidden=256, inner=1024, layers=4, heads=8, shared_heads=2),
    torch.float32,
    256,
    calls((1, 4, 16, 64), PREFILLED, ((4, 32), (4, 50), (4, 83), (4, 128))),
)
SMALL = Size(
    Config(vocabulary=256, hidden=64, inner=128, layers=2, heads=4, shared_heads=2),
    torch.float32,
    64,
    calls((1, 4), ((1, 17), (2, 33)), ((2, 9), (2, 17))),
)


class Program(Protocol):
    """A model, as many times as there are contenders."""

    size: Size
    model: nn.Module
    """As it is, without anything around it."""
    places: tuple[str, ...]
    """What is decorated: names in the model's module, of functions and of methods."""

    def twin(self, name: str, place: Callable[..., Any] | None = None) -> tuple[ModuleType, nn.Module]:
        """The same on the same weights, over a module of its own whose ``places`` are wrapped by ``place``."""

    def arguments(self, call: Call, model: nn.Module) -> dict[str, Any]:
        """What ``model`` is called with; logits come back, of the last position but in training."""

    def rewind(self, told: Mapping[str, Any]) -> None:
        """Undo what calls with these arguments have done to them, where that is seen by the next."""

    def logits(self, answer: Any) -> Tensor:
        """What of its answer is compared."""

    def place_calls(self, module: ModuleType, model: nn.Module, call: Call) -> Mapping[str, list[tuple[Any, tuple]]]:
        """For each place, what is called in a forward, with arguments such as it has there."""


class Own:
    """The decoder of this folder."""

    places = ("RMSNorm.forward", "MLP.forward", "apply_rotary")

    def __init__(self, size: Size, device: str, dtype: torch.dtype | None = None) -> None:
        self.size, self.device, self.dtype = size, device, dtype or size.dtype
        module = loaded("llama", "llama_of_eager")
        with torch.device(device):
            self.model = module.initialized(module.Llama(size.config).to(self.dtype), seed=0)

    def twin(self, name: str, place: Callable[..., Any] | None = None) -> tuple[ModuleType, nn.Module]:
        """See `Program`."""
        module = loaded("llama", f"llama_of_{identifier(name)}")
        if place is not None:
            wrap(module, self.places, place)
        with torch.device("meta"):
            model = module.Llama(self.size.config)
        model.load_state_dict(self.model.state_dict(), assign=True)
        return module, model

    def arguments(self, call: Call, model: nn.Module) -> dict[str, Any]:
        """See `Program`; in decoding half of the cache is filled."""
        generator = torch.Generator(self.device).manual_seed(call.batch * 10_000 + call.time)
        shape, config = (call.batch, call.time), self.size.config
        tokens = torch.randint(config.vocabulary, shape, device=self.device, generator=generator)
        if call.kind != "decode":
            positions = torch.arange(call.time, device=self.device)
            return {"tokens": tokens, "positions": positions, "last": call.kind == "prefill"}
        weight = next(model.parameters())
        cache = sys.modules[type(model).__module__].Cache.empty(config, call.batch, self.size.cached, weight)
        for held in (cache.keys, cache.values):  # the same numbers in a wider dtype, too
            held.copy_(torch.randn(held.shape, dtype=self.dtype, device=self.device, generator=generator))
        positions = torch.tensor([self.size.cached // 2], device=self.device)
        return {"tokens": tokens, "positions": positions, "cache": cache, "last": True}

    def rewind(self, told: Mapping[str, Any]) -> None:
        """See `Program`: each decoded token is written at the same place."""

    def logits(self, answer: Any) -> Tensor:
        """See `Program`."""
        return answer

    def place_calls(self, module: ModuleType, model: nn.Module, call: Call) -> dict[str, list[tuple[Any, tuple]]]:
        """See `Program`."""
        config, x, rotated = self.size.config, *place_inputs(self.size.config, self.dtype, self.device, call)
        angles = model.angles(torch.arange(call.time, device=self.device), self.dtype)
        norms = [one for one in model.modules() if type(one) is module.RMSNorm]
        mlps = [one for one in model.modules() if type(one) is module.MLP]
        return {
            "RMSNorm.forward": [(norm, (x,)) for norm in norms],
            "MLP.forward": [(mlp, (x,)) for mlp in mlps],
            "apply_rotary": [(module.apply_rotary, (*rotated, *angles))] * config.layers,
        }


class Transformers:
    """The Llama of transformers, with random weights."""

    places = ("LlamaRMSNorm.forward", "LlamaMLP.forward", "apply_rotary_pos_emb")
    source = "transformers.models.llama.modeling_llama"

    def __init__(self, size: Size, device: str, dtype: torch.dtype | None = None) -> None:
        from transformers import LlamaConfig

        self.size, self.device, self.dtype = size, device, dtype or size.dtype
        own = size.config
        self.config = LlamaConfig(
            vocab_size=own.vocabulary,
            hidden_size=own.hidden,
            intermediate_size=own.inner,
            num_hidden_layers=own.layers,
            num_attention_heads=own.heads,
            num_key_value_heads=own.shared_heads,
            head_dim=own.head,
            rms_norm_eps=own.eps,
            tie_word_embeddings=True,
            max_position_embeddings=4096,
            attn_implementation="sdpa",
        )
        self.model = self._made(loaded(self.source, f"{self.source}_of_eager"))

    def _made(self, module: ModuleType) -> nn.Module:
        with torch.device(self.device):
            return module.LlamaForCausalLM(self.config).to(self.dtype).eval()

    def twin(self, name: str, place: Callable[..., Any] | None = None) -> tuple[ModuleType, nn.Module]:
        """See `Program`."""
        module = loaded(self.source, f"{self.source}_of_{identifier(name)}")
        if place is not None:
            wrap(module, self.places, place)
        model = self._made(module)
        model.load_state_dict(self.model.state_dict(), assign=True)
        model.tie_weights()
        return module, model

    def arguments(self, call: Call, model: nn.Module) -> dict[str, Any]:
        """See `Program`; in decoding half of the cache is filled."""
        generator = torch.Generator(self.device).manual_seed(call.batch * 10_000 + call.time)
        shape = (call.batch, call.time)
        tokens = torch.randint(self.size.config.vocabulary, shape, device=self.device, generator=generator)
        if call.kind != "decode":
            return {"input_ids": tokens, "use_cache": False, "logits_to_keep": int(call.kind == "prefill")}
        from transformers import StaticCache

        cache = StaticCache(config=self.config, max_cache_len=self.size.cached)
        seen = torch.randint(
            self.size.config.vocabulary, (call.batch, self.size.cached // 2), device=self.device, generator=generator
        )
        with torch.no_grad():
            self.model(input_ids=seen, past_key_values=cache, use_cache=True, logits_to_keep=1)
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys.to(model.dtype), layer.values.to(model.dtype)
        return {"input_ids": tokens, "past_key_values": cache, "use_cache": True, "logits_to_keep": 1}

    def rewind(self, told: Mapping[str, Any]) -> None:
        """See `Program`: the cache counts the tokens that it was given."""
        for layer in getattr(told.get("past_key_values"), "layers", ()):
            layer.cumulative_length.fill_(self.size.cached // 2)

    def logits(self, answer: Any) -> Tensor:
        """See `Program`."""
        return answer.logits

    def place_calls(self, module: ModuleType, model: nn.Module, call: Call) -> dict[str, list[tuple[Any, tuple]]]:
        """See `Program`."""
        config, x, rotated = self.size.config, *place_inputs(self.size.config, self.dtype, self.device, call)
        angles = model.model.rotary_emb(x, torch.arange(call.time, device=self.device)[None])
        norms = [one for one in model.modules() if type(one) is module.LlamaRMSNorm]
        mlps = [one for one in model.modules() if type(one) is module.LlamaMLP]
        return {
            "LlamaRMSNorm.forward": [(norm, (x,)) for norm in norms],
            "LlamaMLP.forward": [(mlp, (x,)) for mlp in mlps],
            "apply_rotary_pos_emb": [(module.apply_rotary_pos_emb, (*rotated, *angles))] * config.layers,
        }


def place_inputs(config: Config, dtype: torch.dtype, device: str, call: Call) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """What a layer hands to its norms and its MLP; queries and keys, laid out as a projection leaves them."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    batch, time = call.batch, call.time
    heads = [normal(batch, time, each, config.head).transpose(1, 2) for each in (config.heads, config.shared_heads)]
    return normal(batch, time, config.hidden), (heads[0], heads[1])


def loaded(source: str, name: str) -> ModuleType:
    """A module once more, under another name: classes, functions and code objects are all its own."""
    spec = importlib.util.find_spec(source)
    assert spec is not None
    again: Any = importlib.util.spec_from_file_location(name, spec.origin)
    module = sys.modules[name] = importlib.util.module_from_spec(again)
    again.loader.exec_module(module)
    return module


def identifier(name: str) -> str:
    """A name as a part of a module's."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def wrap(module: ModuleType, places: Sequence[str], place: Callable[..., Any]) -> None:
    """Replace each place by what ``place`` makes of it."""
    for path in places:
        owner, _, name = path.rpartition(".")
        holder = getattr(module, owner) if owner else module
        setattr(holder, name, place(getattr(holder, name)))


def in_place(module: ModuleType, path: str) -> Any:
    """What stands at a place now."""
    owner, _, name = path.rpartition(".")
    return getattr(getattr(module, owner) if owner else module, name)


@dataclass
class Contender:
    """One way to run the model: what is called, and the caches that its compiler has to itself."""

    name: str
    module: ModuleType
    model: nn.Module
    run: Callable[..., Any]
    caches: Path

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """With its own caches: what another has compiled would else be found, and a first call would look cheap."""
        before = {name: os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        os.environ |= {name: str(self.caches / name.lower()) for name in before}
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def ways() -> dict[str, tuple[Callable[..., Any] | None, Callable[..., Any] | None]]:
    """Each contender's name, what it makes of a place, and what of the whole model."""
    from shapedispatch import shapedispatch

    def compiled(target: Any) -> Any:
        return torch.compile(target, dynamic=True)

    return {
        EAGER: (None, None),
        f"torch.compile, {PLACES}": (compiled, None),
        f"torch.compile, {WHOLE}": (None, compiled),
        f"shapedispatch, {PLACES}": (shapedispatch, None),
        f"shapedispatch, {WHOLE}": (None, shapedispatch),
    }


def contenders(program: Program, names: Sequence[str], folder: Path) -> tuple[dict[str, Contender], dict[str, str]]:
    """Those that can be made, their caches below ``folder``, and why the others cannot."""
    made, left_out = {}, {}
    for name in names:
        place, whole = ways()[name]
        module, model = program.twin(name, place)
        try:
            run = model if whole is None else whole(model)
        except Exception as error:  # noqa: BLE001 - a contender that is not there is told, and costs no other
            left_out[name] = f"{type(error).__name__}: {error}"
            continue
        made[name] = Contender(name, module, model, run, folder / identifier(name))
    return made, left_out


def program_of(hf: bool, size: Size, device: str) -> tuple[Program, dict[str, str]]:
    """The program that is asked for, and what it is."""
    if not hf:
        return Own(size, device), {"program": "benchmarks/llama.py"}
    if importlib.util.find_spec("transformers") is None:
        raise SystemExit("--hf needs transformers, which is not installed: python -m pip install transformers")
    version = importlib.metadata.version("transformers")
    return Transformers(size, device), {"program": f"transformers {version}, LlamaForCausalLM"}
