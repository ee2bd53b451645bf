"""What the server's tests share: a small real model, an engine core to step by hand, an oracle."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence as Sequences
from typing import Any

import torch

from reference_server.ailments import afflict
from reference_server.attention.formats import kv_format
from reference_server.build import build_core
from reference_server.config import ServerConfig
from reference_server.core import EngineCore
from reference_server.detokenizer import TextStream
from reference_server.metrics import Metrics
from reference_server.models.llama import LlamaConfig, LlamaWeights
from reference_server.models.tiny import random_weights
from reference_server.models.tokenizer import VOCABULARY_SIZE, ByteTokenizer
from reference_server.sampler import SamplingParams, TokenChooser
from reference_server.sequence import Sequence, Timeline
from reference_server.streams import TokenEvent

SMALL = LlamaConfig(
    name="small",
    vocabulary_size=VOCABULARY_SIZE,
    hidden=64,
    intermediate=96,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    max_positions=4096,
)
TOKENIZER = ByteTokenizer()
_ids = itertools.count()


class Rig:
    """An engine core with `blocks` usable blocks, stepped by the test."""

    def __init__(
        self,
        *,
        blocks: int = 64,
        block_size: int = 16,
        shape: LlamaConfig = SMALL,
        prefix_caching: bool = True,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 128,
        **options: Any,
    ) -> None:
        """`options` are further fields of the configuration; a block has `block_size` tokens' bytes
        under every allocator."""
        config = afflict(
            ServerConfig(
                **{
                    "block_size": block_size,
                    "kv_memory_bytes": (blocks + 1)
                    * block_size
                    * kv_format(options.get("kv_dtype", "auto")).bytes_per_token(
                        layers=shape.layers, kv_heads=shape.kv_heads, head_dim=shape.head_dim
                    ),
                    "prefix_caching": prefix_caching,
                    "max_num_seqs": max_num_seqs,
                    "max_num_batched_tokens": max_num_batched_tokens,
                    "max_model_len": 2048,
                    "check_integrity": True,
                    **options,
                }
            )
        )
        self.metrics = Metrics("small", vllm_names=False)
        self.core: EngineCore = build_core(config, self.metrics, shape)
        self.events: dict[str, list[TokenEvent]] = {}

    def add(
        self,
        prompt: str | list[int],
        max_tokens: int = 8,
        *,
        sampling: SamplingParams | None = None,
        stops: Sequences[str] = (),
        ignore_eos: bool = True,
        cache_salt: str | None = None,
    ) -> Sequence:
        tokens = TOKENIZER.encode(prompt) if isinstance(prompt, str) else list(prompt)
        sequence = Sequence(
            request_id=f"r{next(_ids)}",
            tokens=tokens,
            num_prompt_tokens=len(tokens),
            max_tokens=max_tokens,
            chooser=TokenChooser(sampling or SamplingParams()),
            text=TextStream(TOKENIZER, stops),
            chain=self.core.chain(cache_salt),
            timeline=Timeline(arrived=time.monotonic()),
            stop_tokens=frozenset() if ignore_eos else TOKENIZER.eos_tokens,
        )
        self.core.add(sequence)
        return sequence

    def step(self) -> None:
        for request_id, event in self.core.step():
            self.events.setdefault(request_id, []).append(event)

    def drain(self, most_steps: int = 5000) -> None:
        for _ in range(most_steps):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError(f"still busy after {most_steps} steps")

    def generate(self, prompts: Sequences[str], max_tokens: int = 8) -> list[str]:
        """Texts of requests that run together."""
        sequences = [self.add(prompt, max_tokens) for prompt in prompts]
        self.drain()
        return [self.text(sequence) for sequence in sequences]

    def text(self, sequence: Sequence) -> str:
        return "".join(event.text for event in self.events.get(sequence.request_id, []))

    def value(self, name: str, **labels: str) -> float:
        """A counter of the metrics registry."""
        found = self.metrics.registry.get_sample_value(
            "kvprobe:" + name, {"model_name": "small", "engine": "0", **labels}
        )
        assert found is not None, name
        return found


def naive_logits(shape: LlamaConfig, weights: LlamaWeights, tokens: list[int]) -> torch.Tensor:
    """The model written down plainly: no cache, no batch, attention over the whole square.

    Shares the weights with the server and no code of its forward pass.
    """
    count, half = len(tokens), shape.head_dim // 2
    x = weights.embedding[torch.tensor(tokens)].double()
    inverse = 1.0 / shape.rope_theta ** (torch.arange(half, dtype=torch.float64) * 2 / shape.head_dim)
    angles = torch.arange(count, dtype=torch.float64)[:, None] * inverse[None]
    turn = torch.polar(torch.ones_like(angles), angles)
    future = torch.ones(count, count, dtype=torch.bool).triu(1)

    def norm(v: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return v / (v.pow(2).mean(-1, keepdim=True) + shape.norm_eps).sqrt() * scale.double()

    def rotate(v: torch.Tensor) -> torch.Tensor:
        turned = torch.complex(v[:, :half].contiguous(), v[:, half:].contiguous()) * turn
        return torch.cat([turned.real, turned.imag], dim=-1)

    for layer in weights.layers:
        heads = (norm(x, layer.attention_norm) @ layer.qkv.double().T).split(shape.head_dim, dim=-1)
        outputs = []
        for head in range(shape.heads):
            shared = shape.heads + head * shape.kv_heads // shape.heads
            key, value = rotate(heads[shared]), heads[shared + shape.kv_heads]
            scores = rotate(heads[head]) @ key.T / shape.head_dim**0.5
            outputs.append(scores.masked_fill(future, float("-inf")).softmax(-1) @ value)
        x = x + torch.cat(outputs, dim=-1) @ layer.out.double().T
        gate, up = (norm(x, layer.mlp_norm) @ layer.gate_up.double().T).chunk(2, dim=-1)
        x = x + (gate * torch.sigmoid(gate) * up) @ layer.down.double().T
    return norm(x, weights.norm) @ weights.head.double().T


def count_ties(shape: LlamaConfig, sequence: Sequence, seed: int = 0, tie: float = 1e-3) -> int:
    """Check that each generated token is the oracle's choice; returns how many were ties.

    Where the oracle's two best logits are closer than `tie`, either is right.
    """
    logits = naive_logits(shape, random_weights(shape, seed), sequence.tokens[:-1])
    allowed = torch.full((shape.vocabulary_size,), float("-inf"), dtype=torch.float64)
    allowed[[t for t in TOKENIZER.sampleable() if t not in TOKENIZER.eos_tokens]] = 0.0
    ties = 0
    for position in range(sequence.num_prompt_tokens - 1, len(sequence.tokens) - 1):
        row = logits[position] + allowed
        token = sequence.tokens[position + 1]
        assert float(row.max() - row[token]) < tie, f"token {position + 1} is not the oracle's"
        ties += int(row.argmax()) != token
    return ties
