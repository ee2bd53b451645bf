"""What the experiments of `--investigate` say about the causes that the load left open.

Each verdict stands beside the cause it is about, as evidence. One that speaks for a cause makes it a step
surer, `suspected` -> `likely` (what was seen without load proves nothing about the load by itself); one
that speaks against it makes it a step less sure, and rules out what was only suspected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from kvprobe.diagnose.model import Confidence, Evidence
from kvprobe.diagnose.rules.base import Candidate, evidence
from kvprobe.diagnose.view import View
from kvprobe.summary.units import figures, percent, seconds, whole

Direction = Literal["for", "against", "nothing"]
Says = tuple[Direction, Evidence]
_HIT = 0.5
"""Of the tokens that had to hit: so many did, or the cache did not work."""
_SURER: Final[dict[Confidence, Confidence]] = {
    "suspected": "likely",
    "likely": "likely",
    "certain": "certain",
}
_LESS: Final[dict[Confidence, Confidence | None]] = {
    "certain": "likely",
    "likely": "suspected",
    "suspected": None,
}


def with_experiments(view: View, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates with what the experiments say about each; the same ones where none was made."""
    done = results(view)
    return [_weighed(c, done) for c in candidates] if done else candidates


def results(view: View) -> dict[str, Mapping[str, Any]]:
    """Name -> result of each experiment that came to one."""
    found: dict[str, Mapping[str, Any]] = {}
    for fact in view.facts("experiment"):
        if isinstance(fact.value, dict) and isinstance(fact.value.get("result"), dict):
            found[str(fact.value.get("name"))] = fact.value["result"]
    return found


def _weighed(c: Candidate, done: Mapping[str, Mapping[str, Any]]) -> Candidate:
    says = [said for judge in JUDGES.get(c.finding.cause, ()) if (said := judge(done)) is not None]
    if not says:
        return c
    sure: Confidence | None = c.finding.confidence
    for direction, _ in says:
        if sure is not None and direction != "nothing":
            sure = _SURER[sure] if direction == "for" else _LESS[sure]
    c.finding = msgspec.structs.replace(
        c.finding,
        evidence=[*c.finding.evidence, *(e for _, e in says)],
        confidence=sure or "suspected",
        role="ruled_out" if sure is None else c.finding.role,
    )
    return c


Judge = Callable[[Mapping[str, Mapping[str, Any]]], Says | None]


def _share(result: Mapping[str, Any] | None) -> float | None:
    """Hits of a pair over those that had to come; null where either is not known."""
    hits, expected = (result or {}).get("hit_tokens"), (result or {}).get("expected_tokens")
    return hits / expected if isinstance(hits, int | float) and expected else None


def _pair_evidence(name: str, result: Mapping[str, Any], words: str) -> Evidence:
    cold, warm = result.get("ttft_cold_s"), result.get("ttft_warm_s")
    times = f"; TTFT {seconds(cold)}, then {seconds(warm)}" if cold and warm else ""
    return evidence(
        f"experiment: {name}",
        f"{words}: {whole(result['hit_tokens'])} of {whole(result['expected_tokens'])} tokens that could "
        f"hit did{times}",
        hit=(result["hit_tokens"], "tokens"),
        expected=(result["expected_tokens"], "tokens"),
    )


def _repeat(hit: Direction, miss: Direction) -> Judge:
    def judge(done: Mapping[str, Mapping[str, Any]]) -> Says | None:
        share = _share(done.get("repeat"))
        if share is None:
            return None
        told = _pair_evidence(
            "repeat", done["repeat"], "one prompt twice, byte for byte, with nobody else there"
        )
        return (hit if share >= _HIT else miss), told

    return judge


def _aligned(hit: Direction, miss: Direction) -> Judge:
    def judge(done: Mapping[str, Mapping[str, Any]]) -> Says | None:
        share = _share(done.get("aligned"))
        if share is None:
            return None
        told = _pair_evidence("aligned", done["aligned"], "two prompts that share many whole blocks")
        return (hit if share >= _HIT else miss), told

    return judge


def _burst(limit: Direction, free: Direction, full: Direction) -> Judge:
    """A burst of short requests: pinned below its number with room (limit), all at once (free), or full."""

    def judge(done: Mapping[str, Mapping[str, Any]]) -> Says | None:
        result = done.get("burst")
        if not result or result.get("running_max") is None or not result.get("looks"):
            return None
        usage, most = result.get("kv_usage_max"), result["running_max"]
        held = f", {percent(usage)} of the pool at most" if usage is not None else ""
        pinned = len(result.get("running_with_queue") or []) == 1 and most < result["requests"]
        told = evidence(
            "experiment: burst",
            f"{whole(result['requests'])} short requests at once: up to {whole(most)} ran, up to "
            f"{whole(result.get('waiting_max') or 0)} waited{held}",
            running_max=(most, "count"),
            kv_usage_max=(usage, "ratio"),
        )
        if usage is not None and usage >= 0.9:
            return full, told
        return (limit if pinned else free if most >= result["requests"] else "nothing"), told

    return judge


def _alone(done: Mapping[str, Mapping[str, Any]]) -> Says | None:
    """One long sequence alone: how much of the pool it takes."""
    result = done.get("long_alone")
    if not result or result.get("kv_usage_max") is None:
        return None
    usage = result["kv_usage_max"]
    told = evidence(
        "experiment: long_alone",
        f"one sequence of {whole(result['prompt_tokens'])} tokens alone took {percent(usage)} of the pool, "
        f"TTFT {seconds(result['ttft_s']) if result.get('ttft_s') else 'not known'}",
        kv_usage_max=(usage, "ratio"),
        prompt=(result["prompt_tokens"], "tokens"),
    )
    return ("for" if usage >= 0.125 else "nothing"), told


def _alone_is_few(done: Mapping[str, Mapping[str, Any]]) -> Says | None:
    said = _alone(done)
    return said if said is None or said[0] == "for" else ("against", said[1])


def _at_rest(done: Mapping[str, Mapping[str, Any]]) -> Says | None:
    """Blocks in use with nobody there, a while after the load."""
    result = done.get("at_rest")
    last = (result or {}).get("last") or {}
    usage, running = last.get("engine.kv_usage_ratio"), last.get("engine.requests_running")
    if result is None or usage is None or running is None:
        return None
    told = evidence(
        "experiment: at_rest",
        f"{seconds(result['pause_s'])} after a first look with no request of ours: {whole(running)} running, "
        f"{percent(usage)} of the pool in use",
        kv_usage=(usage, "ratio"),
        running=(running, "count"),
    )
    if running > 0:
        return "nothing", told
    return ("for" if usage > 0 else "against"), told


def _still_running(done: Mapping[str, Mapping[str, Any]]) -> Says | None:
    said = _at_rest(done)
    running = ((done.get("at_rest") or {}).get("last") or {}).get("engine.requests_running")
    return None if said is None or running is None else (("for" if running > 0 else "nothing"), said[1])


def _prefill_alone(done: Mapping[str, Mapping[str, Any]]) -> Says | None:
    """Prefill speed with nobody there: the time for later comparison, no verdict by itself."""
    result = done.get("long_alone")
    if not result or not result.get("ttft_s") or not result.get("prompt_tokens"):
        return None
    speed = result["prompt_tokens"] / result["ttft_s"]
    text = (
        f"{whole(result['prompt_tokens'])} tokens alone: TTFT {seconds(result['ttft_s'])}, {figures(speed)}/s"
    )
    return "nothing", evidence("experiment: long_alone", text, prefill=(speed, "tokens/s"))


JUDGES: Final[dict[str, tuple[Judge, ...]]] = {
    "prefix_caching_off": (_repeat("against", "for"),),
    "prefix_disabled_by_request": (_repeat("against", "for"), _aligned("against", "for")),
    "prefix_block_granularity": (_aligned("for", "against"),),
    "prefix_layout_unstable": (_aligned("for", "nothing"),),
    "prefix_evicted": (_repeat("for", "nothing"),),
    "unknown": (_repeat("nothing", "nothing"), _aligned("nothing", "nothing"), _burst(*("nothing",) * 3)),
    "queue_limit": (_burst("for", "against", "nothing"),),
    "kv_pool_pressure": (_burst("nothing", "nothing", "for"),),
    "logical_kv_too_large": (_alone_is_few,),
    "kv_pool_leak": (_at_rest,),
    "cancellation_ignored": (_still_running,),
    "prefill_compute_bound": (_prefill_alone,),
}


SEPARATES: Final[dict[str, str]] = {
    "repeat": "one prompt sent twice, byte for byte",
    "aligned": "two prompts that share many whole blocks",
    "long_alone": "one long sequence alone",
    "burst": "a burst of short requests",
    "at_rest": "a look at the pool with nobody there",
}
_TELLS: Final[dict[str, str]] = {
    **dict.fromkeys(("prefix_caching_off", "prefix_disabled_by_request", "prefix_evicted"), "repeat"),
    **dict.fromkeys(("prefix_block_granularity", "prefix_layout_unstable"), "aligned"),
    "logical_kv_too_large": "long_alone",
    "kv_pool_pressure": "long_alone",
    "queue_limit": "burst",
    "kv_pool_leak": "at_rest",
    "cancellation_ignored": "at_rest",
}


def separating(first: str, others: list[str]) -> str | None:
    """The experiment that would tell the first cause from the others; null where none is known."""
    names = [n for cause in [first, *others] if (n := _TELLS.get(cause)) is not None]
    if not others or not names:
        return None
    told = f"what would separate {first} from {' and '.join(others)}: {SEPARATES[names[0]]}"
    return f"{told} (`kvprobe run --investigate` does it)"
