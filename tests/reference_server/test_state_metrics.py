"""The page of `/metrics` is of one moment, though the engine's thread goes on while it is written."""

from __future__ import annotations

from reference_server.kv.allocator import Usage
from reference_server.state import EngineState
from reference_server.state_metrics import StateCollector

TOTAL = 12


def _usage(used: int) -> Usage:
    free = TOTAL - used - 1
    stored = 16 * used - 3 if used else 0
    return Usage(
        blocks_total=TOTAL,
        blocks_used=used,
        blocks_cached=1,
        blocks_free=free,
        table_blocks=used,
        stored_tokens=stored,
        tail_slots=16 * used - stored,
        largest_free_blocks=free + 1,
    )


def test_a_page_adds_up_whatever_the_engine_does_meanwhile() -> None:
    state = EngineState(_usage(0), bytes_per_token=4, block_bytes=64, block_tokens=16)
    state.pool_bytes = (TOTAL + 1) * 64
    page: dict[str, float] = {}
    for number, metric in enumerate(StateCollector(state, {"engine": "0"}).collect()):
        page[metric.name.removeprefix("kvprobe:")] = metric.samples[0].value
        state.usage = _usage(number % 10)
        state.steps += 1
    kinds = ("used", "cached", "free", "null_block")
    assert page["kv_pool_bytes"] == sum(page[f"kv_{kind}_bytes"] for kind in kinds)
    filled = page["kv_stored_bytes"] + page["kv_tail_empty_bytes"] + page["kv_reserved_empty_bytes"]
    assert page["kv_used_bytes"] == filled - page["kv_shared_bytes"]
    assert page["kv_blocks_used"] == page["engine_steps"] == 0
