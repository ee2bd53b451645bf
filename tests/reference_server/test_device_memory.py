"""The CPU's device memory: a total that is kept to."""

from __future__ import annotations

import gc
import re

import pytest
import torch

from reference_server.budget import Budget, refuse_occupied
from reference_server.device import CpuMemory, OutOfDeviceMemory
from reference_server.errors import ConfigError
from reference_server.metered_runner import MeteredRunner
from tests.reference_server.server_rig import SMALL, Rig
from tests.reference_server.test_core import words

MIB = 1024**2


def device_rig(total: int, **options: object) -> Rig:
    return Rig(device_memory_bytes=total, pool_from_device=True, **options)


def memory_of(rig: Rig) -> CpuMemory:
    memory = rig.core.state.device
    assert isinstance(memory, CpuMemory)
    return memory


def test_tensors_are_counted_while_they_live() -> None:
    memory = CpuMemory(10 * MIB)
    with memory.counting() as transients:
        first = torch.zeros(MIB)
        view = first.view(1024, 1024)[:3]
        second = view + 1
        assert memory.own == first.nbytes + second.nbytes
        del first, view
        assert memory.own == second.nbytes
    del second
    gc.collect()
    assert memory.own == 0
    assert transients.peak == 4 * MIB + 3 * 4096


def test_what_does_not_fit_fails() -> None:
    memory = CpuMemory(4 * MIB)
    memory.take(MIB)
    memory.phase = "serve"
    with memory.counting(), pytest.raises(OutOfDeviceMemory) as failed:
        torch.zeros(MIB)
    assert str(failed.value) == (
        "out of device memory: asked 4194304 B, free 3145728 B, largest free region 3145728 B, "
        "total 4194304 B, held by this process 1048576 B, by others 0 B; phase serve"
    )
    memory.take_for_others(100 * MIB)
    assert (memory.free, memory.others) == (0, 3 * MIB)


def test_the_pool_is_what_is_left_of_the_share(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig = device_rig(8 * MIB, gpu_memory_utilization=0.5)
    line = next(m for m in caplog.messages if m.startswith("memory budget"))
    names = ("total", "free at start", "weights", "workspace", "activation peak", "left for KV")
    numbers = {name: int(re.search(rf"{name} (-?\d+) B", line)[1]) for name in names}  # type: ignore[index]
    assert numbers["total"] == numbers["free at start"] == 8 * MIB
    assert numbers["weights"] == rig.core.runner._model.weights.nbytes
    assert numbers["activation peak"] > 0
    assert numbers["left for KV"] == (
        4 * MIB - numbers["weights"] - numbers["workspace"] - numbers["activation peak"]
    )
    block = 16 * SMALL.kv_bytes_per_token()
    assert rig.core.state.pool_bytes == numbers["left for KV"] // block * block
    assert memory_of(rig).own >= numbers["weights"] + rig.core.state.pool_bytes
    assert rig.value("device_memory_total_bytes") == 8 * MIB
    assert rig.value("device_memory_own_bytes") == memory_of(rig).own
    assert len(rig.generate([words(1, 60)], 4)[0]) == 4


def test_a_larger_share_is_a_larger_pool_and_half_the_bytes_twice_the_tokens() -> None:
    small, large = device_rig(8 * MIB, gpu_memory_utilization=0.5), device_rig(8 * MIB)
    assert large.core.state.pool_bytes > small.core.state.pool_bytes
    half = device_rig(8 * MIB, kv_dtype="fp16")
    ratio = half.core.allocator.capacity_tokens / large.core.allocator.capacity_tokens
    assert 1.8 < ratio < 2.1


@pytest.mark.parametrize("total", [400_000, 880_000])
def test_nothing_left_is_refused_with_the_terms(total: int) -> None:
    with pytest.raises(ConfigError, match=r"no memory is left for KV: total \d+ B x utilisation 0.900"):
        device_rig(total)


def test_a_budget_may_be_negative_and_an_occupied_device_is_refused() -> None:
    budget = Budget(total=100, free_at_start=100, utilisation=0.5, weights=70)
    assert budget.left_for_kv == -20
    with pytest.raises(ConfigError, match="lacking 20 B"):
        budget.refuse_nothing_left()
    with pytest.raises(ConfigError, match="40 B of 100 B, less than the budget of 50 B"):
        refuse_occupied(100, 40, 0.5)


def test_a_pass_at_run_time_is_counted_too() -> None:
    rig = device_rig(8 * MIB)
    assert isinstance(rig.core.runner, MeteredRunner)
    before = memory_of(rig).own
    rig.generate([words(1, 100)], 4)
    gc.collect()
    assert memory_of(rig).own - before < MIB, "transients are given back"
    memory_of(rig).take_for_others(100 * MIB)
    rig.add(words(2, 100), 4)
    with pytest.raises(OutOfDeviceMemory):
        rig.drain()
