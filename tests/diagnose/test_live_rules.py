"""Each rule over live evidence: what it needs, and what comes near it and must stay without a finding."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.diagnose.judge import diagnose_run
from kvprobe.diagnose.model import Diagnosis
from kvprobe.evidence.records import CANCELLED
from kvprobe.summary.build import summarise
from tests.diagnose.test_judge import assert_contract, replace
from tests.summary.synthetic import MS, T0, Made, failed, healthy, record

MIB = 1 << 20
POOL = {"block_size": "16", "num_gpu_blocks": "4096", "kv_cache_size_tokens": "65520", "max_num_seqs": "64"}


def diagnose(made: Made) -> Diagnosis:
    run = made.build()
    found = diagnose_run(run, summarise(run))
    assert_contract(found)
    return found


def load(requests: int = 60, users: int = 6, *, prompt: int = 100, tokens: int = 40, **fields: Any) -> Made:
    """Prompts that share nothing, a healthy server, nothing queued; readings are added by the tests."""
    made = Made()
    for i in range(requests):
        sent = (i // users) * 600.0
        row = record(
            i, sent_ms=sent, ttft_ms=100, gap_ms=10, prompt=prompt, tokens=tokens, prefix=None, **fields
        )
        made.records.append(row)
    made.marks()
    made.fact("engine", {"name": "reference", "version": "0.1.0"}).fact("cache_config", POOL)
    made.fact("prefix_hit_rate_ceiling", 0.0)
    made.gauge("scrape.ok", [1.0] * steps(made))
    made.gauge("client.loop_lag_s", [0.002] * steps(made), worker="0", window="max")
    return made


def steps(made: Made) -> int:
    return int(made.span_ms() / 500) + 1


def flat(made: Made, **levels: float) -> Made:
    """Gauges that stay at one level over the load."""
    for name, level in levels.items():
        made.gauge(f"engine.{name}", [level] * steps(made))
    return made


def causes(found: Diagnosis) -> list[str]:
    return [f.cause for f in found.findings if f.role != "ruled_out"]


# -- a limit on sequences ----------------------------------------------------------------------


def queue(running: float, waiting: float, usage: float, limit: str | None = "4") -> Diagnosis:
    made = flat(load(), requests_running=running, requests_waiting=waiting, kv_usage_ratio=usage)
    config = (
        dict(POOL, max_num_seqs=limit) if limit else {k: v for k, v in POOL.items() if k != "max_num_seqs"}
    )
    return diagnose(replace(made, "cache_config", config))


def test_a_queue_at_the_configured_limit_with_free_blocks_is_that_limit() -> None:
    found = queue(4, 3, 0.2)
    assert causes(found) == ["queue_limit"]
    assert found.findings[0].confidence == "certain"
    assert [f.cause for f in found.findings if f.role == "ruled_out"] == ["kv_pool_pressure"]


def test_without_the_limit_in_the_configuration_it_is_likely_at_most() -> None:
    found = queue(4, 3, 0.2, limit=None)
    assert [f.confidence for f in found.findings[:1]] in (["likely"], [])


@pytest.mark.parametrize(
    ("running", "waiting", "usage", "limit"),
    [
        (4, 3, 0.2, "64"),  # far below the limit: they wait for compute
        (4, 0, 0.2, "4"),  # nobody waits
        (4, 3, 0.85, "4"),  # the next prompt may not fit
    ],
)
def test_near_misses_of_the_limit(running: float, waiting: float, usage: float, limit: str) -> None:
    assert "queue_limit" not in causes(queue(running, waiting, usage, limit))


def test_more_offered_than_served_makes_the_limit_a_suspicion() -> None:
    """An open loop far above what is computed: raising the limit may change nothing."""
    made = flat(load(), requests_running=4.0, requests_waiting=3.0, kv_usage_ratio=0.2)
    made.workload["arrival"] = {"open": {"rate": 40, "process": "poisson"}}
    made.fact("load_finished", {"reason": "planned", "intended": 600})
    found = diagnose(replace(made, "cache_config", dict(POOL, max_num_seqs="4")))
    limit = next(f for f in found.findings if f.cause == "queue_limit")
    assert limit.confidence == "suspected"
    assert "/s were offered" in limit.why


def test_a_number_that_varies_is_no_limit() -> None:
    made = load()
    n = steps(made)
    made.gauge("engine.requests_running", [float(1 + i % 4) for i in range(n)])
    flat(made, requests_waiting=2.0, kv_usage_ratio=0.2)
    assert causes(diagnose(replace(made, "cache_config", dict(POOL, max_num_seqs="4")))) == []


# -- few long requests, or many ----------------------------------------------------------------


def pressed(made: Made, running: float) -> Diagnosis:
    flat(made, kv_usage_ratio=0.96, requests_waiting=2.0, requests_running=running)
    return diagnose(replace(made, "cache_config", dict(POOL, kv_cache_size_tokens="8192")))


def test_few_long_requests_that_fill_the_pool_are_too_long() -> None:
    found = pressed(load(24, 4, prompt=3000, tokens=40), running=2)
    assert found.primary == "logical_kv_too_large"
    assert "2 requests of 3,0" in found.findings[0].why


def test_many_requests_that_fill_the_pool_are_pressure() -> None:
    assert pressed(load(96, 24, prompt=700, tokens=40), running=11).primary == "kv_pool_pressure"


def test_a_gauge_that_may_count_cached_blocks_makes_it_suspected_only() -> None:
    made = replace(load(96, 24, prompt=700), "engine", {"name": "lmdeploy", "version": "0.9"})
    found = pressed(made, running=11)
    assert [(f.cause, f.confidence) for f in found.findings[:1]] == [("kv_pool_pressure", "suspected")]


def test_without_the_pools_size_nobody_says_long() -> None:
    made = flat(load(24, 4, prompt=3000), kv_usage_ratio=0.96, requests_waiting=2.0, requests_running=2.0)
    assert diagnose(replace(made, "cache_config", {"block_size": "16"})).primary == "kv_pool_pressure"


# -- reserved, fragmented ----------------------------------------------------------------------


def reserved(share: float, usage: float, waiting: float) -> Diagnosis:
    made = flat(load(), kv_usage_ratio=usage, requests_waiting=waiting, requests_running=4)
    return diagnose(flat(made, kv_used_bytes=200 * MIB, kv_reserved_empty_bytes=share * 200 * MIB))


def test_room_that_is_reserved_and_empty_while_requests_wait() -> None:
    found = reserved(0.9, 0.98, 3)
    assert causes(found) == ["reservation_policy_waste"]
    assert found.findings[0].confidence == "certain"


@pytest.mark.parametrize(
    ("share", "usage", "waiting", "left"),
    [
        (0.9, 0.3, 0, []),  # room is left for all
        (0.1, 0.98, 3, ["kv_pool_pressure"]),  # what is held is used
        (0.9, 0.3, 3, []),
    ],
)
def test_near_misses_of_reservation(share: float, usage: float, waiting: float, left: list[str]) -> None:
    assert causes(reserved(share, usage, waiting)) == left


def test_a_reservation_that_keeps_nobody_out_is_no_finding() -> None:
    assert reserved(0.9, 0.5, 0).primary == "healthy_baseline"


def pieces(fragmented: float, failures: float, waiting: float = 2.0) -> Diagnosis:
    made = flat(load(), kv_usage_ratio=0.8, requests_waiting=waiting, requests_running=4)
    made.counter("engine.kv_allocation_failures_total", 0.0, failures)
    made.counter("engine.kv_allocation_failures_fragmented_total", 0.0, fragmented)
    flat(made, kv_free_bytes=60 * MIB, kv_largest_free_region_bytes=9 * MIB)
    return diagnose(made)


def test_refusals_with_enough_bytes_free_are_fragmentation() -> None:
    found = pieces(80, 100)
    assert causes(found) == ["allocator_fragmentation"]
    assert "80 of 100" in found.findings[0].why


@pytest.mark.parametrize(
    ("fragmented", "failures", "waiting"), [(5, 100, 2), (2, 2, 2), (0, 0, 2), (80, 100, 0)]
)
def test_near_misses_of_fragmentation(fragmented: float, failures: float, waiting: float) -> None:
    assert causes(pieces(fragmented, failures, waiting)) == []


# -- cancelled requests ------------------------------------------------------------------------


def cancelling(
    generated: float, *, lost_blocks: float = 0.0, running: float = 0.0, aborts: float | None = None
) -> Made:
    """Every second request was given up after 4 of 80 tokens."""
    made = load(60, 6, tokens=80)
    for r in made.records[::2]:
        r.gaps_ns, r.content_chunks = r.gaps_ns[:3], 4
        r.completion_tokens, r.finish_reason = None, CANCELLED
        r.last_token_ns = (r.first_token_ns or 0) + sum(r.gaps_ns)
        r.end_ns = r.last_token_ns
    made.counter("engine.generation_tokens_total", 0.0, generated)
    made.counter("engine.requests_running", 0.0, running)
    made.counter("engine.requests_waiting", 0.0, 0.0)
    made.counter("engine.kv_blocks_used", 0.0, lost_blocks)
    made.counter("engine.kv_blocks_total", 4095.0, 4095.0)
    if aborts is not None:
        made.gauge("engine.requests_finished_total", [0.0, aborts], every_ms=made.span_ms(), reason="abort")
        made.gauge("engine.requests_finished_total", [0.0, 30.0], every_ms=made.span_ms(), reason="length")
    return made


RECEIVED = 30 * 80 + 30 * 4


def test_cancelled_requests_that_stop_are_healthy() -> None:
    assert diagnose(cancelling(RECEIVED + 60, aborts=30)).primary == "healthy_baseline"


def test_cancelled_requests_that_run_on() -> None:
    found = diagnose(cancelling(RECEIVED + 30 * 70, aborts=0))
    assert causes(found) == ["cancellation_ignored"]
    assert found.findings[0].confidence == "certain"


def test_tokens_of_others_are_no_ignored_cancellation() -> None:
    made = cancelling(RECEIVED + 30 * 70)
    made.counter("engine.prompt_tokens_total", 0.0, 60 * 100 * 2.0)
    assert causes(diagnose(made)) == []


def test_too_few_cancelled_requests_prove_nothing() -> None:
    made = load(60, 6, tokens=80)
    made.records[0].finish_reason, made.records[0].completion_tokens = CANCELLED, None
    made.records[0].content_chunks = 4
    made.counter("engine.generation_tokens_total", 0.0, 59 * 80 + 80.0)
    assert causes(diagnose(made)) == []


def test_blocks_of_cancelled_requests_that_stay() -> None:
    found = diagnose(cancelling(RECEIVED, lost_blocks=200))
    assert causes(found) == ["kv_pool_leak"]
    assert found.findings[0].confidence == "certain"


def test_blocks_of_requests_that_still_run_are_not_lost() -> None:
    assert causes(diagnose(cancelling(RECEIVED, lost_blocks=200, running=2))) == []


def test_a_few_blocks_are_no_leak() -> None:
    assert causes(diagnose(cancelling(RECEIVED, lost_blocks=3))) == []


def test_what_a_dead_engine_still_holds_is_no_leak() -> None:
    made = cancelling(RECEIVED, lost_blocks=200)
    made.records.append(failed(99, "status", sent_ms=made.span_ms(), failure_detail="HTTP 503: died"))
    assert "kv_pool_leak" not in causes(diagnose(made))


def test_what_others_held_before_is_not_lost_by_this_load() -> None:
    made = cancelling(RECEIVED)
    made.samples = [s for s in made.samples if s.metric != "engine.kv_blocks_used"]
    made.counter("engine.kv_blocks_used", 200.0, 200.0)
    assert causes(diagnose(made)) == []


# -- host memory -------------------------------------------------------------------------------


def rss(*levels_mib: float, pool_bytes: int = 0, requests: int = 120) -> Diagnosis:
    made = load(requests, 6)
    made.gauge(
        "server.rss_bytes", [v * MIB for v in levels_mib], every_ms=made.span_ms() / (len(levels_mib) - 1)
    )
    made.counter("engine.prompt_tokens_total", 0.0, 100.0 * requests)
    made.counter("engine.generation_tokens_total", 0.0, 40.0 * requests)
    extra = {"kv_cache_memory_bytes": str(pool_bytes), "kv_bytes_per_token": "4096"} if pool_bytes else {}
    return diagnose(replace(made, "cache_config", POOL | extra))


def growing(each: float, n: int = 12, start: float = 500.0) -> list[float]:
    return [start + i * each for i in range(n)]


def test_memory_that_grows_with_every_request() -> None:
    found = rss(*growing(40))
    assert causes(found) == ["host_memory_leak"]
    assert found.findings[0].confidence == "suspected"  # how large the pool is, and where, nobody says


@pytest.mark.parametrize(
    "levels",
    [
        [500.0] * 12,
        [*growing(60, 6), *[800.0] * 6],  # it comes to rest
        growing(1),  # too little to say
        [500.0, 700.0, *[900.0 - i for i in range(10)]],  # it falls again
    ],
)
def test_near_misses_of_a_host_leak(levels: list[float]) -> None:
    assert causes(rss(*levels)) == []


def test_a_pool_that_fills_page_by_page_is_no_leak() -> None:
    """In host memory a pool is paid for when it is touched: so far, growth is the pool's."""
    assert causes(rss(*growing(6), pool_bytes=1024 * MIB)) == []
    leak = rss(*growing(40), pool_bytes=1024 * MIB)
    assert [(f.cause, f.confidence) for f in leak.findings] == [("host_memory_leak", "likely")]


# -- prefill ----------------------------------------------------------------------------------------------


def computed(forward: float, *, preemptions: float = 0.0, queue_s: float = 0.1) -> Diagnosis:
    made = flat(load(40, 1, prompt=2000, tokens=16), requests_waiting=0.0, requests_running=1.0)
    for name, value in (
        ("prompt_tokens_total", 80_000.0),
        ("generation_tokens_total", 640.0),
        ("prefix_hits_tokens_total", 0.0),
        ("prefix_queries_tokens_total", 80_000.0),
        ("forward_tokens_total", forward),
        ("preemptions_total", preemptions),
        ("ttft_seconds_sum", 40.0),
        ("prefill_seconds_sum", 40.0 - queue_s),
        ("queue_seconds_sum", queue_s),
    ):
        made.counter(f"engine.{name}", 0.0, value)
    return diagnose(made)


def test_prompts_that_go_through_the_model_twice() -> None:
    found = computed(160_000)
    assert causes(found) == ["prefill_compute_bound"]
    assert "2.0 times" in found.findings[0].why


@pytest.mark.parametrize(
    ("forward", "preemptions", "queue_s"),
    [
        (80_640, 0, 0.1),  # slow, but no more than asked
        (95_000, 0, 0.1),
        (160_000, 60, 0.1),  # preempted requests are computed again
        (160_000, 0, 40.0),  # the wait is no prefill
    ],
)
def test_near_misses_of_prefill(forward: float, preemptions: float, queue_s: float) -> None:
    assert causes(computed(forward, preemptions=preemptions, queue_s=queue_s)) == []


# -- the device's other tenants ----------------------------------------------------------------


def shared_device(others: list[float], *, failures: int) -> Diagnosis:
    made = load()
    n = steps(made)
    levels = [others[min(i, len(others) - 1)] for i in range(n)]
    flat(made, device_memory_total_bytes=1000.0 * MIB, device_memory_own_bytes=600.0 * MIB)
    made.gauge("engine.device_memory_free_bytes", [(400.0 - v) * MIB for v in levels])
    made.records += [
        failed(900 + i, "status", failure_detail="HTTP 503", sent_ms=3000) for i in range(failures)
    ]
    return diagnose(made)


def test_failures_before_others_took_memory_have_another_cause() -> None:
    """They fail 3 s into the load; the memory goes at 4.5 s."""
    found = shared_device([0, 0, 0, 0, 0, 0, 0, 0, 0, 300], failures=6)
    assert causes(found) == ["unknown"]
    assert "device_shared" in {o.id for o in found.observations}


def test_memory_that_others_take_while_requests_fail() -> None:
    found = shared_device([0, 0, 0, 300], failures=6)
    assert found.primary == "other_process_on_gpu"
    assert causes(found) == ["other_process_on_gpu"]


def test_memory_that_others_take_without_harm_is_an_observation() -> None:
    found = shared_device([0, 0, 0, 300], failures=0)
    assert found.primary == "healthy_baseline"
    assert "device_shared" in [o.id for o in found.observations]


def test_memory_that_others_always_held_explains_no_failure() -> None:
    assert causes(shared_device([300], failures=6)) == ["unknown"]


# -- what the cache holds ----------------------------------------------------------------------


def cache(cached_blocks: float, *, evicted: float = 0.0, got: int = 0, free: bool = True) -> Diagnosis:
    """24 prefixes, 8 requests each, of 640 tokens of which 544 are shared; 74 % could be reused."""
    made = healthy(cached=got, warm_ttft_ms=400.0)
    replace(made, "prefix_hit_rate_ceiling", 0.74)
    made.fact("prompt_layout", {"shared_prefix_tokens": 544, "ceiling_as_sent": 0.74, "block_size": 16})
    made.counter("engine.kv_blocks_cached", 0.0, cached_blocks)
    made.counter("engine.kv_blocks_used", 0.0, 0.0)
    made.counter(
        "engine.kv_blocks_total", 20_000.0 if free else cached_blocks, 20_000.0 if free else cached_blocks
    )
    made.counter("engine.kv_blocks_evicted_total", 0.0, evicted)
    return diagnose(made)


ALL = 192 * 640 // 16
DISTINCT = ALL * 26 // 100


def test_a_cache_that_drops_blocks_although_it_has_room() -> None:
    found = cache(1)
    assert causes(found) == ["prefix_evicted"]
    assert "stayed cached" in found.findings[0].why


def test_a_cache_that_keeps_equal_prefixes_apart() -> None:
    found = cache(ALL + 380)
    assert causes(found) == ["prefix_disabled_by_request"]
    assert found.findings[0].confidence == "likely"


def test_a_cache_of_distinct_blocks_without_hits_is_unknown() -> None:
    assert causes(cache(DISTINCT)) == ["unknown"]


def test_copies_beside_evictions_prove_no_split() -> None:
    assert "prefix_disabled_by_request" not in causes(cache(ALL + 380, evicted=50))


def test_hits_refute_a_split() -> None:
    assert "prefix_disabled_by_request" not in causes(cache(ALL + 380, got=544))


def test_instants_are_those_of_the_client() -> None:
    """A request that a reading falls into counts with the chunks that had come by then."""
    from kvprobe.summary.flight import fewest_holding, holders, in_flight

    rows = [record(0, sent_ms=0, ttft_ms=100, gap_ms=10, prompt=500), record(1, sent_ms=200, prompt=100)]
    at = T0 + 155 * MS
    assert [(f.record.request_id, f.tokens) for f in in_flight(rows, at)] == [("r0", 506)]
    both = in_flight(rows, T0 + 220 * MS)
    assert [f.streams for f in both] == [True, False]
    assert [f.record.request_id for f in holders(rows, T0 + 220 * MS, 1)] == ["r0"]
    assert fewest_holding(both, 0.75) == (1, 513)


# -- the host's processor ------------------------------------------------------------------------


def host(cores: float, gpu: float, running: float = 4.0) -> Diagnosis:
    made = flat(load(), requests_running=running, requests_waiting=0.0, kv_usage_ratio=0.4)
    n = steps(made)
    made.gauge("server.cpu_s_total", [cores * 0.5 * i for i in range(n)])
    made.gauge("gpu.utilization_ratio", [gpu] * n, gpu="0")
    return diagnose(made)


def test_a_pegged_process_beside_an_idle_device_is_suspected() -> None:
    found = host(1.0, 0.3)
    assert (causes(found), found.findings[0].confidence) == (["host_cpu_bound"], "suspected")


@pytest.mark.parametrize(("cores", "gpu", "running"), [(1.0, 0.9, 4.0), (0.4, 0.3, 4.0), (1.0, 0.3, 0.0)])
def test_near_misses_of_a_pegged_process(cores: float, gpu: float, running: float) -> None:
    assert causes(host(cores, gpu, running)) == []
