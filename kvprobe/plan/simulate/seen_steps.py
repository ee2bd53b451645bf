"""The steps of a server as its clients saw them: how long each took, and what it computed.

A request that decodes gets a token from every step: its gaps between tokens *are* the steps. One request
after the other serves as the clock (the one that lasts longest), so that each step is counted once. Where
nobody decodes, the time to the first token of the next prompt is a stretch of one or more steps.

Where tokens come several at a time (speculation, a server that sends every n-th step), the gap before them
counts as so many steps: that is what a server takes for them that has one token a step, as the simulated one.

What a step computed follows from the rest: a token for each request between its first and its last one, and
the parts of the prompts under way. A prompt begins in the first step after it was sent, takes what the
budget leaves, and ends in the step that gave its first token; when it would have been done before, it has
waited (for a seat, for blocks) and began as late as that allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvprobe.plan.simulate.seen import Floats, Seen, contexts, near_s, under_way

MOST_STEPS_OF_A_PROMPT = 4096
LATE_SHARE = 0.6
"""Steps of a prompt's parts last at least this share of the longest ones in which they could lie."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Columns: an interval between two instants, and what was computed in it."""

    seconds: Floats
    front: Floats
    """1 where the interval begins with the sending of a prompt: network and front end lie in it; else 0."""
    steps: Floats
    tokens: Floats
    contexts: Floats
    pairs: Floats
    decoders: Floats

    def __len__(self) -> int:
        return len(self.seconds)

    def terms(self) -> Floats:
        """Steps, tokens, KV tokens read, pairs, front: a column each."""
        return np.column_stack((self.steps, self.tokens, self.contexts, self.pairs, self.front))


class _Spans(NamedTuple):
    begin: Floats
    end: Floats
    alone: NDArray[np.bool_]
    """Nobody decoded."""
    front: NDArray[np.bool_]
    steps: Floats
    """Tokens that the clock got at the end."""


def steps_of(of: Seen, budget_tokens: int) -> Steps:
    """What can be told of the run's steps; those that others took part in unknown are left out."""
    near = near_s(np.concatenate([np.diff(one) for one in of.stamps] or [np.zeros(0)]))
    spans = _spans(of, near)
    middle = (spans.begin + spans.end) / 2
    decoders = np.where(spans.alone, 0, under_way(of.first, of.last, middle)).astype(float)
    read = np.where(spans.alone, 0.0, spans.steps * (contexts(of, middle) + decoders / 2))
    work = _Work(spans.steps.copy(), decoders * spans.steps, read, np.zeros(len(middle)))
    lost = _add_prompts(of, spans, work, budget_tokens, near)
    kept = (spans.end > spans.begin) & ~_unclear(of, spans, work.steps)
    kept &= spans.begin >= of.warmup_until - near
    kept &= ~_touched(spans, [*of.clouded, *lost], near)
    seconds, front = spans.end - spans.begin, spans.front.astype(float)
    return Steps(*(column[kept] for column in (seconds, front, *work, decoders)))


def _touched(spans: _Spans, by: list[tuple[float, float]], near: float) -> NDArray[np.bool_]:
    """Which spans lie in one of those, by more than `near`."""
    edges = np.array(by, dtype=float).reshape(-1, 2)
    first = np.searchsorted(np.maximum.accumulate(spans.end), edges[:, 0] + near, side="right")
    after = np.searchsorted(np.maximum.accumulate(spans.begin), edges[:, 1] - near, side="left")
    change, some = np.zeros(len(spans.begin) + 1, dtype=np.int64), first < after
    np.add.at(change, first[some], 1)
    np.add.at(change, after[some], -1)
    touched: NDArray[np.bool_] = np.cumsum(change)[:-1] > 0
    return touched


def _unclear(of: Seen, spans: _Spans, steps: Floats) -> NDArray[np.bool_]:
    """Stretches of several steps in which another prompt came: where its parts lie cannot be told."""
    sent = np.sort(of.sent)
    came = np.searchsorted(sent, spans.end, side="left") - np.searchsorted(sent, spans.begin, side="right")
    unclear: NDArray[np.bool_] = spans.alone & (steps > 1) & (came > 0)
    return unclear


class _Work(NamedTuple):
    steps: Floats
    tokens: Floats
    contexts: Floats
    pairs: Floats


def _spans(of: Seen, near: float) -> _Spans:
    """Gaps of the requests that serve as the clock, and the stretches before them, in order of time."""
    pieces: list[tuple[Floats, Floats, bool, bool, Floats]] = []
    order = np.argsort(of.first, kind="stable")
    at, clock, position = -np.inf, -1, 0
    while True:
        while position < len(order) and of.first[order[position]] <= at + near:
            candidate = int(order[position])
            if clock < 0 or of.last[candidate] > of.last[clock]:
                clock = candidate
            position += 1
        if clock >= 0 and of.last[clock] > at + near:
            begin = int(np.searchsorted(of.stamps[clock], at - near))
            ticks = of.stamps[clock][begin:]
            pieces.append((ticks[:-1], ticks[1:], False, False, of.tokens[clock][begin + 1 :]))
            at = float(of.last[clock])
        elif position < len(order):
            sent, first = float(of.sent[order[position]]), float(of.first[order[position]])
            pieces.append((np.array([max(sent, at)]), np.array([first]), True, sent >= at, np.ones(1)))
            at = first
        else:
            break
    return _Spans(
        begin=np.concatenate([begin for begin, *_ in pieces]),
        end=np.concatenate([end for _, end, *_ in pieces]),
        alone=np.concatenate([np.full(len(begin), alone) for begin, _, alone, *_ in pieces]),
        front=np.concatenate([np.full(len(begin), front) for begin, _, _, front, _ in pieces]),
        steps=np.concatenate([steps for *_, steps in pieces]),
    )


def _add_prompts(
    of: Seen, spans: _Spans, work: _Work, budget_tokens: int, near: float
) -> list[tuple[float, float]]:
    """Lay the parts of all prompts into the steps. Returns the spans in which they do not tell the work:

    of prompts that found no step, and of those whose hits are not known (a preempted request's return).
    """
    room = np.where(spans.alone, np.inf, np.maximum(budget_tokens * spans.steps - work.tokens, 0.0))
    in_stretch = np.zeros(len(room))
    lost = []
    for row in np.argsort(of.first, kind="stable"):
        last = int(np.searchsorted(spans.end, of.first[row] - near))
        if last == len(room) or spans.begin[last] > of.first[row] + near:
            lost.append((float(of.sent[row]), float(of.first[row])))
            continue
        first = min(int(np.searchsorted(spans.begin, of.sent[row] - near)), last)
        first = max(first, last - MOST_STEPS_OF_A_PROMPT)
        done = float(np.nan_to_num(of.cached[row]))
        place = slice(first, last + 1)
        parts = _parts(room[place], spans.end[place] - spans.begin[place], max(of.prompt[row] - done, 1.0))
        if np.isnan(of.cached[row]):
            lost.append((float(spans.begin[first + np.flatnonzero(parts)[0]]), float(of.first[row])))
        room[place] -= parts
        in_stretch[place] += np.where(spans.alone[place], parts, 0.0)
        _compute(work, place, done, parts, budget_tokens)
    work.steps[:] = np.where(spans.alone, np.maximum(np.ceil(in_stretch / budget_tokens), 1.0), spans.steps)
    return lost


def _parts(room: Floats, seconds: Floats, new: float) -> Floats:
    """A prompt's tokens by step, of the steps from its sending to its first token.

    The last step takes what the others leave, even beyond its room: its end is certain, the rest is told
    from the budget.
    """
    takes = np.minimum(np.maximum(room, 0.0), new)
    if takes[:-1].sum() >= new:
        takes = _waited(takes, seconds, new)
    parts: Floats = np.diff(np.minimum(np.cumsum(takes), new), prepend=0.0)
    parts[-1] += new - parts.sum()
    return parts


def _waited(takes: Floats, seconds: Floats, new: float) -> Floats:
    """Where the parts of a prompt lie that would have been done before it was: it has waited somewhere.

    For a seat: then it began as late as it could. Or in the middle, for blocks: then its parts are the steps
    that took long, and the late ones did not.
    """
    backwards = np.cumsum(takes[::-1])
    late = np.arange(len(takes)) >= len(takes) - 1 - int(np.searchsorted(backwards, new))
    order = np.append(len(takes) - 1, np.argsort(-seconds[:-1] * (takes[:-1] > 0), kind="stable"))
    long = np.zeros(len(takes), dtype=bool)
    long[order[: int(np.searchsorted(np.cumsum(takes[order]), new)) + 1]] = True
    chosen = late if seconds[late].sum() > LATE_SHARE * seconds[long].sum() else long
    found: Floats = np.where(chosen, takes, 0.0)
    return found


def _compute(work: _Work, place: slice, done: float, parts: Floats, budget_tokens: int) -> None:
    """A prompt's parts, whose first `done` tokens are there; each in steps of the budget and a last one."""
    before = done + np.cumsum(parts) - parts
    whole = np.floor(parts / budget_tokens)
    rest = np.where(parts > whole * budget_tokens, before + parts, 0.0)
    work.tokens[place] += parts
    work.contexts[place] += whole * before + budget_tokens * whole * (whole + 1) / 2 + rest
    work.pairs[place] += parts * before + parts * (parts + 1) / 2
