"""The engine's own books of the KV pool do not balance, or blocks stay in use with nothing running."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, percent, whole
from kvprobe.evidence.events import Event

_HELD: Final = 0.02
_READINGS: Final = 2
_STILL: Final = 6


def books(view: LogView) -> list[LogCandidate]:
    """`memory leak detected`: missing = total - available - evictable - protected."""
    event = view.first("kv_leak")
    if event is None:
        return []
    total = event.get("total")
    parts = [event.get(n) for n in ("available", "evictable", "protected")]
    known = total is not None and parts[0] is not None
    missing = total - sum(p or 0 for p in parts) if known else None
    double = missing is not None and missing < 0
    told = f": {whole(abs(missing))} tokens of {whole(total)} are " if missing and total else ""
    told += ("counted twice (freed twice)" if double else "in nobody's hands") if told else ""
    return [
        candidate(
            "engine_accounting_bug" if double else "kv_pool_leak",
            "certain" if known and missing else "likely",
            f"SGLang's check of the {event.get('pool')} fails{told}: the engine loses count of its pages.",
            cites(view.all("kv_leak"), 2),
            fatal=True,
            at=event,
            phase="serve",
            check_first=[
                "which feature is on: speculation, page size above 1, hierarchical cache, overlap "
                "scheduling, aborts"
            ],
            remedy=[
                "upgrade, or go back to the last version without it",
                "restart frees the pool",
                "switch the suspect feature off",
            ],
            would_change_my_mind=["a sum that balances: then the check itself is wrong"],
            excludes={"kv_pool_pressure": "the pool's books do not balance; load is not the cause"},
        )
    ]


def held_while_idle(view: LogView) -> list[LogCandidate]:
    """Usage that stays with nothing running and nothing waiting, at the end of a log."""
    found: list[LogCandidate] = []
    for stats in _by_rank(view):
        tail = _idle_tail(stats)
        usage = [float(e.get("kv_usage")) for e in tail]
        if len(tail) < _READINGS or min(usage) < _HELD or _cached_counts(view, tail):
            continue
        if max(usage) - min(usage) > 0.05:
            continue
        cancelled = view.all("cancelled", "aborted")
        found.append(
            candidate(
                "kv_pool_leak",
                "likely" if len(tail) > _READINGS else "suspected",
                f"{percent(usage[-1])} of the KV pool stays in use in {len(tail)} readings in which nothing "
                f"runs and nothing waits: blocks of finished or aborted requests were not freed.",
                [
                    cite(tail[0], "running", "waiting", "kv_usage"),
                    cite(tail[-1], "running", "waiting", "kv_usage"),
                    *cites(cancelled, 1),
                ],
                fatal=False,
                at=tail[0],
                check_first=[
                    "whether usage falls to 0 after all requests ended; requests that were aborted or timed "
                    "out before"
                ],
                remedy=["restart frees it", "upgrade; report the kind of request after which usage stays"],
                would_change_my_mind=[
                    "a transfer or an offload that still holds blocks (disaggregated serving)"
                ],
                excludes={"kv_pool_pressure": "the usage stays with nothing running"},
            )
        )
        break
    return found


def _by_rank(view: LogView) -> list[list[Event]]:
    ranks: dict[tuple[str, str | None], list[Event]] = {}
    for e in view.all("engine_stats"):
        if e.get("kv_usage") is not None and e.get("running") is not None:
            ranks.setdefault((e.source, e.rank), []).append(e)
    return list(ranks.values())


def _idle_tail(stats: list[Event]) -> list[Event]:
    tail: list[Event] = []
    for e in reversed(stats):
        if e.get("running") != 0 or (e.get("waiting") or 0) != 0:
            break
        tail.append(e)
    return tail[::-1]


def _cached_counts(view: LogView, tail: list[Event]) -> bool:
    """vLLM V0 counts cached blocks as used, so its idle usage proves nothing (it prints `swapped`)."""
    return any(e.get("swapped") is not None for e in tail)


def cancelled_but_running(view: LogView) -> list[LogCandidate]:
    """Requests were aborted, nothing new came, and the same number goes on generating for minutes."""
    aborted = view.all("aborted")
    if not aborted:
        return []
    after = [
        e for e in view.all("engine_stats") if e.line > aborted[-1].line and e.get("running") is not None
    ]
    still = [e for e in after if e.get("running") and not (e.get("prompt_tokens_per_s") or 0)]
    if len(still) < _STILL or len(still) < len(after):
        return []
    running = {e.get("running") for e in still}
    if len(running) > 1 or max(running) > sum(e.repeats for e in aborted):
        return []
    return [
        candidate(
            "cancellation_ignored",
            "suspected",
            f"{max(running)} requests go on in {len(still)} readings after {len(aborted)} aborts and no new "
            f"prompt: aborted "
            "requests keep computing and hold their blocks.",
            [
                cite(aborted[-1]),
                cite(still[0], "running", "kv_usage"),
                cite(still[-1], "running", "kv_usage"),
            ],
            fatal=False,
            at=aborted[-1],
            phase="serve",
            check_first=[
                "a cancel probe: close one streamed request, then one non-streamed, and time how long "
                "running takes to fall (a step or two; still running after 60 s proves it)"
            ],
            remedy=[
                "upgrade; a proxy between must pass the disconnect on",
                "a limit of max_tokens bounds the loss",
            ],
            would_change_my_mind=["other clients' long requests among those that run"],
        )
    ]


RULES: tuple[LogRule, ...] = (books, held_while_idle, cancelled_but_running)
