"""The reference server's own log: its ailments leave numbers, and the numbers name them."""

from __future__ import annotations

from kvprobe.observe.logs.intake import read_text
from tests.diagnose.logs.enginekit import (
    REFERENCE_STOP,
    diagnosis,
    primary,
    reference_start,
    reference_stats,
)


def _log(*lines: str, **start: object) -> str:
    return "\n".join((reference_start(**start), *lines, REFERENCE_STOP))  # type: ignore[arg-type]


def test_a_healthy_server_is_healthy() -> None:
    assert diagnosis(_log(*(reference_stats(n, 5, 0, 240) for n in range(6)))).primary == "healthy_baseline"


def test_blocks_that_stay_after_aborts() -> None:
    lines = [reference_stats(n, 5, 0, 240) for n in range(3)] + [
        reference_stats(n, 0, 0, 120) for n in range(3, 8)
    ]
    assert primary(_log(*lines)).cause == "kv_pool_leak"


def test_a_client_that_went_away_is_an_abort_and_no_limit_of_the_server() -> None:
    line = "INFO 2026-11-30 08:01:01,000 reference_server.answer: gave cmpl-0f12 up: the client went away"
    read = read_text(_log(line, line))
    assert sum(event.repeats for event in read.events if event.name == "aborted") == 2
    assert not [event for event in read.events if event.name == "cancelled"]


def test_a_low_sequence_limit() -> None:
    found = primary(_log(*(reference_stats(n, 2, 9, 80) for n in range(6)), seqs=2))
    assert (found.cause, found.confidence) == ("queue_limit", "certain")


def test_a_small_pool_under_few_or_many() -> None:
    assert (
        primary(_log(*(reference_stats(n, 2, 3, 505, 2) for n in range(6)))).cause == "logical_kv_too_large"
    )
    preempted = (
        "WARNING 2026-11-30 08:01:01,000 reference_server.core: preempted cmpl-0f12: no KV blocks left; 812 "
        "tokens to compute again"
    )
    many = primary(_log(*(reference_stats(n, 9, 6, 505, 2) for n in range(6)), preempted))
    assert (many.cause, many.confidence) == ("kv_pool_pressure", "certain")


def test_room_that_is_reserved_and_empty() -> None:
    lines = (reference_stats(n, 2, 5, 505, 2, reserved=28.0) for n in range(6))
    found = primary(_log(*lines, allocator="paged-reserve"))
    assert found.cause == "reservation_policy_waste"
    assert found.symptom == "reserved_unused"


def test_bytes_in_pieces() -> None:
    line = (
        "WARNING 2026-11-30 08:00:27,125 reference_server.core: no room in the KV cache for cmpl-0f: asked "
        "3276800 B, free 4063232 B, largest free region 1966080 B (running 6, waiting 3; 12 such since the "
        "last line)"
    )
    text = _log(line, *(reference_stats(n, 6, 3, 300, 0) for n in range(6)), allocator="contiguous-exact")
    found = primary(text)
    assert (found.cause, found.confidence) == ("allocator_fragmentation", "certain")
    assert "3.12 MiB" in found.why
    assert "1.88 MiB" in found.why


def test_prefix_caching_off() -> None:
    lines = (reference_stats(n, 3, 0, 200, 0, hits="no queries") for n in range(6))
    assert primary(_log(*lines, caching="off")).cause == "prefix_caching_off"


def test_cached_blocks_that_are_dropped_early() -> None:
    lines = (reference_stats(n, 2, 0, 60, 1, hits="1.0% of queried tokens") for n in range(6))
    assert primary(_log(*lines)).cause == "prefix_evicted"


def test_starts_that_fail() -> None:
    weights = (
        "kvprobe serve: no memory is left for KV: total 33554432 B x utilisation 0.900 = 30198988 B, "
        "weights 36706304 B, workspace 0 B, activation peak 0 B; lacking 6507316 B"
    )
    workspace = (
        "kvprobe serve: no memory is left for KV: total 134217728 B x utilisation 0.900 = 120795955 B, "
        "weights 36706304 B, workspace 100663296 B, activation peak 0 B; lacking 16573645 B"
    )
    peak = (
        "kvprobe serve: out of device memory: asked 146800640 B, free 12582912 B, largest free region "
        "12582912 B, total 134217728 B, held by this process 121634816 B, by others 0 B; phase profile"
    )
    others = (
        "kvprobe serve: free memory on the device at start is 100663296 B of 268435456 B, less than the "
        "budget of 241591910 B (utilisation 0.900)"
    )
    assert primary(weights).cause == "weights_plus_fixed_too_large"
    assert primary(workspace).cause == "fixed_workspace_missized"
    assert primary(peak).cause == "startup_activation_peak"
    assert primary(others).cause == "other_process_on_gpu"


def test_a_neighbour_that_takes_the_device_while_serving() -> None:
    line = (
        "ERROR 2026-11-30 08:00:40,123 reference_server.engine: out of device memory: asked 2097152 B, free "
        "1048576 B, largest free region 1048576 B, total 268435456 B, held by this process 200278016 B, by "
        "others 67108864 B; phase serve"
    )
    assert primary(reference_start() + "\n" + line).cause == "other_process_on_gpu"


def test_a_log_that_stops_in_mid_work_is_only_suspected() -> None:
    text = "\n".join((reference_start(), *(reference_stats(n, 5, 0, 240) for n in range(6))))
    found = primary(text)
    assert (found.cause, found.confidence) == ("host_oom_kill", "suspected")
