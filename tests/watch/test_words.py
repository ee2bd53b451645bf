"""The reading in words: the pool thresholds, their exceptions, and what cannot be known."""

from __future__ import annotations

import pytest

from tests.watch.pages import says, vllm

QUIET = {"running": 8, "waiting": 0, "preempted": 5, "made": 100}


@pytest.mark.parametrize(
    ("pages", "verdict", "words"),
    [
        ([vllm(**QUIET, kv=0.92)] * 3, "full_and_healthy", "92 % and nothing waiting: healthy"),
        ([vllm(running=8, waiting=3, kv=0.97)] * 3, "pressure", "full and queueing: pressure"),
        (
            [vllm(running=8, waiting=0, kv=0.97, preempted=p) for p in (5, 5, 7)],
            "pressure",
            "full and preempting (2 in 2 s): pressure",
        ),
        (
            [vllm(running=8, waiting=0, kv=0.95), vllm(running=8, waiting=4, kv=0.95)],
            "full_and_queueing_once",
            "95 % and 4 waiting: full; pressure if the queue stays",
        ),
        (
            [vllm(running=1, waiting=14, kv=0.76)] * 3,
            "queueing_below_the_red_line",
            "76 % and 14 waiting: one request owns the pool; the pool is the limit if the next prompt needs "
            "more than the 24 % that are left, else a limit on sequences or compute",
        ),
        (
            [vllm(running=3, waiting=2, kv=0.18)] * 3,
            "queueing_at_low_use",
            "18 % and 2 waiting: not the pool by these numbers; look at the limits on sequences and batched "
            "tokens, at compute, or at a pool that is small against one prompt",
        ),
        (
            [vllm(running=2, waiting=0, kv=0.12)] * 3,
            "idle",
            "idle pool: 12 % in use and nothing waiting, so memory is not the limit",
        ),
        ([vllm(running=0, waiting=0, kv=0.0)] * 3, "idle", "idle: nothing runs and nothing waits"),
        ([vllm(running=4, waiting=0, kv=0.6)] * 3, "healthy", "60 % and nothing waiting: healthy"),
        # Just below the line: it must not be rounded onto it.
        ([vllm(running=4, waiting=0, kv=0.896)] * 3, "healthy", "89.6 % and nothing waiting: healthy"),
    ],
)
def test_the_words_of_a_situation(pages: list[str], verdict: str, words: str) -> None:
    said = says(pages)
    assert (said.id, said.text) == (verdict, words)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (vllm(running=3), "its queue is not known; this engine does not tell its KV use"),
        (vllm(running=0), "nothing runs; its queue is not known; this engine does not tell its KV use"),
        (vllm(running=3, waiting="+Inf", kv=-5), "its queue is not known; its KV use cannot be read now"),
        (vllm(running=3, waiting=0, kv="NaN"), "nothing waiting; its KV use cannot be read now"),
        (vllm(running=3, waiting=0), "nothing waiting; this engine does not tell its KV use"),
    ],
)
def test_what_a_page_does_not_tell_is_not_said_to_be_none(page: str, words: str) -> None:
    said = says([page] * 2)
    assert (said.id, said.text) == ("use_unknown", words)


def test_no_reading_of_what_runs_is_not_told_as_nothing_runs() -> None:
    said = says([vllm(running="NaN", waiting=0, kv=0.1)] * 2)
    assert said.text == "idle pool: 10 % in use and nothing waiting, so memory is not the limit"


def test_a_falling_hit_rate_is_a_sign_of_pressure_and_a_steady_one_is_not() -> None:
    def pages(hits: list[int]) -> list[str]:
        return [vllm(running=8, waiting=0, kv=0.95, queries=1000 * i, hits=h) for i, h in enumerate(hits)]

    falling = [0, 900, 1800, 2700, 3000, 3200, 3300]
    steady = [900 * i for i in range(7)]
    assert says(pages(falling)).text == "full and losing its hit rate: pressure"
    assert says(pages(steady)).id == "full_and_healthy"


def test_a_falling_throughput_counts_only_with_as_many_requests() -> None:
    made = [0, 100, 200, 300, 330, 350, 360]
    same = [vllm(running=8, waiting=0, kv=0.95, made=m) for m in made]
    fewer = [vllm(running=8 - i, waiting=0, kv=0.95, made=m) for i, m in enumerate(made)]
    assert says(same).text == "full and slowing down: pressure"
    assert says(fewer).id == "full_and_healthy"


def test_one_full_engine_is_not_hidden_by_the_mean() -> None:
    page = vllm("0", running=2, waiting=0, kv=0.15) + vllm("1", running=9, waiting=5, kv=0.97)
    said = says([page] * 3)
    assert said.id == "pressure"
    assert said.text == (
        "engine 1 is full (97 %) with 5 waiting while the mean of 2 is 56 %: pressure on one engine"
    )


def test_a_queue_that_began_at_a_full_pool_is_its_even_when_room_shows_for_a_moment() -> None:
    """vLLM under preemption, as it was recorded: running falls, waiting rises, use falls with them."""
    steps = ((1, 0, 0.14), (7, 9, 1.0), (6, 10, 0.98), (5, 11, 0.92), (4, 12, 0.82))
    pages = [vllm(running=r, waiting=w, kv=k) for r, w, k in steps]
    assert says(pages).text == "82 % and 12 waiting, and 100 % during this queue: pressure"
    ended = [*pages, vllm(running=4, waiting=0, kv=0.82), *[vllm(running=4, waiting=2, kv=0.82)] * 2]
    assert says(ended).id == "queueing_below_the_red_line"


def test_blocks_that_no_request_holds_are_no_healthy_pool() -> None:
    held = vllm(running=0, waiting=0, kv=0.92)
    assert says([held] * 4).text == (
        "92 % in use with no request there: blocks that nobody gives back, as a leak looks "
        "(or KV data kept for another instance)"
    )
    # A gap between two requests, or an engine whose use counts what the prefix cache keeps.
    assert says([held] * 2).id == "full_and_healthy"
    assert says([*[held] * 3, vllm(running=1, waiting=0, kv=0.92), held]).id == "full_and_healthy"
    lmdeploy = held.replace("vllm:kv_cache", "lmdeploy:gpu_cache").replace("vllm:", "lmdeploy:")
    assert says([lmdeploy] * 4).id == "full_and_healthy"
    assert says([vllm(running=0, waiting=0, kv=0.0)] * 4).id == "idle"


def test_requests_that_wait_while_nothing_runs() -> None:
    said = says([vllm(running=0, waiting=3, kv=0.1)] * 4)
    assert (said.id, said.text[:29]) == ("stalled", "3 waiting and nothing runs: t")
    assert says([vllm(running=0, waiting=3, kv=0.1)] * 3).id == "queueing_at_low_use"
    assert says(["llamacpp:requests_processing 0\nllamacpp:requests_deferred 2\n"] * 4).id == "stalled"


def test_a_restart_is_said_before_anything_else_and_is_no_falling_throughput() -> None:
    pages = [vllm(running=8, waiting=3, kv=0.97, made=m) for m in (5000, 5100, 20)]
    assert says(pages).id == "restarted"
    later = pages + [vllm(running=8, waiting=3, kv=0.97, made=20 + m) for m in range(0, 140, 10)]
    assert says(later).text == "full and queueing: pressure"


def test_an_engine_without_kv_use_gets_no_verdict_on_its_memory() -> None:
    busy = "llamacpp:requests_processing 4\nllamacpp:requests_deferred 3\n"
    assert says([busy] * 3).id == "queueing_use_unknown"
    assert "cannot be seen" in says([busy] * 3).text
    calm = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"
    assert says([calm] * 3).text == "nothing waiting; this engine does not tell its KV use"
    idle = "llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"
    assert says([idle] * 3).id == "idle"
