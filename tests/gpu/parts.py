"""Parts of the GPU check: the same numbers and texts as the CPU's, and memory that runs out for real.

Each takes the device, so that a test can try it on a CPU: there with less, and in Triton's interpreter.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from reference_server.attention.formats import KV_FORMATS, kv_format
from reference_server.attention.paged import TritonAttention, VarlenAttention
from reference_server.attention.sdpa import SdpaAttention
from reference_server.attention.store import KVStore
from reference_server.build import build_core
from reference_server.config import ServerConfig
from reference_server.metrics import Metrics
from reference_server.models.shape import LlamaConfig
from tests.reference_server.attention.test_backends import TOLERANCE, Case, shape_of
from tests.reference_server.server_rig import TOKENIZER, Rig

MIB = 1024**2
PROMPTS = ["the same on both", "a" * 300, "blocks and tables " * 12, "x", "long " * 90]
STEPS = ([(0, 30), (0, 290)], [(30, 36), (290, 299)], [(36, 37), (299, 300)])
KINDS = {"sdpa": SdpaAttention, "triton": TritonAttention, "varlen": VarlenAttention}


def backends_agree(device: str) -> dict[str, Any]:
    """Each backend against a plain computation in double on the CPU; largest errors."""
    forms = KV_FORMATS if device == "cuda" else ("fp32", "int8")
    wanted = [("sdpa", "fp32"), *(("triton", form) for form in forms)]
    if device == "cuda":
        wanted.append(("varlen", "bf16"))
    found = {}
    for name, form in wanted:
        for window in (None, 11):
            worst = _worst_error(name, form, window, device)
            found[f"{name} {form} window {window}"] = worst
            assert worst < 2 * TOLERANCE[form], f"{name} {form}: off by {worst}"
    return found


def _worst_error(name: str, form: str, window: int | None, device: str) -> float:
    shape = shape_of(4, 2, 64, window)
    size = 256 if name == "varlen" else 16
    case = Case(shape, (37, 300), block_size=size)
    store = KVStore(
        layers=1,
        num_blocks=case.blocks,
        kv_heads=2,
        block_size=size,
        head_dim=64,
        form=kv_format(form),
        head_major=name != "varlen",
        device=device,
    )
    backend, worst, on_cpu = KINDS[name](shape, store), 0.0, case.qkv
    on_device = [qkv.to(device) for qkv in on_cpu]
    for parts in STEPS:
        case.qkv = on_device
        outputs = [output.cpu() for output in case.step(backend, parts)]
        case.qkv = on_cpu
        for index, output in enumerate(outputs):
            expected = case.expected(index, *parts[index])
            worst = max(worst, float((output - expected).abs().max()))
    return worst


def rig_of(shape: LlamaConfig | None = None, **options: Any) -> Rig:
    """A core that is stepped by hand; the model `tiny` unless a shape is given."""
    rig = Rig.__new__(Rig)
    rig.metrics = Metrics("small", vllm_names=False)
    rig.core, rig.events = build_core(ServerConfig(**options), rig.metrics, shape), {}
    return rig


def texts_agree(device: str) -> dict[str, Any]:
    """Greedy texts of `tiny` on the CPU and on the device; with Triton decoding is in graphs."""

    def texts(device: str, attention: str) -> list[list[int]]:
        rig = rig_of(
            device=device, attention=attention, kv_memory_bytes=64 * MIB, max_model_len=1024, max_num_seqs=8
        )
        rig.core.runner.warm_up(64)
        rig.core.runner.capture(8, 1024)
        sequences = [rig.add(TOKENIZER.encode(prompt), 24) for prompt in PROMPTS]
        rig.drain()
        return [sequence.tokens for sequence in sequences]

    expected = texts("cpu", "sdpa")
    others = ("sdpa", "triton") if device == "cuda" else ("auto",)
    equal = {name: texts(device, name) == expected for name in others}
    assert all(equal.values()), f"texts differ: {equal} (a near-tie of two logits may do this; look)"
    return equal


def capacity(device: str) -> dict[str, Any]:
    """Most requests at once in the same memory: pages, and a region of the full length each."""
    most = {}
    for allocator in ("paged", "contiguous"):
        rig = rig_of(
            device=device, allocator=allocator, kv_memory_bytes=32 * MIB, max_model_len=2048, max_num_seqs=256
        )
        for i in range(64 if device == "cuda" else 24):
            rig.add(TOKENIZER.encode("word " * (5 + i % 40)), 32)
        rig.drain()
        most[allocator] = rig.core.state.running_max
    assert most["paged"] > most["contiguous"]
    return most


class _Kept(logging.Handler):
    """Messages, kept."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def out_of_memory(device: str) -> dict[str, Any]:
    """Regions are allocated until the device refuses, with its own error; requests wait, and all finish."""
    logger, kept = logging.getLogger("reference_server.device_segments"), _Kept()
    logger.addHandler(kept)
    logger.setLevel(logging.DEBUG)
    try:
        found = {name: _fill(name, device, kept) for name in ("contiguous", "contiguous-exact")}
    finally:
        logger.removeHandler(kept)
        logger.setLevel(logging.NOTSET)
    return found


def _fill(allocator: str, device: str, kept: _Kept) -> dict[str, Any]:
    options: dict[str, Any] = {"device_memory_bytes": 60 * MIB, "gpu_memory_utilization": 0.9}
    if device == "cuda":
        # A small share of a large card: weights, passes and some hundred MiB of regions.
        total = torch.cuda.mem_get_info()[1]
        used = torch.cuda.memory_reserved()
        options = {"gpu_memory_utilization": min(max((used + 400 * MIB) / total, 0.002), 0.9)}
    rig = rig_of(
        device=device,
        allocator=allocator,
        pool_from_device=True,
        max_model_len=1100,
        max_num_seqs=256,
        **options,
    )
    kept.messages.clear()
    slots = rig.core.state.usage.blocks_total
    sequences = [rig.add(TOKENIZER.encode("w" * 1000), 40) for _ in range(2 + 2 * slots // 1040)]
    rig.drain()
    assert all(sequence.num_output_tokens == 40 for sequence in sequences)
    assert kept.messages, "no allocation failed"
    words = "CUDA out of memory" if device == "cuda" else "out of device memory"
    assert words in kept.messages[0], kept.messages[0]
    return {
        "requests": len(sequences),
        "at once": rig.core.state.running_max,
        "failed allocations": len(kept.messages),
        "error": " ".join(kept.messages[0].split())[:300],
    }
