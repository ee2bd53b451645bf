"""From evidence to one answer: the whole way, branch by branch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvprobe.diagnose.judge import diagnose_run
from kvprobe.diagnose.model import Diagnosis, Finding
from kvprobe.evidence.records import OpenedRequest
from kvprobe.summary.build import summarise
from tests.summary.synthetic import T0, Made, failed, healthy, record
from tests.summary.test_prediction import LLAMA

LAYOUT: dict[str, Any] = {
    "ceiling_as_sent": 0.03,
    "ceiling_if_moved": 0.80,
    "diverge_token": 7,
    "diverge_before": "Current time: 15:09:2",
    "diverge_texts": ["0", "1\x1b[2J"],
    "shared_body_tokens": 540,
    "changing_tokens": 12,
    "shared_prefix_tokens": 7,
    "block_size": 16,
    "block_size_assumed": False,
}


def diagnose(made: Made) -> Diagnosis:
    run = made.build()
    found = diagnose_run(run, summarise(run))
    assert_contract(found)
    return found


def assert_contract(found: Diagnosis) -> None:
    """What CLI users rely on, for every diagnosis made in these tests."""
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["schema"] == "kvprobe.diagnosis/1"
    assert {"primary", "findings", "observations", "validity", "facts", "read"} <= set(document)
    roles = [f.role for f in found.findings]
    if found.primary == "healthy_baseline":
        assert roles == []
        return
    assert roles[0] == "primary"
    assert roles.count("primary") == 1
    assert found.findings[0].cause == found.primary
    for one in found.findings:
        assert one.why.endswith(".")
        assert one.evidence
        assert one.check_first
        assert one.remedy
        assert one.would_change_my_mind


def replace(made: Made, name: str, value: Any) -> Made:
    made.facts = [f for f in made.facts if f.name != name]
    return made.fact(name, value)


def config(made: Made, **labels: str) -> Made:
    return replace(made, "cache_config", {"block_size": "16", "num_gpu_blocks": "4096", **labels})


def primary(found: Diagnosis) -> Finding:
    return found.findings[0]


def no_hits(*, ceiling: float = 0.74) -> Made:
    """Prompts could share (or not), and not a token came from the cache."""
    made = healthy(cached=0, warm_ttft_ms=400.0)
    return replace(made, "prefix_hit_rate_ceiling", ceiling)


# -- nothing wrong -----------------------------------------------------------------------------


def test_a_healthy_run_has_no_findings_and_says_what_caching_did() -> None:
    found = diagnose(healthy())
    assert found.primary == "healthy_baseline"
    assert found.findings == []
    assert found.validity is not None
    assert found.validity.valid
    effect = next(o for o in found.observations if o.id == "prefix_cache_effect")
    assert "saves prefill, never decode" in effect.text
    assert "Decode did not change" in effect.text
    assert effect.facts["cold_requests"].value == 24
    lo, hi = effect.facts["ttft_cold_over_warm_ci"].value
    assert 5 < lo < hi < 8


def test_few_hits_on_prompts_that_share_nothing_are_expected() -> None:
    found = diagnose(no_hits(ceiling=0.0))
    assert found.primary == "healthy_baseline"
    assert all(o.id != "prefix_cache_effect" for o in found.observations)


def test_the_name_and_kind_of_the_workload_play_no_part() -> None:
    plain = healthy().build()
    named = healthy().build()
    named.workload = {"name": "timestamp_first", "kind": "timestamp_first"}
    for r in named.records:
        r.kind = "timestamp_first"
    a, b = diagnose_run(plain, summarise(plain)), diagnose_run(named, summarise(named))
    assert a.findings == b.findings
    assert a.observations == b.observations


def test_too_few_cold_requests_are_said_to_be_too_few() -> None:
    effect = next(o for o in diagnose(healthy(families=12)).observations if o.id == "prefix_cache_effect")
    assert "84 requests began with a cached prefix and 12 did not, too few to compare" in effect.text
    assert "20 cold ones over 10 prefixes" in effect.text
    assert effect.text.startswith("74.4 % of the prompt tokens came from the prefix cache")
    assert "ttft_cold_p50" not in effect.facts


def test_one_prompt_that_all_share_is_told_without_asking_for_more_prefixes() -> None:
    made = healthy(families=1, each=40)
    effect = next(o for o in diagnose(made).observations if o.id == "prefix_cache_effect")
    assert "of the prompt tokens came from the prefix cache" in effect.text
    assert "that takes" not in effect.text


def disagreeing(**more: str) -> Made:
    config = {
        "block_size": "16",
        "cache_dtype": "bf16",
        "num_gpu_blocks": "4096",
        "kv_bytes_per_token": "131072",
        "kv_cache_size_tokens": "65520",
        "kv_cache_memory_bytes": str(4096 * 16 * 131072),
        "enable_prefix_caching": "True",
    }
    return replace(healthy(), "cache_config", config | more).fact("model_config", LLAMA)


def test_a_prediction_that_agrees_leaves_a_healthy_run_healthy() -> None:
    assert diagnose(disagreeing()).findings == []


def test_a_prediction_that_is_off_is_a_finding_without_a_cause() -> None:
    found = diagnose(disagreeing(kv_bytes_per_token="65536"))
    assert [(f.cause, f.confidence) for f in found.findings] == [("unknown", "suspected")]
    assert "predicted 131,072, the server reports 65,536" in found.findings[0].why


def test_a_prediction_that_rests_on_an_assumption_is_an_observation() -> None:
    found = diagnose(disagreeing(kv_bytes_per_token="65536", cache_dtype="auto"))
    assert found.findings == []
    assert "prediction_disagrees" in {o.id for o in found.observations}


def test_failures_stand_before_a_prediction_that_is_off() -> None:
    made = disagreeing(kv_bytes_per_token="65536")
    made.records += [failed(900 + i, "status", sent_ms=500.0 * i, status_code=500) for i in range(9)]
    found = diagnose(made)
    assert [f.cause for f in found.findings] == ["unknown", "unknown"]
    assert "failed" in found.findings[0].why


def test_a_named_cause_stands_before_a_prediction_that_is_off() -> None:
    made = disagreeing(kv_bytes_per_token="65536", enable_prefix_caching="False")
    made.samples = [s for s in made.samples if s.metric != "engine.prefix_hits_tokens_total"]
    made.counter("engine.prefix_hits_tokens_total", 0.0, 0.0)
    for row in made.records:
        row.cached_tokens = 0
    found = diagnose(made)
    assert [f.cause for f in found.findings] == ["prefix_caching_off", "unknown"]


def test_without_cached_tokens_the_basis_is_told() -> None:
    effect = next(o for o in diagnose(healthy(cached=None)).observations if o.id == "prefix_cache_effect")
    assert "reports no cached tokens" in effect.text


def test_decode_that_differs_is_not_called_unchanged() -> None:
    effect = next(
        o for o in diagnose(healthy(cold_gap_ms=20.0)).observations if o.id == "prefix_cache_effect"
    )
    assert "Decode differed" in effect.text


# -- the prefix row ----------------------------------------------------------------------------


def timestamp_first() -> Made:
    made = no_hits(ceiling=0.03)
    return made.fact("prompt_layout", LAYOUT)


@pytest.mark.parametrize(
    ("calibration", "told"),
    [
        ({"source": "tokenize", "template_prefix_tokens": 2}, "Prompts part at token 7"),
        ({"source": "assumed", "template_prefix_tokens": None}, "Prompts part at about token 7"),
        ({"source": "tokenize", "template_prefix_tokens": None}, "Prompts part at about token 7"),
    ],
)
def test_a_token_number_that_is_estimated_says_so(calibration: dict[str, object], told: str) -> None:
    made = timestamp_first()
    made.fact("calibration", calibration)
    assert told in primary(diagnose(made)).why


def test_a_changing_line_in_front_is_an_unstable_layout() -> None:
    found = diagnose(timestamp_first())
    assert found.primary == "prefix_layout_unstable"
    one = primary(found)
    assert (one.confidence, one.symptom) == ("certain", "prefix_not_reused")
    assert "token 7" in one.why
    assert "540 shared tokens" in one.why
    assert "80.0 %" in one.why
    texts = "\n".join(e.text for e in one.evidence)
    assert 'Current time: 15:09:2" then "0"' in texts
    assert 'Current time: 15:09:2" then "1' in texts
    assert "not known" in texts  # what it saves in TTFT
    assert len(found.findings) == 1


def test_hits_on_the_body_refute_an_unstable_layout() -> None:
    made = healthy()
    made.fact("prompt_layout", LAYOUT | {"ceiling_as_sent": 0.74})
    assert diagnose(made).primary == "healthy_baseline"


def test_an_ordinary_question_behind_a_shared_prefix_is_no_unstable_layout() -> None:
    made = no_hits(ceiling=0.0)
    made.fact("prompt_layout", {"ceiling_as_sent": 0.0, "ceiling_if_moved": 0.0})
    assert diagnose(made).primary == "healthy_baseline"


def test_a_server_without_hit_counters_makes_it_likely_only() -> None:
    made = timestamp_first()
    made.samples = [s for s in made.samples if not s.metric.startswith("engine.prefix")]
    for r in made.records:
        r.cached_tokens = None
    found = diagnose(made)
    assert found.primary == "prefix_layout_unstable"
    assert primary(found).confidence == "likely"


def test_the_engine_says_that_caching_is_off() -> None:
    found = diagnose(config(no_hits(), enable_prefix_caching="False"))
    assert found.primary == "prefix_caching_off"
    assert primary(found).confidence == "certain"
    assert len(found.findings) == 1


def test_off_and_unstable_name_the_switch_first() -> None:
    found = diagnose(config(timestamp_first(), enable_prefix_caching="False"))
    assert [f.cause for f in found.findings] == ["prefix_caching_off", "prefix_layout_unstable"]


def test_off_without_anything_to_share_is_no_fault() -> None:
    assert diagnose(config(no_hits(ceiling=0.0), enable_prefix_caching="False")).primary == "healthy_baseline"


def test_a_query_counter_that_stood_still_is_likely_off() -> None:
    made = config(no_hits())
    for s in made.samples:
        if s.metric.startswith("engine.prefix"):
            s.value = 0.0
    found = diagnose(made)
    assert found.primary == "prefix_caching_off"
    assert primary(found).confidence == "likely"


def test_off_tells_what_these_prompts_could_reuse_as_they_were_sent() -> None:
    why = primary(diagnose(config(timestamp_first(), enable_prefix_caching="False"))).why
    assert why.startswith("As sent, 3.0 % of the prompt tokens could be reused (80.0 % with")


def test_the_engine_says_on_and_a_silent_counter_does_not_overrule_it() -> None:
    made = config(no_hits(), enable_prefix_caching="True")
    for s in made.samples:
        if s.metric.startswith("engine.prefix"):
            s.value = 0.0
    assert diagnose(made).primary != "prefix_caching_off"


def test_a_prefix_shorter_than_one_block() -> None:
    made = config(no_hits(ceiling=0.0), enable_prefix_caching="True", block_size="784")
    made.fact("prompt_layout", {"shared_prefix_tokens": 240, "ceiling_as_sent": 0.0, "block_size": 784})
    found = diagnose(made)
    assert found.primary == "prefix_block_granularity"
    assert "240 tokens" in primary(found).why
    assert "784" in primary(found).why


def test_an_assumed_block_size_proves_nothing() -> None:
    made = replace(no_hits(ceiling=0.0), "cache_config", {})
    made.fact("prompt_layout", {"shared_prefix_tokens": 100, "block_size": 784, "block_size_assumed": True})
    assert diagnose(made).primary == "healthy_baseline"


def some_hits(share: float) -> Made:
    """Of the repeats, only `share` hit."""
    made = healthy()
    repeats = [r for r in made.records if r.cached_tokens]
    for r in repeats[round(share * len(repeats)) :]:
        r.cached_tokens = 0
    hits = sum(r.cached_tokens or 0 for r in made.records)
    for s in made.samples:
        if s.metric == "engine.prefix_hits_tokens_total" and s.t_ns > T0:
            s.value = float(hits)
    return made


def test_hits_far_below_what_was_reachable_are_unknown() -> None:
    found = diagnose(some_hits(0.2))
    assert found.primary == "unknown"
    assert primary(found).confidence == "suspected"
    assert "allow" in primary(found).why


def test_with_a_full_pool_eviction_is_suspected() -> None:
    made = some_hits(0.2)
    for s in made.samples:
        if s.metric == "engine.kv_usage_ratio":
            s.value = 0.99
    found = diagnose(made)
    assert found.primary == "prefix_evicted"
    assert primary(found).confidence == "suspected"


def far_apart(distances: list[int], *, pool_tokens: int = 1_520) -> Made:
    """Few hits, and so many tokens between two uses of a prefix; the pool's gauge stays low."""
    made = some_hits(0.4)
    replace(made, "cache_config", {"block_size": "16", "kv_cache_size_tokens": str(pool_tokens)})
    return made.fact("prompt_layout", {"ceiling_as_sent": 0.74, "reuse_distance_tokens": distances})


def test_prefixes_that_come_back_later_than_the_pool_can_keep_them_were_evicted() -> None:
    """The usage gauge counts what running requests hold: a cache can overflow with a pool half free."""
    found = diagnose(far_apart([500] * 6 + [4_000] * 14))
    assert found.primary == "prefix_evicted"
    assert primary(found).confidence == "likely"
    assert "4,000 other tokens" in primary(found).why
    assert "1,520" in primary(found).why


def test_prefixes_that_the_pool_could_keep_were_not_evicted() -> None:
    assert diagnose(far_apart([500] * 20)).primary == "unknown"
    assert diagnose(far_apart([4_000] * 20, pool_tokens=65_536)).primary == "unknown"


def test_most_hits_is_well_enough() -> None:
    assert diagnose(some_hits(0.8)).primary == "healthy_baseline"


def test_prefixes_that_were_still_being_computed_are_nobodys_fault() -> None:
    """Twenty requests of each prefix leave at once: only the first could have warmed it."""
    made = healthy(families=24, each=8, cached=0, warm_ttft_ms=400)
    for r in made.records:
        family = int((r.prefix_id or "-0").split("-")[1])
        r.sent_ns = r.intended_ns = T0 + family * 10**9
        r.first_token_ns = r.first_visible_ns = r.first_chunk_ns = r.sent_ns + 4 * 10**8
        r.last_token_ns = r.first_token_ns + sum(r.gaps_ns)
        r.end_ns = r.last_token_ns
    assert diagnose(replace(made, "prefix_hit_rate_ceiling", 0.74)).primary == "healthy_baseline"


# -- the pool ----------------------------------------------------------------------------------


def pool(usage: float, waiting: float, preemptions: float = 0.0) -> Diagnosis:
    made = healthy()
    for s in made.samples:
        if s.metric == "engine.kv_usage_ratio":
            s.value = usage
        if s.metric == "engine.requests_waiting":
            s.value = waiting
        if s.metric == "engine.preemptions_total" and s.t_ns > T0:
            s.value = preemptions
    return diagnose(made)


@pytest.mark.parametrize(
    ("usage", "waiting", "preemptions", "found"),
    [
        (0.95, 0, 0, ("healthy_baseline", False)),
        (0.95, 3, 0, ("kv_pool_pressure", False)),
        (0.95, 0, 12, ("kv_pool_pressure", False)),
        (0.76, 14, 0, ("healthy_baseline", False)),
        (0.2, 0, 0, ("healthy_baseline", True)),
        (0.2, 5, 0, ("healthy_baseline", False)),
        (0.5, 0, 0, ("healthy_baseline", False)),
    ],
)
def test_pool(usage: float, waiting: float, preemptions: float, found: tuple[str, bool]) -> None:
    told = pool(usage, waiting, preemptions)
    assert (told.primary, any(o.id == "kv_pool_idle" for o in told.observations)) == found


def test_a_pool_that_preempts_is_a_fault_and_says_how_many_requests_it_holds() -> None:
    one = primary(pool(0.95, 0, 12))
    assert one.confidence == "certain"
    assert "12 preemptions" in one.why
    assert "65,536 tokens, 97.5 typical requests of 672 tokens" in one.why
    assert primary(pool(0.95, 3, 0)).confidence == "likely"


def test_a_server_that_exports_no_queue_is_not_called_idle() -> None:
    made = healthy()
    made.samples = [s for s in made.samples if s.metric != "engine.requests_waiting"]
    assert all(o.id != "kv_pool_idle" for o in diagnose(made).observations)


# -- failures and streams ----------------------------------------------------------------------


def test_failures_that_nothing_explains_are_unknown() -> None:
    made = healthy()
    made.records += [failed(i, "status", status_code=503, failure_detail="overloaded") for i in range(3)]
    found = diagnose(made)
    assert found.primary == "unknown"
    assert "3 of 195 requests" in primary(found).why
    assert "overloaded" in primary(found).evidence[0].text


def test_a_request_that_the_end_of_the_run_cut_is_no_failure_of_the_target() -> None:
    made = healthy()
    made.records.append(failed(900, "cancelled_at_end"))
    assert diagnose(made).primary == "healthy_baseline"


def test_a_cause_outranks_unexplained_failures() -> None:
    made = timestamp_first()
    made.records += [failed(i, "timeout_total") for i in range(3)]
    assert [f.cause for f in diagnose(made).findings] == ["prefix_layout_unstable", "unknown"]


def test_an_error_inside_a_200_is_a_defective_stream() -> None:
    made = healthy()
    made.records += [
        failed(i, "in_band_error", failure_detail="CUDA error", content_chunks=4) for i in range(4)
    ]
    found = diagnose(made)
    assert found.primary == "stream_protocol_defect"
    assert len(found.findings) == 1
    assert "4 x in_band_error" in primary(found).why


def test_streams_cut_by_a_server_that_died_are_a_consequence() -> None:
    made = healthy()
    made.records += [failed(i, "truncated") for i in range(4)]
    made.records += [failed(10 + i, "connect", sent_ns=None) for i in range(4)]
    made.fact("server_exit_code", -9)
    found = diagnose(made)
    assert [f.cause for f in found.findings] == ["host_oom_kill"]
    assert primary(found).confidence == "suspected"
    assert any("signal 9" in e.text for e in primary(found).evidence)


def test_a_server_that_ended_by_itself_was_not_killed() -> None:
    made = healthy()
    made.records += [failed(10 + i, "connect", sent_ns=None) for i in range(4)]
    made.fact("server_exit_code", 1)
    assert diagnose(made).primary == "unknown"


@pytest.mark.parametrize("back", [True, False])
def test_a_server_that_went_away_is_seen_to_have_gone(back: bool) -> None:
    made = Made(records=[record(i, sent_ms=600 * i) for i in range(10)])
    made.records += [
        failed(i, "connect", sent_ms=7_000 + i, failure_detail="refused", sent_ns=None) for i in range(4)
    ]
    if back:
        made.records.append(record(50, sent_ms=9_000))
    why = primary(diagnose(made)).why
    assert "the server had answered 10 requests, then refused connections" in why
    assert ("answered again later" in why) == back


def test_an_early_role_chunk_is_told() -> None:
    made = healthy()
    for r in made.records:
        assert r.sent_ns is not None
        r.first_chunk_ns = r.sent_ns + 1_000_000
    found = diagnose(made)
    assert found.primary == "stream_protocol_defect"
    assert "carries no text" in primary(found).why


@pytest.mark.parametrize("lead_ms", [0.0, 2.0])
def test_a_role_chunk_that_comes_with_the_token_misleads_nobody(lead_ms: float) -> None:
    made = healthy()
    for r in made.records:
        assert r.first_token_ns is not None
        r.first_chunk_ns = r.first_token_ns - int(lead_ms * 1e6)
    assert diagnose(made).primary == "healthy_baseline"


# -- validity first ----------------------------------------------------------------------------


def late_client(made: Made) -> Made:
    for s in made.samples:
        if s.metric == "client.loop_lag_s":
            s.value = 0.05
    return made


def test_a_late_client_outranks_every_cause() -> None:
    found = diagnose(late_client(timestamp_first()))
    assert found.primary == "client_bound"
    assert primary(found).confidence == "certain"
    # The layout rests on prompts and counters, not on the clock: it stands, second.
    assert [f.cause for f in found.findings] == ["client_bound", "prefix_layout_unstable"]
    assert found.validity is not None
    assert not found.validity.valid


def test_effects_are_not_told_from_an_invalid_run() -> None:
    assert diagnose(late_client(healthy())).observations == []


def test_a_warm_cache_names_no_cause() -> None:
    found = diagnose(replace(healthy(), "prefix_hit_rate_ceiling", 0.0))
    assert found.primary == "unknown"
    assert "the cache was warm before the run" in primary(found).why


def test_a_client_that_stood_still_is_its_own_cause() -> None:
    made = healthy()
    next(s for s in made.samples if s.metric == "client.loop_lag_s").value = 3.0
    found = diagnose(made)
    assert found.primary == "client_bound"
    assert "stood still for 3.00 s" in primary(found).why


def test_requests_without_a_record_are_a_defect_of_the_load_generator() -> None:
    made = healthy()
    made.opened = [OpenedRequest(request_id="lost", plan_index=9, intended_ns=T0, sent_ns=T0)]
    found = diagnose(made)
    assert found.primary == "client_bound"
    assert "1 request of 193 left no record" in primary(found).why
    made.status = "killed"  # then it was only in flight
    assert diagnose(made).primary == "healthy_baseline"


def test_no_request_at_all() -> None:
    found = diagnose(Made())
    assert found.primary == "unknown"
    assert found.validity is not None
    assert found.validity.reasons == ["no request was sent"]


def test_all_failed() -> None:
    found = diagnose(
        Made(records=[failed(i, "connect", sent_ns=None, failure_detail="refused") for i in range(5)])
    )
    assert found.primary == "unknown"
    assert any("refused" in e.text for e in primary(found).evidence)


def test_one_request() -> None:
    assert diagnose(Made(records=[record(0)])).primary == "healthy_baseline"


def test_what_was_read_is_told() -> None:
    found = diagnose(healthy())
    assert found.read["engine"] == "reference"
    assert found.read["requests"] == 192
    assert found.facts["cache_config"]["block_size"] == "16"


def coarse(by_token: float, by_block: float) -> Diagnosis:
    """The healthy server's hit rate is 74.4 %."""
    steps = [{"name": "last_token", "hit_rate": by_token}, {"name": "block", "hit_rate": by_block}]
    return diagnose(healthy().fact("prefix_analysis", {"steps": steps}))


def test_blocks_that_take_much_of_the_reuse_are_named() -> None:
    found = coarse(0.98, 0.74)
    assert [(f.cause, f.confidence) for f in found.findings] == [("prefix_block_granularity", "likely")]


@pytest.mark.parametrize(("by_token", "by_block"), [(0.80, 0.74), (0.98, 0.60), (0.98, 0.0)])
def test_near_misses_of_coarse_blocks(by_token: float, by_block: float) -> None:
    assert coarse(by_token, by_block).findings == []
