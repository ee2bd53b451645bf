"""One comparison from start to end: two servers, the questions, once more under pressure, a verdict."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from kvprobe.errors import Exit, Problem, UsageError
from kvprobe.quality import items as questions
from kvprobe.quality.asking import Numbered, ask_all, prove
from kvprobe.quality.build import diagnose, one_pass
from kvprobe.quality.dataset import Dataset, read_dataset
from kvprobe.quality.divergence import Divergence, divergence
from kvprobe.quality.given import Given
from kvprobe.quality.items import Item
from kvprobe.quality.model import Pass, Quality
from kvprobe.quality.pressure import FILLERS, Pressure
from kvprobe.quality.question import Question as Question
from kvprobe.quality.sides import Ready, open_sides
from kvprobe.quality.verdict import invalid, judge
from kvprobe.quality.warn import pressure_warnings, warnings_of

NOISE_ITEMS = 24
"""Questions asked a second time of the baseline."""
ROUND = 32
"""Questions asked of one side before the other gets them: an interrupt leaves pairs."""
DEFAULT_CONTEXT_TOKENS = 2_048
RESERVE_TOKENS = 160
"""Of the context: template, question and answer."""

Say = Callable[[str], None]
Answers = dict[int, Given]


@dataclass(slots=True)
class _Work:
    """What came so far; an interrupt leaves it as it is."""

    question: Question
    a: Ready
    b: Ready
    chosen: list[Item]
    order: list[Numbered]
    """In which the questions are asked: mixed, so that a part of them is a sample of all."""
    passes: list[Pass] = field(default_factory=list)
    noise: Divergence = field(default_factory=lambda: Divergence(n=0))
    warnings: list[str] = field(default_factory=list)
    models: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    """As the answers name them."""

    def take(self, a: Answers, b: Answers, *, pressure: bool) -> Pass | None:
        """The pass of the questions that both sides were asked; null for none."""
        numbers = sorted(a.keys() & b.keys())
        for names, answers in zip(self.models, (a, b), strict=True):
            names.update(g.model for g in answers.values() if g.model is not None)
        if not numbers:
            return None
        asked = [self.chosen[n] for n in numbers]
        found = one_pass(asked, [a[n] for n in numbers], [b[n] for n in numbers], pressure=pressure)
        self.passes.append(found)
        return found


def compare_quality(question: Question, say: Say) -> tuple[Quality, Exit]:
    """Raises `KvprobeError` for whatever is wrong before the first question. An interrupt leaves what was
    got, when both sides had answered something by then."""
    given = read_dataset(question.dataset, question.items) if question.dataset is not None else None
    with ExitStack() as stack:
        a, b = open_sides(question, stack, say)
        data = given or _built_in(question, a, b)
        order = list(enumerate(data.items))
        random.Random(question.seed).shuffle(order)
        for ready in (a, b):
            prove(ready.side, [item for _, item in order])
        work = _Work(question, a, b, data.items, order)
        try:
            _ask_everything(work, say)
            code = Exit.OK
        except KeyboardInterrupt as stop:
            if not work.passes:
                raise
            code = getattr(stop, "exit_code", Exit.SIGINT)
        found = _document(work, data, partial=code is not Exit.OK)
        is_valid = found.diagnosis.validity is None or found.diagnosis.validity.valid
        return found, code if code is not Exit.OK or is_valid else Exit.INVALID


def _document(work: _Work, data: Dataset, *, partial: bool) -> Quality:
    question, a, b = work.question, work.a.server, work.b.server
    verdict, summary = judge(work.passes, work.noise, question.margin)
    certain = verdict == "loss" and "McNemar" in summary
    reasons = invalid(work.passes)
    told = warnings_of(work.passes, work.noise, (a, b), work.models, data)
    if partial:
        last = work.passes[-1]
        when = " with the pool held nearly full" if last.pressure else ""
        told.insert(
            0,
            f"stopped by a signal: both sides were asked {_asked(last)} of {len(work.order)} questions{when}",
        )
    return Quality(
        baseline=a,
        candidate=b,
        items=len(work.chosen),
        status="partial" if partial else "complete",
        dataset=str(question.dataset) if question.dataset is not None else None,
        seed=question.seed,
        margin=question.margin,
        verdict=verdict,
        summary=summary,
        passes=work.passes,
        noise=work.noise,
        warnings=[*told, *work.warnings],
        diagnosis=diagnose(verdict, summary, a, b, certain=certain, reasons=reasons),
    )


def _asked(found: Pass) -> int:
    return found.tests[0].n + found.unpaired[0] + found.unanswered[1]


# -- the questions ---------------------------------------------------------------------------------


def _built_in(question: Question, a: Ready, b: Ready) -> Dataset:
    limits = [r.max_model_len_tokens for r in (a, b) if r.max_model_len_tokens is not None]
    wanted = question.context_tokens or min(DEFAULT_CONTEXT_TOKENS, *limits, DEFAULT_CONTEXT_TOKENS)
    if limits and wanted > min(limits):
        message = f"a context of {wanted:,} tokens is above the servers' limit of {min(limits):,}"
        raise UsageError(Problem("too_long", message, "ask for a shorter one with --context"))
    per_word = max(r.calibration.default_word_tokens for r in (a, b)) + 1 / questions.WORDS_PER_SENTENCE
    words = max(8, int((wanted - RESERVE_TOKENS) / per_word))
    return Dataset(list(questions.built_in(question.items, question.seed, words)))


def _ask_everything(work: _Work, say: Say) -> None:
    answers = _ask_in_rounds(work, say)
    step = max(1, len(work.chosen) // NOISE_ITEMS)
    again: Answers = {}
    picked = [(n, item) for n, item in enumerate(work.chosen) if n % step == 0]
    ask_all(work.a.side, picked, again, at_once=work.question.at_once)
    work.noise = divergence([answers[n] for n, _ in picked], [again[n] for n, _ in picked])
    if work.question.pool_pressure:
        _under_pressure(work, say)


def _ask_in_rounds(work: _Work, say: Say) -> Answers:
    """Both sides in turns; returns the baseline's answers. What both have answered stays on an interrupt."""
    a: Answers = {}
    b: Answers = {}
    try:
        for start in range(0, len(work.order), ROUND):
            part = work.order[start : start + ROUND]
            for ready, into in ((work.a, a), (work.b, b)):
                _ask_side(work, ready, part, into, say)
    finally:
        work.take(a, b, pressure=False)
    return a


def _ask_side(work: _Work, ready: Ready, part: Sequence[Numbered], into: Answers, say: Say) -> None:
    def told() -> None:
        if len(into) % 10 == 0 or len(into) == len(work.order):
            say(f"{ready.side.name}: {len(into)} of {len(work.order)} questions")

    ask_all(ready.side, part, into, at_once=work.question.at_once, done=told)


def _under_pressure(work: _Work, say: Say) -> None:
    """One side after the other, for each is held full by itself."""
    for ready in (work.a, work.b):
        if ready.pool_tokens is None:
            text = f"no pass under pressure: {ready.side.name} does not say how large its pool is"
            work.warnings.append(text)
            return
    say("once more with the pools held nearly full ...")
    answers: tuple[Answers, Answers] = ({}, {})
    usage = {}
    try:
        for ready, into in zip((work.a, work.b), answers, strict=True):
            with _held(ready) as held:
                _ask_side(work, ready, work.order, into, say)
                usage[ready.side.name] = held.seen.summary()
    finally:
        found = work.take(*answers, pressure=True)
    if found is not None:
        found.kv_usage = usage
        work.warnings += pressure_warnings(usage)


@contextmanager
def _held(ready: Ready) -> Iterator[Pressure]:
    """The pool of one side held nearly full."""
    pool = ready.pool_tokens or 0.0
    most = ready.max_model_len_tokens or pool
    exchange = ready.side.exchange
    with Pressure(
        exchange.base_url,
        exchange.model,
        ready.metrics_url,
        ready.headers,
        filler_tokens=int(min(pool / FILLERS, 0.8 * most)),
        word_tokens=ready.calibration.default_word_tokens,
        insecure=ready.insecure,
    ) as held:
        yield held
