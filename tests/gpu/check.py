"""What only a GPU can show: parity with the CPU, capacity, decode and prefill against the hardware's limits.

Run by check.sh. Writes check.json and check.md after every part: an interrupted run leaves what it has.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from reference_server.attention.formats import kv_format
from reference_server.attention.paged import TritonAttention, VarlenAttention
from reference_server.attention.sdpa import SdpaAttention
from reference_server.attention.store import KVStore
from reference_server.build import build_core
from reference_server.config import ServerConfig
from reference_server.kv.paged import blocks_for
from reference_server.metrics import Metrics
from reference_server.models.llama import LlamaModel
from reference_server.models.shape import LlamaConfig
from reference_server.models.weights import LayerWeights, LlamaWeights
from reference_server.runner import ModelRunner
from reference_server.scheduler import Scheduled
from tests.reference_server.attention.test_backends import TOLERANCE, Case, shape_of
from tests.reference_server.server_rig import TOKENIZER, Rig

MIB, GB = 1024**2, 10**9
EIGHT_B = LlamaConfig("8b-shaped", 128256, 4096, 14336, 32, 32, 8, 128, 8192)
CONTEXT = 1024
BATCHES = (1, 8, 32)
PREFILL_TOKENS = 4096
PROMPTS = ["the same on both", "a" * 300, "blocks and tables " * 12, "x", "long " * 90]


def backends_agree() -> dict[str, Any]:
    """Each backend on the GPU against a plain computation in double on the CPU."""
    found = {}
    for name, form in (
        ("sdpa", "fp32"),
        *(("triton", form) for form in ("fp32", "bf16", "fp16", "fp8", "int8")),
        ("varlen", "bf16"),
    ):
        for window in (None, 11):
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
                device="cuda",
            )
            kind = {"sdpa": SdpaAttention, "triton": TritonAttention, "varlen": VarlenAttention}[name]
            wanted = [qkv.cpu() for qkv in case.qkv]
            case.qkv = [qkv.cuda() for qkv in case.qkv]
            backend, worst = kind(shape, store), 0.0
            for parts in ([(0, 30), (0, 290)], [(30, 36), (290, 299)], [(36, 37), (299, 300)]):
                outputs = [o.cpu() for o in case.step(backend, parts)]
                gpu, case.qkv = case.qkv, wanted
                for index, output in enumerate(outputs):
                    expected = case.expected(index, *parts[index])
                    worst = max(worst, float((output - expected).abs().max()))
                case.qkv = gpu
            found[f"{name} {form} window {window}"] = worst
            assert worst < 2 * TOLERANCE[form], f"{name} {form}: off by {worst}"
    return found


def texts_agree() -> dict[str, Any]:
    """Greedy texts of `tiny` on the CPU, on the GPU, and on the GPU with graphs."""

    def texts(device: str, attention: str) -> list[list[int]]:
        config = ServerConfig(
            device=device, attention=attention, kv_memory_bytes=64 * MIB, max_model_len=1024, max_num_seqs=8
        )
        rig = Rig.__new__(Rig)
        rig.metrics = Metrics("small", vllm_names=False)
        rig.core, rig.events = build_core(config, rig.metrics), {}
        rig.core.runner.warm_up(64)
        rig.core.runner.capture(8, 1024)
        sequences = [rig.add(TOKENIZER.encode(prompt), 24) for prompt in PROMPTS]
        rig.drain()
        return [sequence.tokens for sequence in sequences]

    expected = texts("cpu", "sdpa")
    equal = {name: texts("cuda", name) == expected for name in ("sdpa", "triton")}
    assert all(equal.values()), f"texts differ: {equal} (a near-tie of two logits may do this; look)"
    return equal


def capacity() -> dict[str, Any]:
    """Most requests at once in the same memory: pages, and a region of the full length each."""
    most = {}
    for allocator in ("paged", "contiguous"):
        config = ServerConfig(
            device="cuda", allocator=allocator, kv_memory_bytes=64 * MIB, max_model_len=2048, max_num_seqs=256
        )
        rig = Rig.__new__(Rig)
        rig.metrics = Metrics("small", vllm_names=False)
        rig.core, rig.events = build_core(config, rig.metrics), {}
        for i in range(128):
            rig.add(TOKENIZER.encode("word " * (5 + i % 40)), 32)
        rig.drain()
        most[allocator] = rig.core.state.running_max
    assert most["paged"] > most["contiguous"]
    return most


def out_of_memory() -> dict[str, Any]:
    """A pool larger than what is free fails with torch's own error, and the server says so in a line."""
    free = torch.cuda.mem_get_info()[0]
    try:
        store_on_gpu(free + (1 << 30))
    except torch.OutOfMemoryError as error:
        return {"free_bytes": free, "error": str(error).splitlines()[0][:300]}
    raise AssertionError("there was memory for more than is free")


def store_on_gpu(size: int) -> KVStore:
    per_block = 2 * 16 * 8 * 128 * 2
    return KVStore(
        layers=1,
        num_blocks=size // per_block,
        kv_heads=8,
        block_size=16,
        head_dim=128,
        form=kv_format("bf16"),
        device="cuda",
    )


def random_8b() -> LlamaWeights:
    """bf16, made on the GPU; some 16 GB."""

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16).mul_(columns**-0.5)

    s = EIGHT_B
    ones = torch.ones(s.hidden, device="cuda", dtype=torch.bfloat16)
    width = s.heads * s.head_dim
    layers = [
        LayerWeights(
            attention_norm=ones,
            qkv=matrix((s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden),
            out=matrix(s.hidden, width),
            mlp_norm=ones,
            gate_up=matrix(2 * s.intermediate, s.hidden),
            down=matrix(s.hidden, s.intermediate),
        )
        for _ in range(s.layers)
    ]
    return LlamaWeights(
        matrix(s.vocabulary_size, s.hidden), layers, ones, matrix(s.vocabulary_size, s.hidden)
    )


def speed() -> dict[str, Any]:
    """Decode steps against bytes / measured bandwidth; a prefill against the measured matmul rate."""
    bandwidth, rate = measured_bandwidth(), measured_matmul()
    blocks = max(BATCHES) * blocks_for(CONTEXT + 64, 16) + 1
    weights = random_8b()
    store = KVStore(
        layers=32,
        num_blocks=blocks,
        kv_heads=8,
        block_size=16,
        head_dim=128,
        form=kv_format("bf16"),
        device="cuda",
    )
    model = LlamaModel(EIGHT_B, weights, TritonAttention(EIGHT_B, store))
    runner = ModelRunner(model, TOKENIZER)
    runner._forbidden = None  # the tokenizer is the tiny model's
    runner.warm_up(512)
    runner.capture(max(BATCHES), CONTEXT + 64)
    found: dict[str, Any] = {"bandwidth_bytes_per_s": bandwidth, "matmul_flops": rate}
    for batch in BATCHES:
        seconds = timed(lambda batch=batch: runner.run(decode_work(batch)), 20)
        least = (weights.pass_bytes + batch * CONTEXT * store.block_bytes // 16) / bandwidth
        found[f"decode of {batch}"] = {"s": seconds, "limit_s": least, "share_of_limit": least / seconds}
    work = prefill_work()
    seconds = timed(lambda: runner.run(work), 3)
    flops = 2 * PREFILL_TOKENS * sum(p.numel() for layer in weights.layers for p in layer.parts())
    found["prefill"] = {"s": seconds, "share_of_matmul_rate": flops / seconds / rate}
    return found


def decode_work(batch: int) -> list[Scheduled]:
    return [scheduled(i, CONTEXT, CONTEXT + 1) for i in range(batch)]


def prefill_work() -> list[Scheduled]:
    return [scheduled(i, 0, CONTEXT) for i in range(PREFILL_TOKENS // CONTEXT)]


def scheduled(index: int, computed: int, tokens: int) -> Scheduled:
    rig = Rig.__new__(Rig)
    each = blocks_for(CONTEXT + 64, 16)

    class _Core:
        chain = staticmethod(lambda salt: None)
        add = staticmethod(lambda sequence: None)

    rig.core = _Core()
    sequence = rig.add([7] * tokens, 8)
    sequence.num_computed = computed
    sequence.block_table = range(1 + index * each, 1 + (index + 1) * each)
    return Scheduled(sequence, tokens - computed)


def timed(run: Callable[[], object], times: int) -> float:
    """Seconds, best of `times`, after two that do not count."""
    best = float("inf")
    for turn in range(times + 2):
        torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if turn >= 2:
            best = min(best, time.perf_counter() - started)
    return best


def measured_bandwidth() -> float:
    """Bytes a second read and written by a copy of 2 GiB."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / timed(lambda: target.copy_(source), 10)


def measured_matmul() -> float:
    """FLOP/s of a bf16 product of 8192 x 8192 matrices."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / timed(lambda: a @ b, 10)


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "attention backends agree with a plain computation": backends_agree,
    "greedy texts agree with the CPU's": texts_agree,
    "requests at once in the same memory": capacity,
    "a pool that does not fit": out_of_memory,
    "speed of an 8B-shaped random model": speed,
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was checked", file=sys.stderr)
        return 1
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "parts": {},
    }
    failed = False
    for name, part in PARTS.items():
        started = time.monotonic()
        try:
            outcome: dict[str, Any] = {"ok": True, "found": part()}
        except Exception as error:
            failed = True
            outcome = {"ok": False, "error": repr(error)[:500], "traceback": traceback.format_exc()[-3000:]}
        torch.cuda.empty_cache()
        results["parts"][name] = {**outcome, "seconds": round(time.monotonic() - started, 1)}
        write(results, out)
        print(f"{'ok    ' if outcome['ok'] else 'FAILED'} {name}: {outcome.get('found') or outcome['error']}")
    return int(failed)


def write(results: dict[str, Any], out: Path) -> None:
    (out / "check.json").write_text(json.dumps(results, indent=1) + "\n")
    lines = [f"# GPU check: {results['device']}, torch {results['torch']}", ""]
    for name, part in results["parts"].items():
        lines.append(f"- {'ok' if part['ok'] else 'FAILED'} ({part['seconds']} s) {name}: "
                     f"`{json.dumps(part.get('found') or part['error'])}`")  # fmt: skip
    (out / "check.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
