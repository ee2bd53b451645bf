"""The KV pool by the periodic lines of any engine."""

from __future__ import annotations

from tests.diagnose.logs.enginekit import diagnosis, primary, vllm_stats


def _lines(count: int, *args: float, **kwargs: float) -> str:
    running, waiting, usage = args
    return "\n".join(vllm_stats(n, int(running), int(waiting), usage, **kwargs) for n in range(count))


def test_full_with_a_queue_is_pressure() -> None:
    found = primary(_lines(6, 40, 12, 97.5))
    assert found.cause == "kv_pool_pressure"
    assert "waiting in 6" in found.why
    assert "stuck" not in found.why


def test_full_without_tokens_is_told_as_stuck() -> None:
    """S19."""
    found = primary(_lines(6, 40, 12, 99.9, tps=0.0, prompt=0.0))
    assert found.cause == "kv_pool_pressure"
    assert "stuck" in found.why


def test_a_high_level_alone_is_no_fault() -> None:
    assert diagnosis(_lines(6, 38, 0, 96.0, tps=850.0)).primary == "healthy_baseline"


def test_one_waiting_reading_is_no_pressure() -> None:
    text = "\n".join(vllm_stats(n, 38, 1 if n == 2 else 0, 95.0) for n in range(6))
    assert diagnosis(text).primary == "healthy_baseline"


def test_one_request_that_owns_the_pool() -> None:
    """1 running, 14 waiting at 76 %: the next prompt needs more than is left."""
    found = primary(_lines(5, 1, 14, 76.0))
    assert found.cause == "logical_kv_too_large"
    assert found.symptom == "long_conversation_oom"


def test_usage_that_stays_with_nothing_running_is_a_leak() -> None:
    """S20."""
    text = _lines(3, 6, 0, 91.0) + "\n" + "\n".join(vllm_stats(n, 0, 0, 93.1, tps=0.0) for n in range(3, 9))
    found = primary(text)
    assert found.cause == "kv_pool_leak"
    assert "93.1 %" in found.why


def test_a_limit_of_sequences_with_free_blocks() -> None:
    config = "INFO 05-06 08:59:00 [utils.py:233] non-default args: {'model': 'm', 'max_num_seqs': 16}\n"
    found = primary(config + _lines(6, 16, 30, 34.0))
    assert (found.cause, found.confidence) == ("queue_limit", "certain")
    ruled_out = [f for f in diagnosis(config + _lines(6, 16, 30, 34.0)).findings if f.role == "ruled_out"]
    assert "34.0 %" in next(f.why for f in ruled_out if f.cause == "kv_pool_pressure")


def test_a_queue_that_is_still_being_admitted_is_no_limit() -> None:
    text = "\n".join(vllm_stats(n, 5 + 6 * n, 30 - 4 * n, 10.0 + 5 * n) for n in range(6))
    assert "queue_limit" not in {f.cause for f in diagnosis(text).findings}


def test_a_queue_for_computing_prompts_is_no_limit() -> None:
    """Four run and others wait, pinned as if by a limit: but each step is full of prompts."""
    busy = _lines(6, 4, 5, 22.0, tps=0.3, prompt=140.0)
    assert "queue_limit" not in {f.cause for f in diagnosis(busy).findings}
    assert primary(_lines(6, 4, 5, 22.0, tps=60.0, prompt=140.0)).cause == "queue_limit"


def test_idle_is_below_thirty_percent_with_nothing_waiting() -> None:
    assert primary(_lines(5, 3, 0, 4.0)).cause == "kv_pool_idle"
    assert diagnosis(_lines(5, 20, 0, 42.0)).primary == "healthy_baseline"


def test_aborted_requests_that_go_on() -> None:
    """S21."""
    text = (
        _lines(2, 2, 0, 40.0)
        + "\nINFO 05-06 09:00:25 [async_llm.py:411] Aborted request cmpl-1a.\n"
        + "INFO 05-06 09:00:25 [async_llm.py:411] Aborted request cmpl-2b.\n"
        + "\n".join(vllm_stats(n, 2, 0, 41.0, prompt=0.0) for n in range(3, 11))
    )
    found = primary(text)
    assert (found.cause, found.confidence) == ("cancellation_ignored", "suspected")
