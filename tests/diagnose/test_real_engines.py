"""Engines that say less than the bundled server: no stated limit, no use of the cache, gauges that lag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvprobe.diagnose.judge import diagnose_run
from kvprobe.diagnose.model import Diagnosis
from kvprobe.summary.build import summarise
from tests.diagnose.test_judge import assert_contract, no_hits, replace
from tests.diagnose.test_live_rules import causes, flat, load, steps
from tests.summary.synthetic import Made, failed

FULL = '{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}'
START = (
    "0.00.988.609 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 2048, kv_unified = 'false'\n"
)


def diagnose(made: Made, *logs: str) -> Diagnosis:
    run = made.build()
    found = diagnose_run(run, summarise(run), list(logs))
    assert_contract(found)
    return found


def llama(made: Made) -> Made:
    """As llama-server shows itself: no configuration of a cache, no use of it."""
    made.samples = [s for s in made.samples if s.metric != "engine.kv_usage_ratio"]
    made.samples = [s for s in made.samples if not s.metric.startswith("engine.prefix_")]
    made.facts = [f for f in made.facts if f.name != "cache_config"]
    return replace(made, "engine", {"name": "llama.cpp", "version": "b11434"})


# -- llama.cpp: waiting for a slot ---------------------------------------------------------------


def slots(running: float, waiting: float, n: float | None = 4.0, fullest: float = 0.4, **more: Any) -> Made:
    made = flat(llama(load(**more)), requests_running=running, requests_waiting=waiting)
    if n is not None:
        flat(made, slots=n, slots_busy=running, slot_usage_ratio_max=fullest)
    return made


def test_requests_that_wait_for_a_slot() -> None:
    found = diagnose(slots(4, 6))
    assert causes(found) == ["queue_limit"]
    assert found.findings[0].confidence == "certain"
    assert "one in each of its 4 slots, and up to 6 waited" in found.findings[0].why
    assert "40.0 % of its context" in found.findings[0].why


def test_the_number_of_slots_may_come_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "llama.log"
    log.write_text(START)
    assert diagnose(slots(4, 6, n=None), str(log)).findings[0].confidence == "certain"
    assert diagnose(slots(4, 6, n=None)).findings[0].confidence == "likely"


@pytest.mark.parametrize(("running", "waiting", "n"), [(4, 0, 4), (3, 6, 4), (4, 6, 8)])
def test_near_misses_of_the_slots(running: float, waiting: float, n: float) -> None:
    assert diagnose(slots(running, waiting, n)).primary == "healthy_baseline"


def test_a_slot_that_is_given_back_a_moment_late_is_no_queue() -> None:
    made = flat(llama(load(240)), requests_running=4.0, slots=4.0)
    n = steps(made)
    made.gauge("engine.requests_waiting", [1.0 if i % 8 == 0 else 0.0 for i in range(n)])
    assert n >= 40
    assert diagnose(made).primary == "healthy_baseline"


# -- llama.cpp: the cache has no free cell -------------------------------------------------------


def ended_for_the_pool(of: int, ok: int = 0, n: float = 4.0, kind: Any = "in_band_error") -> Made:
    made = llama(load(ok) if ok else Made().marks())
    for i in range(of):
        row = failed(i, kind, sent_ms=i * 100.0, failure_detail=FULL, status_code=200, content_chunks=9)
        made.records.append(row)
    made.gauge("engine.slots", [n, n]).gauge("engine.slot_tokens", [300.0, 1010.0])
    return made.gauge("engine.slot_context_tokens", [1024.0, 1024.0]).gauge("scrape.ok", [1.0, 1.0])


def test_a_pool_that_ends_some_requests_stands_before_the_streams_that_it_cut() -> None:
    found = diagnose(ended_for_the_pool(20, ok=40))
    assert causes(found)[:2] == ["kv_pool_pressure", "stream_protocol_defect"]
    assert "its 4 slots may each hold 1,024 tokens, and together they were seen to hold 1,010" in (
        found.findings[0].why
    )


def test_a_pool_that_ends_every_request_is_the_cause_of_an_invalid_run() -> None:
    found = diagnose(ended_for_the_pool(16))
    assert found.validity is not None
    assert found.validity.reasons == ["none of 16 requests ended well"]
    assert found.primary == "kv_pool_pressure"
    assert "unknown" not in causes(found)


def test_one_slot_alone_that_runs_out_is_one_conversation_too_long() -> None:
    assert diagnose(ended_for_the_pool(16, n=1.0)).primary == "logical_kv_too_large"


def test_the_same_words_from_another_engine_prove_nothing() -> None:
    made = replace(ended_for_the_pool(20, ok=40), "engine", {"name": "vllm", "version": "0.32.0"})
    assert "kv_pool_pressure" not in causes(diagnose(made))


def test_what_also_failed_for_another_reason_stays_unexplained() -> None:
    made = ended_for_the_pool(8, kind="status")
    made.records += [failed(90 + i, "status", failure_detail="something else") for i in range(3)]
    found = diagnose(made)
    assert found.primary == "unknown"
    assert "kv_pool_pressure" in causes(found)


def test_a_full_pool_is_no_limit_of_slots() -> None:
    made = slots(4, 6)
    made.records += [failed(900 + i, "in_band_error", failure_detail=FULL) for i in range(5)]
    assert diagnose(made).primary == "kv_pool_pressure"


# -- llama.cpp: the window of a slot -------------------------------------------------------------

TOO_LONG = "request (901 tokens) exceeds the available context size (512 tokens), try increasing it"
BODY = f'{{"error":{{"code":400,"message":"{TOO_LONG}","n_prompt_tokens":901,"n_ctx":512}}}}'


@pytest.mark.parametrize("detail", [TOO_LONG, BODY, f"HTTP 400: {BODY}"])
def test_requests_that_the_window_refused(detail: str) -> None:
    made = llama(load(40))
    made.records += [failed(90 + i, "status", failure_detail=detail, status_code=400) for i in range(4)]
    found = diagnose(made)
    assert causes(found) == ["context_limit_truncation"]
    assert "4 requests refused, the longest with 901 tokens against 512" in found.findings[0].why


def windowed(prompt: int, tokens: int, asked: int, finish: str = "length") -> Diagnosis:
    made = llama(load(40, prompt=prompt, tokens=tokens, asked_completion_tokens=asked, finish_reason=finish))
    return diagnose(made.gauge("engine.slot_context_tokens", [512.0, 512.0]))


def test_answers_that_end_where_the_window_ends() -> None:
    found = windowed(450, 62, 120)
    assert causes(found) == ["context_limit_truncation"]
    assert "40 answers ended at the window of 512 tokens" in found.findings[0].why


@pytest.mark.parametrize(
    ("prompt", "tokens", "asked", "finish"),
    [(450, 62, 62, "length"), (200, 40, 120, "length"), (450, 62, 120, "stop")],
)
def test_near_misses_of_the_window(prompt: int, tokens: int, asked: int, finish: str) -> None:
    assert "context_limit_truncation" not in causes(windowed(prompt, tokens, asked, finish))


# -- llama.cpp: reuse is off ---------------------------------------------------------------------


def chosen(similarity: float, times: int = 5) -> str:
    """What llama-server writes of each request at its usual verbosity."""
    return "".join(
        f"0.{40 + i}.797.607 I slot get_availabl: id  3 | task -1 | selected slot by LCP similarity, "
        f"f_sim_best = {similarity + i / 1000:.3f} (> 0.100 thold), f_keep = 0.771\n"
        for i in range(times)
    )


REWIND = (
    "0.50.000.000 W slot update_slots: id  3 | task 9 | forcing full prompt re-processing due to lack of "
    "cache data (likely due to SWA or hybrid/recurrent memory)\n"
)


def beside(made: Made, tmp_path: Path, text: str) -> Diagnosis:
    log = tmp_path / "llama.log"
    log.write_text(START + text)
    return diagnose(made, str(log))


def test_slots_that_held_a_prompt_of_which_nothing_was_used(tmp_path: Path) -> None:
    found = beside(llama(no_hits()), tmp_path, chosen(0.93))
    assert causes(found) == ["prefix_caching_off"]
    assert found.findings[0].confidence == "likely"
    assert "slots held the same beginnings" in found.findings[0].why
    assert any("5 requests got a slot that held 93.2 %" in e.text for e in found.findings[0].evidence)


def test_without_the_log_nothing_says_why(tmp_path: Path) -> None:
    assert diagnose(llama(no_hits())).primary == "unknown"


@pytest.mark.parametrize("text", [chosen(0.11), chosen(0.93, times=2), ""])
def test_near_misses_of_reuse_that_is_off(tmp_path: Path, text: str) -> None:
    assert "prefix_caching_off" not in causes(beside(llama(no_hits()), tmp_path, text))


def test_a_model_that_cannot_rewind_is_not_switched_off(tmp_path: Path) -> None:
    found = beside(llama(no_hits()), tmp_path, chosen(0.93) + REWIND)
    assert found.primary == "prefix_disabled_for_model"
    assert "prefix_caching_off" not in causes(found)


def test_requests_that_ask_for_no_reuse(tmp_path: Path) -> None:
    made = llama(no_hits())
    made.workload["request"] = {"extra_body": {"cache_prompt": False}}
    assert beside(made, tmp_path, chosen(0.93)).primary == "prefix_disabled_by_request"


# -- vLLM: the limit is not on its page, and its gauges lag --------------------------------------

VLLM = {"block_size": "32", "num_gpu_blocks": "728", "kv_cache_size_tokens": "23296"}


def vllm(made: Made, **config: str) -> Made:
    made = replace(made, "engine", {"name": "vllm", "version": "0.32.0"})
    return replace(made, "cache_config", VLLM | config)


def lagging(prompt: int, tokens: int, running: list[float], usage: float = 0.02, **config: str) -> Diagnosis:
    """A queue of six while so many run, reading by reading."""
    made = vllm(load(96, 8, prompt=prompt, tokens=tokens), **config)
    n = steps(made)
    made.gauge("engine.requests_running", [running[i % len(running)] for i in range(n)])
    return diagnose(flat(made, requests_waiting=6.0, kv_usage_ratio=usage))


def test_a_limit_that_nothing_states_shows_in_a_number_that_stands_still() -> None:
    """Two seats: a request is counted out with its last token, the next in only after its first step."""
    found = lagging(200, 40, [2.0, 2.0, 2.0, 1.0])
    assert causes(found) == ["queue_limit"]
    assert found.findings[0].confidence == "likely"


@pytest.mark.parametrize(
    ("prompt", "tokens", "running"),
    [
        (2000, 4, [5.0, 5.0, 4.0]),  # each step computes another prompt: they wait for that
        (200, 40, [4.0, 4.0, 2.0, 1.0]),  # the number varies
        (200, 40, [1.0, 1.0, 1.0, 2.0]),  # the highest number is the exception
    ],
)
def test_near_misses_of_a_limit_that_nothing_states(prompt: int, tokens: int, running: list[float]) -> None:
    assert "queue_limit" not in causes(lagging(prompt, tokens, running))


def test_a_stated_limit_is_reached_although_the_gauge_lags() -> None:
    found = lagging(200, 40, [2.0, 2.0, 1.0], max_num_seqs="2")
    assert (found.primary, found.findings[0].confidence) == ("queue_limit", "certain")


# -- a pool in which the next prompt has no room ---------------------------------------------------


def test_one_long_prompt_that_keeps_the_next_one_out_is_the_pool() -> None:
    """60 % in use, and the next prompt needs 59 %: below every red line, and full all the same."""
    found = lagging(1500, 40, [1.0], 0.608, num_gpu_blocks="80", kv_cache_size_tokens="2560")
    assert causes(found) == ["logical_kv_too_large"]
    assert found.findings[0].confidence == "likely"
    assert "1 request held up to 60.8 % of the KV pool of 2,560 tokens" in found.findings[0].why
    assert [f.cause for f in found.findings if f.role == "ruled_out"] == ["queue_limit"]


@pytest.mark.parametrize(
    ("prompt", "running", "usage"),
    [
        (900, [1.0], 0.36),  # the next one fits
        (1500, [1.0, 1.0, 1.0, 2.0], 0.6),  # two did run
    ],
)
def test_near_misses_of_a_pool_without_room(prompt: int, running: list[float], usage: float) -> None:
    found = lagging(prompt, 40, running, usage, num_gpu_blocks="80", kv_cache_size_tokens="2560")
    assert "logical_kv_too_large" not in causes(found)


def test_a_queue_that_comes_and_goes_is_no_full_pool() -> None:
    made = vllm(load(240, 8, prompt=1500, tokens=40), num_gpu_blocks="80", kv_cache_size_tokens="2560")
    n = steps(made)
    made.gauge("engine.requests_waiting", [1.0 if i % 8 == 0 else 0.0 for i in range(n)])
    assert diagnose(flat(made, requests_running=1.0, kv_usage_ratio=0.608)).primary == "healthy_baseline"
