"""Each attention backend against a plain computation, in every KV format, and with windows."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from reference_server.attention.backend import AttentionBackend, TokenSpan
from reference_server.attention.formats import KV_FORMATS
from reference_server.attention.sdpa import SdpaAttention
from reference_server.attention.store import KVStore
from reference_server.models.shape import LlamaConfig
from reference_server.native.attention import NativeAttention
from reference_server.native.library import library

TOLERANCE = {"fp32": 2e-5, "bf16": 0.03, "fp16": 0.004, "fp8": 0.4, "int8": 0.06}
BLOCK = 8


def sdpa(shape: LlamaConfig, store: KVStore) -> AttentionBackend[Any]:
    return SdpaAttention(shape, store)


def native(shape: LlamaConfig, store: KVStore) -> AttentionBackend[Any]:
    kernels = library()
    if kernels is None:
        pytest.skip("install a C compiler (Debian: gcc libc6-dev) for the kernels in C")
    return NativeAttention(shape, store, kernels)


def in_triton(shape: LlamaConfig, store: KVStore) -> AttentionBackend[Any]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("install triton (pip install triton, x86-64 Linux), as the extra `test` does")
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"  # read when the package is imported
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("triton was imported without its interpreter: set TRITON_INTERPRET=1 before")
    from reference_server.attention.paged import TritonAttention

    return TritonAttention(shape, store, split=32)


BACKENDS: dict[str, Callable[[LlamaConfig, KVStore], AttentionBackend[Any]]] = {
    "sdpa": sdpa,
    "native": native,
    "triton": in_triton,
}


def shape_of(heads: int, kv_heads: int, dim: int, window: int | None) -> LlamaConfig:
    return LlamaConfig("s", 10, 8, 8, 1, heads, kv_heads, dim, 512, windows=(window,))


def store_for(shape: LlamaConfig, form: str, blocks: int, block_size: int = BLOCK) -> KVStore:
    return KVStore(
        layers=1,
        num_blocks=blocks,
        kv_heads=shape.kv_heads,
        block_size=block_size,
        head_dim=shape.head_dim,
        form=KV_FORMATS[form],
    )


def plain(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, window: int | None
) -> torch.Tensor:
    """`[new, heads, dim]` over `[all, kv_heads, dim]`, in double."""
    shared = queries.shape[1] // keys.shape[1]
    k, v = (t.double().repeat_interleave(shared, dim=1) for t in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries.double(), k) / math.sqrt(queries.shape[2])
    at = torch.arange(start, start + len(queries))[:, None]
    key = torch.arange(len(keys))[None, :]
    hidden = key > at
    if window is not None:
        hidden |= key <= at - window
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).float()


class Case:
    """Sequences whose tokens arrive in spans; the tables are shuffled."""

    def __init__(self, shape: LlamaConfig, lengths: Sequence[int], block_size: int = BLOCK) -> None:
        torch.manual_seed(3)
        self.shape, self.lengths = shape, lengths
        sizes = [(n, shape.heads + 2 * shape.kv_heads, shape.head_dim) for n in lengths]
        self.qkv = [torch.randn(size) for size in sizes]
        counts = [-(-n // block_size) for n in lengths]
        ids = list(range(1, sum(counts) + 1))
        random.Random(1).shuffle(ids)
        self.tables = [[ids.pop() for _ in range(count)] for count in counts]
        self.blocks = sum(counts) + 1

    def step(self, backend: AttentionBackend[Any], parts: Sequence[tuple[int, int]]) -> list[torch.Tensor]:
        """Tokens `start .. end` of each sequence, as one batch; the output of each."""
        spans, rows = [], 0
        for table, (start, end) in zip(self.tables, parts, strict=True):
            spans.append(TokenSpan((table,), start, end - start, rows))
            rows += end - start
        batch = torch.cat([qkv[a:b] for qkv, (a, b) in zip(self.qkv, parts, strict=True)])
        plan = backend.plan(spans, rows)
        h, k = self.shape.heads, self.shape.kv_heads
        backend.append(0, batch[:, h : h + k], batch[:, h + k :], plan)
        found = backend.attend(0, batch[:, :h].contiguous(), plan).view(rows, h, -1).clone()
        return [found[span.row : span.row + span.count] for span in spans]

    def expected(self, index: int, start: int, end: int) -> torch.Tensor:
        h, k = self.shape.heads, self.shape.kv_heads
        qkv = self.qkv[index][:end]
        return plain(qkv[start:, :h], qkv[:, h : h + k], qkv[:, h + k :], start, self.shape.window(0))


@pytest.mark.parametrize("form", KV_FORMATS)
@pytest.mark.parametrize("window", [None, 11])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_attends(name: str, window: int | None, form: str) -> None:
    shape = shape_of(heads=4, kv_heads=2, dim=16, window=window)
    case = Case(shape, (37, 10))
    store = store_for(shape, form, case.blocks)
    backend = BACKENDS[name](shape, store)
    tolerance = TOLERANCE[form]
    for parts in ([(0, 30), (0, 9)], [(30, 36), (9, 10)], [(36, 37), (9, 10)]):
        for index, found in enumerate(case.step(backend, parts)):
            torch.testing.assert_close(
                found, case.expected(index, *parts[index]), atol=tolerance, rtol=tolerance
            )


@pytest.mark.parametrize("name", ["sdpa", "native"])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(3, 3, 20), (9, 1, 64), (2, 1, 128)])
def test_odd_shapes(name: str, heads: int, kv_heads: int, dim: int) -> None:
    shape = shape_of(heads, kv_heads, dim, None)
    case = Case(shape, (200,), block_size=1)
    backend = BACKENDS[name](shape, store_for(shape, "fp32", case.blocks, block_size=1))
    for start, end in ((0, 150), (150, 199), (199, 200)):
        found = case.step(backend, [(start, end)])[0]
        torch.testing.assert_close(found, case.expected(0, start, end), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("form", KV_FORMATS)
def test_the_kernel_and_torch_store_the_same_numbers(form: str) -> None:
    shape = shape_of(4, 2, 32, None)
    case = Case(shape, (40,))
    case.qkv[0][3] = 0.0
    case.qkv[0][5] *= 300.0
    case.qkv[0][7] *= 1e-3
    stores = [store_for(shape, form, case.blocks) for _ in range(2)]
    for make, store in zip((sdpa, native), stores, strict=True):
        backend = make(shape, store)
        case.step(backend, [(0, 6)])
        case.step(backend, [(6, 40)])
    kept = [store.gather(0, torch.arange(case.blocks * shape.kv_heads)) for store in stores]
    for ours, theirs in zip(*kept, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["sdpa", "native"])
def test_a_row_does_not_depend_on_its_company(name: str) -> None:
    shape = shape_of(6, 2, 32, None)
    case = Case(shape, (90, 41, 130))
    outcomes = []
    for cuts in ((0, 89), (0, 17, 64, 89)):
        backend = BACKENDS[name](shape, store_for(shape, "fp32", case.blocks))
        for start, end in itertools.pairwise(cuts):
            case.step(backend, [(start, end), (min(start, 40), min(end, 41)), (start, end + 41)])
        outcomes.append(case.step(backend, [(89, 90), (40, 41), (129, 130)]))
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
    if name == "native":
        assert all(torch.equal(one, other) for one, other in zip(*outcomes, strict=True))
