"""How many blocks the KV pool has: as many as are asked for, or as fit beside everything else."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reference_server import ailments, startup_log
from reference_server.attention.select import make_attention
from reference_server.budget import Budget, refuse_occupied
from reference_server.device import DeviceMemory
from reference_server.errors import ConfigError
from reference_server.models.llama import LlamaModel
from reference_server.prepare import Prepared
from reference_server.runner import ModelRunner


@dataclass(frozen=True, slots=True)
class PoolSize:
    """`num_blocks` counts the null block; the peak is that of forward passes, in bytes, where measured."""

    num_blocks: int
    activation_peak: int = 0


def size_pool(ready: Prepared) -> PoolSize:
    """As many blocks as are asked for, or as fit."""
    config, peak = ready.config, 0
    if config.pool_from_device:
        budget = _measure_budget(ready)
        startup_log.budget(budget)
        budget.refuse_nothing_left()
        size, option, peak = budget.left_for_kv, "the KV pool", budget.activation_peak
    else:
        size, option = config.kv_memory_bytes, "--kv-memory"
    size = ailments.pool_bytes(config, ready.bytes_per_token, size)
    num_blocks = size // ready.block_bytes
    if num_blocks < 2:
        raise ConfigError(
            f"{option} is too small: {size} B hold {num_blocks} blocks of {ready.block_bytes} B; "
            "the null block and at least one more are needed"
        )
    return PoolSize(num_blocks, peak)


def _measure_budget(ready: Prepared) -> Budget:
    """Load, profile, and see what is left."""
    config, memory = ready.config, ready.memory
    assert memory is not None
    refuse_occupied(memory.total, ready.free_at_start, config.gpu_memory_utilization)
    weights = ready.model.weights.nbytes
    budget = Budget(
        total=memory.total,
        free_at_start=ready.free_at_start,
        utilisation=config.gpu_memory_utilization,
        weights=weights,
    )
    if budget.left_for_kv <= 0:
        return budget
    memory.take(weights)
    memory.phase = "profile"
    budget = replace(budget, activation_peak=_activation_peak(ready, memory))
    hog = ailments.workspace_bytes(config, budget.left_for_kv, ready.block_bytes)
    memory.take(hog)
    return replace(budget, workspace=hog)


def _activation_peak(ready: Prepared, memory: DeviceMemory) -> int:
    """What a pass of `max_num_batched_tokens` tokens allocates at most, over a pool of one block."""
    attention = make_attention(ready.config, ready.model.config, 1)
    runner = ModelRunner(
        LlamaModel(ready.model.config, ready.model.weights, attention), ready.model.tokenizer
    )
    wanted = min(ready.config.max_num_batched_tokens, ready.model.config.max_positions)
    with memory.counting() as transients:
        runner.warm_up(wanted)
    peak = transients.peak
    larger = ailments.profile_tokens(ready.config, wanted, peak / wanted, memory.free)
    if larger > wanted:
        with memory.counting() as transients:
            runner.warm_up(larger)
        peak = transients.peak
    return peak
