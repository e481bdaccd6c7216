"""transformers' Llama through `generate()`, by one line on the model (`python examples/transformers_llama.py`).

Random weights. It hands a cache object from layer to layer, so that its norms, its MLPs and its angles are dispatched
in its place, as the log says.
"""

from __future__ import annotations

import argparse
import copy
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from shapedispatch import shapedispatch

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--small", action="store_true", help="a quick look")
PARSER.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
CHOSEN = PARSER.parse_args()
WIDTH, LAYERS, TOKENS = (64, 1, 4) if CHOSEN.small else (256, 4, 32) if CHOSEN.device == "cpu" else (2048, 16, 128)
LOADS = [(1, 7)] if CHOSEN.small else [(1, 17), (1, 333), (16, 100)]  # batch, length of the prompt
CLOSE = 1e-3 if CHOSEN.device == "cpu" else 0.1  # of logits: float32 on a CPU, bfloat16 on a GPU
SIZES = {"vocab_size": 4096, "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": LAYERS}
HEADS = {"num_attention_heads": max(4, WIDTH // 64), "num_key_value_heads": max(1, WIDTH // 256)}


class Clock(list[float]):
    """Looks at the time whenever `generate` hands tokens on: the prompt, then each that it has made."""

    def put(self, tokens: torch.Tensor) -> None:
        self.append(time.perf_counter())

    def end(self) -> None:
        """All are made."""


def generate(model: LlamaForCausalLM, prompt: torch.Tensor) -> tuple[float, float, Any]:
    """Seconds until the first token and from there to the last, and what came out: tokens and their logits."""
    told = {"attention_mask": torch.ones_like(prompt), "pad_token_id": 0, "do_sample": False}
    told |= {"streamer": (at := Clock()), "return_dict_in_generate": True, "output_logits": True}
    told |= {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS}
    found = model.generate(prompt, **told)
    return at[1] - at[0], at[-1] - at[1], found


def check(mine: Any, plain: Any) -> None:
    """Logits are close as long as the tokens before them are the same: a near tie may turn the rest of a sequence."""
    same = (mine.sequences == plain.sequences).cumprod(1).bool()
    for one, other, alike in zip(mine.logits, plain.logits, same[:, -TOKENS - 1 : -1].T, strict=True):
        torch.testing.assert_close(one[alike], other[alike], rtol=0, atol=CLOSE)


if __name__ == "__main__":
    torch.manual_seed(0)
    dtype = torch.float32 if CHOSEN.device == "cpu" else torch.bfloat16
    plain = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS)).to(CHOSEN.device, dtype).eval()
    mine = shapedispatch(copy.deepcopy(plain), hints=(), exact=True)
    for load in LOADS:
        prompt = torch.randint(1, 4096, load, device=CHOSEN.device)
        rounds = [(generate(plain, prompt), generate(mine, prompt)) for _ in range(5)]  # in the first it builds
        for written, found in rounds:
            check(found[2], written[2])
        for part, name in enumerate(("prefill", "decode")):
            plain_s, mine_s = (min(one[part] for one in each) for each in zip(*rounds, strict=True))
            count = load[0] * ((TOKENS - 1) if part else load[1])
            rates = f"{count / mine_s:,.0f} tokens a second, as written {count / plain_s:,.0f}"
            print(f"{load}: {name} {rates}: {plain_s / mine_s:.2f} ×")
