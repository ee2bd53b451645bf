"""Speed of an 8B-shaped random model against what the GPU can do at most."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from reference_server.attention.formats import kv_format
from reference_server.attention.paged import TritonAttention
from reference_server.attention.store import KVStore
from reference_server.kv.paged import blocks_for
from reference_server.models.llama import LlamaModel
from reference_server.models.shape import LlamaConfig
from reference_server.models.weights import LayerWeights, LlamaWeights
from reference_server.runner import ModelRunner
from reference_server.scheduler import Scheduled
from tests.reference_server.server_rig import TOKENIZER, Rig

SPARE_TOKENS = 64
"""Room beyond the context."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is measured: a model's shape, and how much it is given."""

    shape: LlamaConfig
    context: int
    batches: tuple[int, ...]
    prefill_tokens: int
    copy_bytes: int
    product_size: int

    @property
    def blocks_each(self) -> int:
        return blocks_for(self.context + SPARE_TOKENS, 16)


EIGHT_B = Task(
    LlamaConfig("8b-shaped", 128256, 4096, 14336, 32, 32, 8, 128, 8192),
    context=1024,
    batches=(1, 8, 32),
    prefill_tokens=4096,
    copy_bytes=1 << 31,
    product_size=8192,
)
MINIATURE = Task(
    LlamaConfig("miniature", 300, 64, 96, 2, 4, 2, 16, 8192),
    context=32,
    batches=(1, 2),
    prefill_tokens=64,
    copy_bytes=1 << 20,
    product_size=64,
)
"""For trying the logic where there is no GPU."""


def speed(device: str) -> dict[str, Any]:
    """Decode steps against bytes / measured bandwidth; a prefill against the measured matmul rate."""
    task = EIGHT_B if device == "cuda" else MINIATURE
    bandwidth, rate = _bandwidth(task, device), _matmul_rate(task, device)
    weights = _random_weights(task.shape, device)
    store = KVStore(
        layers=task.shape.layers,
        num_blocks=max(task.batches) * task.blocks_each + 1,
        kv_heads=task.shape.kv_heads,
        block_size=16,
        head_dim=task.shape.head_dim,
        form=kv_format("bf16"),
        device=device,
    )
    runner = ModelRunner(LlamaModel(task.shape, weights, TritonAttention(task.shape, store)), TOKENIZER)
    runner._forbidden = None  # the tokenizer is the tiny model's
    runner.warm_up(64)
    runner.capture(max(task.batches), task.context + SPARE_TOKENS)
    found: dict[str, Any] = {"bandwidth_bytes_per_s": bandwidth, "matmul_flops": rate}
    for batch in task.batches:
        work = [_scheduled(task, i, task.context, task.context + 1) for i in range(batch)]
        seconds = timed(lambda work=work: runner.run(work), 20, device)
        least = (weights.pass_bytes + batch * task.context * store.block_bytes // 16) / bandwidth
        found[f"decode of {batch}"] = {"s": seconds, "limit_s": least, "share_of_limit": least / seconds}
    work = [_scheduled(task, i, 0, task.context) for i in range(task.prefill_tokens // task.context)]
    seconds = timed(lambda: runner.run(work), 3, device)
    flops = 2 * task.prefill_tokens * sum(p.numel() for layer in weights.layers for p in layer.parts())
    found["prefill"] = {"s": seconds, "share_of_matmul_rate": flops / seconds / rate}
    return found


def _random_weights(s: LlamaConfig, device: str) -> LlamaWeights:
    """bf16, made on the device; 8B-shaped some 16 GB."""

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device=device, dtype=torch.bfloat16).mul_(columns**-0.5)

    ones = torch.ones(s.hidden, device=device, dtype=torch.bfloat16)
    layers = [
        LayerWeights(
            attention_norm=ones,
            qkv=matrix((s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden),
            out=matrix(s.hidden, s.heads * s.head_dim),
            mlp_norm=ones,
            gate_up=matrix(2 * s.intermediate, s.hidden),
            down=matrix(s.hidden, s.intermediate),
        )
        for _ in range(s.layers)
    ]
    size = s.vocabulary_size
    return LlamaWeights(matrix(size, s.hidden), layers, ones, matrix(size, s.hidden))


def _scheduled(task: Task, index: int, computed: int, tokens: int) -> Scheduled:
    """The next tokens of a sequence whose first `computed` are stored."""
    rig = Rig.__new__(Rig)

    class _Core:
        chain = staticmethod(lambda salt: None)
        add = staticmethod(lambda sequence: None)

    rig.core = _Core()
    sequence = rig.add([7] * tokens, 8)
    sequence.num_computed = computed
    each = task.blocks_each
    sequence.block_table = range(1 + index * each, 1 + (index + 1) * each)
    return Scheduled(sequence, tokens - computed)


def timed(run: Callable[[], object], times: int, device: str) -> float:
    """Seconds, best of `times`, after two that do not count."""
    times = times if device == "cuda" else 1
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    best = float("inf")
    for turn in range(times + 2):
        wait()
        started = time.perf_counter()
        run()
        wait()
        if turn >= 2:
            best = min(best, time.perf_counter() - started)
    return best


def _bandwidth(task: Task, device: str) -> float:
    """Bytes a second read and written by a copy."""
    source = torch.empty(task.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / timed(lambda: target.copy_(source), 10, device)


def _matmul_rate(task: Task, device: str) -> float:
    """FLOP/s of a bf16 product of square matrices."""
    size = task.product_size
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / timed(lambda: a @ b, 10, device)
