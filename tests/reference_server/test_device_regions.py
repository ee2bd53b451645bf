"""Contiguous allocators on a device with a total: regions are allocated, freed, and refused for real."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from reference_server.attention.formats import KV_FORMATS
from reference_server.attention.segments import SegmentedStore, SegmentShape
from reference_server.attention.select import make_attention
from reference_server.attention.store import KVStore
from reference_server.config import ServerConfig
from reference_server.device import CpuMemory, OutOfDeviceMemory
from reference_server.device_segments import DeviceSegments
from reference_server.errors import ConfigError
from reference_server.kv.backed import BackedRegions
from reference_server.sequence import FinishReason
from tests.reference_server.memory_model import FewSegments
from tests.reference_server.server_rig import SMALL, Rig
from tests.reference_server.test_core import words
from tests.reference_server.test_device_memory import device_rig, memory_of

MIB = 1024**2
TOTAL = 6 * MIB
CONTIGUOUS = ("contiguous", "contiguous-exact")


def rig_of(allocator: str, **options: Any) -> Rig:
    settings = {"max_model_len": 160, "gpu_memory_utilization": 0.25, "check_integrity": True, **options}
    return device_rig(TOTAL, allocator=allocator, **settings)


def segments_of(rig: Rig) -> SegmentedStore:
    store = rig.core.runner._model.attention.store
    assert isinstance(store, SegmentedStore)
    return store


@pytest.mark.parametrize("attention", ["native", "sdpa"])
@pytest.mark.parametrize("allocator", CONTIGUOUS)
def test_what_a_request_needs_is_allocated_and_freed_with_it(allocator: str, attention: str) -> None:
    rig = rig_of(allocator, attention=attention)
    store, memory = segments_of(rig), memory_of(rig)
    assert rig.value("kv_backed_bytes") == store.nbytes == store.block_bytes
    rig.generate([words(9, 100)], 8)  # buffers of the passes stay
    before = memory.own
    sequence = rig.add(words(1, 100), 8)
    rig.step()
    held = store.nbytes - store.block_bytes
    assert held >= len(sequence.block_table) * store.block_bytes > 0
    if attention == "native":  # `sdpa` keeps buffers that grow with the tokens it gathers
        assert memory.own == before + held
    assert rig.value("kv_backed_bytes") == store.nbytes
    rig.drain()
    assert store.nbytes == store.block_bytes
    if attention == "native":
        assert memory.own == before
    assert rig.value("kv_pool_bytes") == rig.value("kv_free_bytes") + rig.value("kv_null_block_bytes")


@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("attention", ["native", "sdpa"])
@pytest.mark.parametrize("allocator", CONTIGUOUS)
def test_texts_are_those_of_a_pool_in_one_piece(allocator: str, attention: str, kv_dtype: str) -> None:
    prompts = [words(seed, 20 + 17 * seed) for seed in range(6)]
    options: dict[str, Any] = {"attention": attention, "kv_dtype": kv_dtype, "max_model_len": 160}
    expected = Rig(**options).generate(prompts, 24)
    rig = rig_of(allocator, attention=attention, kv_dtype=kv_dtype)
    assert rig.generate(prompts, 24) == expected
    assert rig.core.state.usage.blocks_used == 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_regions_that_move_and_are_preempted_lie_right(preemption: str) -> None:
    prompts = [words(seed, 60) for seed in range(8)]
    expected = Rig(max_model_len=320).generate(prompts, 90)
    rig = rig_of("contiguous-exact", preemption=preemption, max_model_len=320, gpu_memory_utilization=0.19)
    assert rig.generate(prompts, 90) == expected
    assert rig.value("num_preemptions_total") > 0
    assert rig.value("kv_moved_bytes_total") > 0


@pytest.mark.parametrize("allocator", CONTIGUOUS)
def test_a_full_device_makes_requests_wait_and_the_log_has_the_failure(
    allocator: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    rig = rig_of(allocator, max_num_seqs=64)
    memory_of(rig).phase = "serve"
    texts = rig.generate([words(seed, 110) for seed in range(20)], 40)
    assert all(len(text) == 40 for text in texts)
    failure = next(m for m in caplog.messages if m.startswith("the device refused a segment"))
    assert "out of device memory: asked" in failure
    assert "phase serve" in failure
    line = next(m for m in caplog.messages if m.startswith("no room in the KV cache"))
    asked, free, largest = (int(n) for n in re.findall(r"(\d+) B", line))
    assert asked > largest
    assert free >= largest


def test_a_neighbour_on_the_device_is_met_by_the_allocation() -> None:
    rig = rig_of("contiguous")
    first = rig.add(words(1, 100), 30)
    rig.step()
    memory = memory_of(rig)
    memory.take_for_others(memory.free - 450_000)  # of which passes need most
    second = rig.add(words(2, 100), 4)
    rig.step()
    shortage = rig.core.allocator.last_shortage
    assert shortage is not None
    assert shortage.asked > shortage.free, "no memory, not pieces of it"
    assert not shortage.fragmented
    assert rig.core.scheduler.waiting[0] is second
    memory.others = 0
    rig.drain()
    assert (first.finished, second.finished) == (FinishReason.LENGTH, FinishReason.LENGTH)


@pytest.mark.parametrize("allocator", CONTIGUOUS)
def test_a_request_of_all_that_fits_runs_alone(allocator: str) -> None:
    rig = rig_of(allocator, max_model_len=512, gpu_memory_utilization=0.3)
    most = rig.core.allocator.capacity_tokens
    rig.generate([words(3, 100), words(4, 40)], 30)
    assert len(rig.generate([words(5, most - 41)], 40)[0]) == 40


def test_a_line_in_segments_keeps_small_holes_and_frees_empty_segments() -> None:
    segments = FewSegments(4)
    regions, present = BackedRegions(segments, segment_slots=10, count=4, most=100), segments.present
    assert (regions.total, regions.free, regions.largest, regions.backed) == (40, 40, 40, 0)
    assert [regions.take(8) for _ in range(5)] == [10, 18, 26, 34, 42]
    for start in (10, 26, 42):
        regions.give(start, 8)
    regions.check([(18, 8), (34, 8)])
    assert present == {1, 2, 3, 4}
    # 24 are free, and the longest run is the one behind the last region.
    assert (regions.free, regions.largest) == (24, 8)
    assert regions.take(9) is None
    assert regions.available == (24, 8)
    regions.give(34, 8)
    assert present == {1, 2}
    assert regions.take(20) == 26
    assert present == {1, 2, 3, 4}
    assert not regions.take_at(46, 10)
    regions.check([(18, 8), (26, 20)])


@pytest.mark.parametrize("form", KV_FORMATS)
def test_segments_store_what_one_piece_does(form: str) -> None:
    shape = {"layers": 2, "kv_heads": 2, "block_size": 1, "head_dim": 8, "form": KV_FORMATS[form]}
    whole, cut = KVStore(num_blocks=16, **shape), SegmentedStore(segments=SegmentShape(5, 9), **shape)
    for index in (1, 2):
        cut.allocate(index)
    torch.manual_seed(4)
    keys, values = torch.randn(6, 2, 8), torch.randn(6, 2, 8)
    blocks = torch.tensor([6, 13, 9, 5, 0, 10])
    for store in (whole, cut):
        rows = store.row_of(blocks, torch.zeros(6, dtype=torch.int64))
        store.write(1, rows, keys, values)
        store.copy_blocks([6, 13], [12, 7])
        kept = store.export_blocks([5, 12])
        store.import_blocks([14], kept, rows=[1])
    wanted = torch.tensor([12, 7, 9, 14, 0, 6])
    rows = (wanted[:, None] * 2 + torch.arange(2)).reshape(-1)
    found = [[part.clone() for part in store.gather(1, rows)] for store in (whole, cut)]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_failing_allocation_gives_back_what_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA it is torch that fails, after the books were written."""
    memory = CpuMemory(MIB)
    store = SegmentedStore(segments=SegmentShape(16, 9), layers=1, kv_heads=1, block_size=1, head_dim=8)
    segments = DeviceSegments(store, memory, share=1.0, activation_peak=1000)
    own = memory.own

    def fail(index: int) -> None:
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {index} GiB.")

    monkeypatch.setattr(store, "allocate", fail)
    assert segments.allocate(1) is False
    assert (memory.own, segments.present) == (own, set())
    with memory.keeping(1.0, 1000), pytest.raises(OutOfDeviceMemory, match="free 1047512 B"):
        memory.take(MIB - 1000)


def test_kernels_that_read_one_piece_are_refused() -> None:
    config = ServerConfig(device="cuda", allocator="contiguous", attention="triton", pool_from_device=True)
    with pytest.raises(ConfigError, match="triton reads a pool in one piece; with --allocator contiguous"):
        make_attention(config, SMALL, 1, segments=SegmentShape(8, 4))
