"""A decoder as Llama's: RMSNorm, RoPE, grouped-query attention, SwiGLU, a cache of keys and values, tied embeddings.

Three places are what a user decorates: `RMSNorm.forward`, `MLP.forward` and `apply_rotary`, which `Attention` finds
among this module's globals. A contender loads the module anew (`programs.Own`), so that none meets another's code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Sizes; the built-in ones are those of a model of 1.2 billion parameters."""

    vocabulary: int = 128_256
    hidden: int = 2048
    inner: int = 8192
    layers: int = 16
    heads: int = 32
    shared_heads: int = 8
    eps: float = 1e-5
    theta: float = 500_000.0

    @property
    def head(self) -> int:
        """The size of one head."""
        return self.hidden // self.heads


class RMSNorm(nn.Module):
    """Divides by the root of the mean square, in float32; then a weight."""

    def __init__(self, hidden: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """``x`` (B, T, C); the same shape and dtype."""
        wide = x.float() if x.dtype != torch.float64 else x
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden, config.inner, bias=False)
        self.up = nn.Linear(config.hidden, config.inner, bias=False)
        self.down = nn.Linear(config.inner, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` (B, T, C); the same shape."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


def half_turned(x: Tensor) -> Tensor:
    """The second half of the channels, negated, before the first."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries (B, HQ, T, D) and keys (B, HKV, T, D), turned by the angles of ``cos`` and ``sin`` (T, D)."""
    return query * cos + half_turned(query) * sin, key * cos + half_turned(key) * sin


@dataclass
class Cache:
    """Keys and values of every layer (B, HKV, S, D), written at the positions of a call; the places there are."""

    keys: Tensor
    values: Tensor
    places: Tensor

    @classmethod
    def empty(cls, config: Config, batch: int, length: int, like: Tensor) -> Cache:
        """Of so many sequences of at most this length, where ``like`` is."""
        shape = (config.layers, batch, config.shared_heads, length, config.head)
        keys = torch.zeros(shape, dtype=like.dtype, device=like.device)
        return cls(keys, torch.zeros_like(keys), torch.arange(length, device=like.device))

    def update(self, layer: int, positions: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep these, and return all."""
        keys, values = self.keys[layer], self.values[layer]
        keys.index_copy_(2, positions, key)
        values.index_copy_(2, positions, value)
        return keys, values

    def mask(self, positions: Tensor) -> Tensor:
        """(T, S): what each position may see."""
        return self.places <= positions[:, None]


class Attention(nn.Module):
    """Grouped queries, by ``scaled_dot_product_attention``."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.shared_heads, self.head = layer, config.heads, config.shared_heads, config.head
        self.query = nn.Linear(config.hidden, config.heads * config.head, bias=False)
        self.key = nn.Linear(config.hidden, config.shared_heads * config.head, bias=False)
        self.value = nn.Linear(config.hidden, config.shared_heads * config.head, bias=False)
        self.out = nn.Linear(config.heads * config.head, config.hidden, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, cache: Cache | None, mask: Tensor | None
    ) -> Tensor:
        """``x`` (B, T, C); the same shape. Without a cache each position sees those before it."""
        batch, time, _ = x.shape
        query = self.query(x).view(batch, time, self.heads, self.head).transpose(1, 2)
        key = self.key(x).view(batch, time, self.shared_heads, self.head).transpose(1, 2)
        value = self.value(x).view(batch, time, self.shared_heads, self.head).transpose(1, 2)
        query, key = apply_rotary(query, key, cos, sin)
        if cache is None:
            found = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        else:
            key, value = cache.update(self.layer, positions, key, value)
            # The queries of a group as rows of one: a fused kernel then takes the mask, and repeats no key.
            rows = query.reshape(batch, self.shared_heads, -1, self.head)
            groups = self.heads // self.shared_heads
            seen = mask.repeat(groups, 1) if time > 1 else mask
            found = F.scaled_dot_product_attention(rows, key, value, attn_mask=seen).reshape(query.shape)
        return self.out(found.transpose(1, 2).reshape(batch, time, -1))


class Layer(nn.Module):
    """Attention and SwiGLU, each behind a norm and beside the way around it."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden, config.eps)
        self.attention = Attention(config, layer)
        self.mlp_norm = RMSNorm(config.hidden, config.eps)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, cache: Cache | None, mask: Tensor | None
    ) -> Tensor:
        """``x`` (B, T, C); the same shape."""
        x = x + self.attention(self.attention_norm(x), cos, sin, positions, cache, mask)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    """Tokens to logits; the embedding's weight is the last layer's, too."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.eps)

    def forward(self, tokens: Tensor, positions: Tensor, cache: Cache | None = None, last: bool = False) -> Tensor:
        """Logits (B, T, V) of ``tokens`` (B, T) at ``positions`` (T); with ``last`` of the last position alone."""
        x = self.embedding(tokens)
        cos, sin = self.angles(positions, x.dtype)
        mask = cache.mask(positions) if cache is not None else None
        for layer in self.layers:
            x = layer(x, cos, sin, positions, cache, mask)
        x = self.norm(x)
        return F.linear(x[:, -1:] if last else x, self.embedding.weight)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines (T, D) of what RoPE turns each channel by."""
        wide = dtype if dtype == torch.float64 else torch.float32
        steps = torch.arange(0, self.config.head, 2, device=positions.device, dtype=wide)
        angles = torch.outer(positions.to(wide), self.config.theta ** -(steps / self.config.head))
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def initialized(model: nn.Module, seed: int) -> nn.Module:
    """The same with weights as a model starts training with: normal, of deviation 0.02; norms stay 1."""
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02, generator=generator)
    return model
