"""The KV pool by the engines' periodic lines: pressure, one request that owns it, limits, idleness.

Usage at or above 90 % alone is not pressure. Pressure is that, together with preemptions or retractions,
a queue in at least two readings, or a falling hit rate or throughput. Below 90 % a pool can still be the
limit, when the next prompt is larger than what is left; and a queue with much of the pool free is another
limit: sequences, slots, admission.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, percent, plural, told, whole
from kvprobe.evidence.events import Event

RED_LINE: Final = 0.90
IDLE: Final = 0.30
QUEUED: Final = 2
FEW: Final = 2
"""So many running requests or fewer own the pool."""
_OWNED: Final = 0.50
_FREE: Final = 0.70
_READINGS: Final = 3
_FALL: Final = 0.5
_ALL_BUT_FULL: Final = 0.95
"""A single reading, as people paste it, is a suspicion only at this level."""
_SLOW_TOKENS_PER_S: Final = 8.0
"""For one request: slower than reading; a decode step of any served model takes less."""
_STEP_TOKENS: Final = 2048
"""Of prompts in one step, the usual bound of engines that serve; of answers a step gives one to each."""
_PROMPT_STEPS: Final = 0.5
_SHOWN = ("running", "waiting", "kv_usage", "generation_tokens_per_s")


@dataclass(slots=True)
class Pool:
    """The readings of one engine or rank."""

    stats: list[Event]

    @property
    def high(self) -> list[Event]:
        return [e for e in self.stats if e.get("kv_usage") >= RED_LINE]

    def queued(self, events: list[Event]) -> list[Event]:
        return [e for e in events if (e.get("waiting") or 0) > 0]

    @property
    def most(self) -> float:
        return max(float(e.get("kv_usage")) for e in self.stats)

    @property
    def most_running(self) -> int:
        return max((e.get("running") or 0 for e in self.stats), default=0)


def _pools(view: LogView) -> list[Pool]:
    ranks: dict[tuple[str, str | None], list[Event]] = {}
    for e in view.all("engine_stats"):
        if e.get("kv_usage") is not None:
            ranks.setdefault((e.source, e.rank), []).append(e)
    return sorted((Pool(s) for s in ranks.values()), key=lambda p: -p.most)


def pressure(view: LogView) -> list[LogCandidate]:
    """Full, with a sign that requests suffer for it."""
    pools = _pools(view)
    pool = pools[0] if pools else None
    signs, proof = _signs(view, pool), _evictions(view)
    high = pool.high if pool is not None else []
    slow = _slow_after_retraction(view, pool) if not signs and pool is not None else None
    if slow:
        signs = [slow]
    if not signs or not (high or proof):
        return []
    running = [e.get("running") for e in high if e.get("running") is not None]
    if running and max(running) <= FEW and not _groups(view):
        return []
    readings = plural(len(high), "reading")
    usage = f"{percent(RED_LINE)} or more of the pool in use in {readings}, " if high else ""
    stuck = plural(len(_stuck(high)), "reading") if _stuck(high) else ""
    tail = f" For {stuck} no token was generated: stuck, not only full." if stuck else ""
    shown = high[:1] + high[1:][-1:]
    return [
        candidate(
            "kv_pool_pressure",
            "suspected" if slow else _how_sure(view, pool, proof),
            f"The KV pool is too small for this load: {usage}with {', '.join(signs)}.{tail}",
            [*cites(proof, 2), *(cite(e, *_SHOWN) for e in shown)],
            fatal=False,
            at=(proof or high)[0],
            phase="serve",
            check_first=["KV tokens / p95 length of a request = how many fit; against the sequence limit"],
            remedy=[
                "a limit of concurrent sequences that the pool can hold: no recomputation, same throughput",
                "a larger pool: more cards, quantised weights, fp8 KV (twice the tokens; check quality)",
            ],
            would_change_my_mind=["the same slowness with a pool twice as large"],
        )
    ]


def _how_sure(view: LogView, pool: Pool | None, proof: list[Event]) -> Confidence:
    """Without an eviction only a queue shows that requests suffer, and it may as well wait for sequences."""
    high = pool.high if pool is not None else []
    if proof:
        return "certain" if high else "likely"
    most = told(view, "max_num_seqs")
    at_limit = most is not None and any((e.get("running") or 0) >= most for e in high)
    queued = pool is not None and len(pool.queued(high)) >= QUEUED
    return "likely" if queued and not at_limit else "suspected"


def _slow_after_retraction(view: LogView, pool: Pool) -> str | None:
    """One retraction is how SGLang is meant to run; a pool that stays full after it, with few tokens for
    each request, is not health."""
    retracted = view.first("retraction")
    if retracted is None:
        return None
    after = [e for e in pool.stats if e.source == retracted.source and e.line > retracted.line]
    speeds = [
        e.get("generation_tokens_per_s") / e.get("running")
        for e in after
        if e.get("running") and e.get("generation_tokens_per_s") is not None
    ]
    if len(after) < _READINGS or not speeds or any(e.get("kv_usage") < RED_LINE for e in after):
        return None
    if max(speeds) >= _SLOW_TOKENS_PER_S:
        return None
    return f"a retraction and at most {max(speeds):.1f} tokens/s for each running request after it"


def _evictions(view: LogView) -> list[Event]:
    """Preemptions, and retractions that are frequent: an occasional one is how SGLang is meant to run."""
    retractions = view.all("retraction")
    frequent = retractions if len(retractions) >= _READINGS else []
    printed = [e for e in view.all("engine_stats") if (e.get("preemptions") or e.get("preempted") or 0) > 0]
    return [*view.all("preemption"), *frequent, *printed[:1], *view.all("kv_no_room")[:1]]


def _signs(view: LogView, pool: Pool | None) -> list[str]:
    signs = []
    preempted = view.all("preemption")
    total = max((e.get("total") or 0 for e in preempted), default=0) or sum(e.repeats for e in preempted)
    if preempted:
        signs.append(plural(round(total), "preemption"))
    retracted = view.all("retraction")
    if len(retracted) >= _READINGS or (retracted and pool is not None and pool.queued(pool.high)):
        signs.append(plural(sum((e.get("requests") or 1) for e in retracted), "retracted request"))
    printed = [e.get("preemptions") for e in view.all("engine_stats") if e.get("preemptions")]
    if printed and not preempted:
        signs.append(plural(round(max(printed)), "preemption"))
    if pool is None:
        return signs
    queued = pool.queued(pool.high)
    if len(queued) >= QUEUED:
        signs.append(
            f"requests waiting in {len(queued)} of these (up to {max(e.get('waiting') for e in queued)})"
        )
    if len(pool.stats) == 1 and queued and pool.most >= _ALL_BUT_FULL:
        signs.append(f"{queued[0].get('waiting')} requests waiting in the only reading there is")
    if _falls(pool.high, "generation_tokens_per_s"):
        signs.append("throughput falling")
    if _falls(pool.high, "prefix_hit_rate"):
        signs.append("hit rate falling")
    return signs


def _falls(events: list[Event], name: str) -> bool:
    values = [float(e.get(name)) for e in events if e.get(name) is not None]
    if len(values) < 2 * _READINGS:
        return False
    third = len(values) // 3
    start, end = sum(values[:third]) / third, sum(values[-third:]) / third
    return start > 0 and end < _FALL * start


def _stuck(events: list[Event]) -> list[Event]:
    """Running requests and no token, in at least three readings."""
    still = [
        e
        for e in events
        if (e.get("running") or 0) > 0
        and e.get("generation_tokens_per_s") == 0
        and not (e.get("prompt_tokens_per_s") or 0)
    ]
    return still if len(still) >= _READINGS else []


def owned(view: LogView) -> list[LogCandidate]:
    """One or two requests hold most of the pool while others wait for it."""
    if _groups(view):
        return []
    for pool in _pools(view):
        # A queue shows that others suffer; so does a preemption while the pool is full.
        line = RED_LINE if _pushed_out(view) else 2.0
        held = [e for e in pool.stats if (e.get("waiting") or 0) > 0 or e.get("kv_usage") >= line]
        held = [e for e in held if e.get("kv_usage") >= _OWNED]
        held = [e for e in held if 1 <= (e.get("running") or 0) <= FEW]
        if len(held) >= QUEUED:
            return [_owned(view, held)]
    return []


def _groups(view: LogView) -> bool:
    """What V0 swaps are groups of several sequences: few of them running may be many sequences."""
    return any(e.get("mode") == "SWAP" for e in view.all("preemption"))


def _pushed_out(view: LogView) -> bool:
    """Any preemption or retraction at all: with one or two running it is they that do not fit."""
    return bool(view.all("preemption", "retraction"))


def _owned(view: LogView, held: list[Event]) -> LogCandidate:
    worst = max(held, key=lambda e: e.get("kv_usage"))
    usage, running = worst.get("kv_usage"), worst.get("running")
    tokens = told(view, "tokens", "pool_size")
    each = f", about {whole(tokens * usage / running)} tokens each" if tokens else ""
    most = told(view, "max_num_seqs")
    # One or two may run because no more are allowed, and the next prompt may well fit what is free.
    doubtful = usage < _FREE or (most is not None and running >= most and usage < RED_LINE)
    return candidate(
        "logical_kv_too_large",
        "suspected" if doubtful else "likely",
        f"{plural(running, 'running request')} hold {percent(usage)} of the KV pool{each} while "
        f"{worst.get('waiting') or 'none'} wait in {plural(len(held), 'reading')}: few long contexts own it.",
        [cite(held[0], *_SHOWN), cite(held[-1], *_SHOWN), *cites(view.all("pool_size"), 1)],
        fatal=False,
        at=held[0],
        phase="serve",
        check_first=["length of the running requests x bytes per token against the pool"],
        remedy=[
            "a lower context limit per request",
            "fp8 KV, or a larger pool",
            "long requests on a replica of their own",
        ],
        would_change_my_mind=["short running requests at that usage: then reservation or a leak"],
        excludes={"queue_limit": f"only {percent(1 - usage)} of the pool is free for the next prompt"},
    )


def limit(view: LogView) -> list[LogCandidate]:
    """A queue while much of the pool is free."""
    for pool in _pools(view):
        waits = pool.queued(pool.stats)
        free = [e for e in waits if e.get("kv_usage") < _FREE and (e.get("running") or 0) > 0]
        if len(free) < _READINGS or pool.high or len(free) < 0.8 * len(waits):
            continue
        running = [e.get("running") for e in free]
        if max(e.get("kv_usage") for e in free) >= _OWNED and max(running) <= FEW:
            continue
        most = told(view, "max_num_seqs")
        at_limit = most is not None and max(running) >= most
        plateau = max(running) - min(running) <= max(1, 0.15 * max(running))
        if _stuck(free) or not (at_limit or (plateau and not _computing_prompts(free))):
            continue
        return [_limit(view, free, most, at_limit)]
    return []


def _computing_prompts(events: list[Event]) -> bool:
    """Most steps compute prompts: then requests wait for that, however many may run."""
    steps = [
        e.get("running") * e.get("prompt_tokens_per_s") / (e.get("generation_tokens_per_s") or 1.0)
        for e in events
        if e.get("prompt_tokens_per_s") is not None and e.get("generation_tokens_per_s") is not None
    ]
    return bool(steps) and sum(steps) / len(steps) > _PROMPT_STEPS * _STEP_TOKENS


def _limit(view: LogView, free: list[Event], most: float | None, at_limit: bool) -> LogCandidate:
    running, waiting = max(e.get("running") for e in free), max(e.get("waiting") for e in free)
    usage = max(e.get("kv_usage") for e in free)
    sglang = any(e.engine == "sglang" for e in free)
    why = f"{waiting} requests wait while {running} run and at most {percent(usage)} of the KV pool is in use"
    if at_limit:
        why += f": the limit of {whole(most or 0)} sequences is reached, memory is not."
    elif sglang:
        why += ": admission reserves for max_new_tokens, not for what is used; the pool is not the limit."
    else:
        why += ": a configured limit (sequences, batched tokens, admission), not the pool, holds them."
    return candidate(
        "queue_limit",
        # Without the limit's number a next prompt that is larger than what is free looks alike.
        "certain" if at_limit else "likely" if usage < _OWNED and running > FEW else "suspected",
        why,
        [
            cite(free[0], *_SHOWN),
            cite(free[-1], *_SHOWN),
            *cites([e for e in view.all("config") if e.get("max_num_seqs")], 1),
        ],
        fatal=False,
        at=free[0],
        phase="serve",
        check_first=[
            "max_num_seqs / max_running_requests and max_num_batched_tokens of the start line",
            "max_tokens that clients ask for",
        ],
        remedy=[
            "raise the sequence limit: the pool has room",
            *(["lower max_tokens of the requests, or --schedule-conservativeness"] if sglang else []),
        ],
        would_change_my_mind=["running requests at the limit with usage above 90 %"],
        excludes={"kv_pool_pressure": f"at most {percent(usage)} of the pool was in use"},
    )


def idle(view: LogView) -> list[LogCandidate]:
    """Usage below 30 % and nothing waiting, over at least three busy readings."""
    stats = [e for p in _pools(view) for e in p.stats]
    busy = [e for e in stats if (e.get("running") or 0) > 0]
    if len(busy) < _READINGS or any((e.get("waiting") or 0) > 0 for e in stats):
        return []
    most = max(float(e.get("kv_usage")) for e in stats)
    if most >= IDLE:
        return []
    top = max(busy, key=lambda e: e.get("kv_usage"))
    return [
        candidate(
            "kv_pool_idle",
            "likely",
            f"KV memory is not the limit: at most {percent(most)} of the pool was in use and nothing waited "
            f"in {plural(len(busy), 'busy reading')}, with up to {max(e.get('running') for e in busy)} "
            f"running.",
            [cite(top, *_SHOWN)],
            fatal=False,
            root=False,
            at=top,
            phase="serve",
            check_first=[
                "whether the load was what you expect; if it is slow, look at compute, not at memory"
            ],
            remedy=["more load, or a smaller pool or card if this is all there will be"],
            would_change_my_mind=["readings under the real peak load"],
            excludes={"kv_pool_pressure": f"at most {percent(most)} of the pool was in use"},
        )
    ]


RULES: tuple[LogRule, ...] = (pressure, owned, limit, idle)
