"""All that one call of `kvprobe replay` asks, answered in one document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kvprobe.errors import Problem, UsageError
from kvprobe.plan.simulate import compiled
from kvprobe.plan.simulate.ask import Ask, Resolved, budget_tokens, changed, resolve
from kvprobe.plan.simulate.cost import StepCost

if TYPE_CHECKING:
    from kvprobe.plan.simulate.replay import Replay, Smallest, Sweep, TraceChunks
    from kvprobe.plan.simulate.server import Server
    from kvprobe.plan.simulate.sweep import Limit

BYTES_A_ROW = 60
"""Of a trace file, at least: to guess how many rows there are before reading it."""
NO_NUMBA = (
    "numba is not installed: the simulator runs as plain Python, some ten times slower "
    "(pip install 'kvprobe[replay]')"
)


class Says(Protocol):
    def __call__(self, words: str, *, passing: bool = True) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`sweeps` are texts `name=a,b,c`, `find_pool` one such as `preempted <= 1%`."""

    ask: Ask
    trace: Path
    format: str = "auto"
    scale_time: float = 1.0
    scale_len: float = 1.0
    fit: Path | None = None
    sweeps: tuple[str, ...] = ()
    find_pool: str | None = None
    beside: Path | None = None


def answer(question: Question, progress: Callable[[int, float], None], says: Says) -> Replay:
    """Simulate. Raises UsageError for options and traces that make no sense."""
    fitted = _fitted(question)
    told = resolve(question.ask, fitted)
    sweeps = [_parse_sweep(text) for text in question.sweeps]
    limit = _limit(question.find_pool)
    variants = {
        (name, value): resolve(changed(question.ask, name, value), fitted)
        for name, values in sweeps
        for value in values
    }
    _decide(question, 1 + len(variants) + (12 if limit else 0), says)
    source = _open(question, question.trace)
    run = _Runs(source, progress)
    found = run.document(question.trace, told)
    found.sweeps = [_sweep(run, name, values, variants, says) for name, values in sweeps]
    if limit is not None:
        says("for the smallest pool")
        found.smallest = _smallest(run, limit, told)
    if question.beside is not None:
        says("the second trace")
        beside = _Runs(_open(question, question.beside), progress)
        found.beside = beside.document(question.beside, told)
    return found


def _fitted(question: Question) -> StepCost | None:
    if question.fit is None:
        return None
    if question.ask.gpu is not None:
        raise UsageError(Problem("conflict", "--fit and --gpu both give step times", "leave one of them out"))
    from kvprobe.plan.simulate.fit import fit_run

    return fit_run(question.fit, budget_tokens(question.ask))


def _decide(question: Question, passes: int, says: Says) -> None:
    """Whether to compile: a guess by the size of the file, before the kernel is imported."""
    rows = question.trace.stat().st_size // BYTES_A_ROW
    if question.beside is not None and question.beside.is_file():
        rows += question.beside.stat().st_size // BYTES_A_ROW
    many = rows * passes
    if many >= compiled.WORTH_ROWS and not compiled.available():
        says(NO_NUMBA, passing=False)
    if compiled.choose(many) and not compiled.is_cached():
        says("compiling the simulator, once: this may take a minute", passing=False)


class _Runs:
    """Simulations of one trace."""

    def __init__(self, source: TraceChunks, progress: Callable[[int, float], None]) -> None:
        self.source, self._progress = source, progress

    def server(self, told: Resolved) -> Server:
        from kvprobe.plan.simulate.replay import simulate

        try:
            return simulate(self.source, told.settings, told.cost, progress=self._progress)
        except MemoryError as error:
            blocks, seats = told.settings.usable_blocks, told.settings.max_num_seqs
            why = (
                f"a pool of {blocks:,} blocks and {seats:,} requests at once needs more memory than there is"
            )
            fix = "give a larger --block-size, a lower --max-num-seqs or a smaller pool"
            raise UsageError(Problem("too_large", why, fix)) from error

    def document(self, path: Path, told: Resolved) -> Replay:
        from kvprobe.plan.simulate.replay import document

        server = self.server(told)
        return document(server, self.source, path, told.cost, told.bytes_per_token, told.assumptions)


def _open(question: Question, path: Path) -> TraceChunks:
    from kvprobe.plan.simulate.replay import TraceChunks
    from kvprobe.traces.read import open_trace

    if not path.is_file():
        fix = "give the path of a trace file"
        raise UsageError(Problem("no_trace", f"there is no trace file {path}", fix, path=str(path)))
    return TraceChunks(
        lambda: open_trace(
            path, question.format, scale_time=question.scale_time, scale_len=question.scale_len
        )
    )


def _parse_sweep(text: str) -> tuple[str, list[str]]:
    name, equals, rest = text.partition("=")
    values = [value.strip() for value in rest.split(",") if value.strip()]
    if not equals or not values:
        raise UsageError(Problem("bad_sweep", f"--sweep: `{text[:60]}` is no sweep", "write name=a,b,c"))
    return name.strip().replace("_", "-"), values


def _limit(text: str | None) -> Limit | None:
    if text is None:
        return None
    from kvprobe.plan.simulate.sweep import parse_limit

    return parse_limit(text)


def _sweep(
    run: _Runs, name: str, values: list[str], variants: dict[tuple[str, str], Resolved], says: Says
) -> Sweep:
    from kvprobe.plan.simulate.sweep import sweep_of, sweep_row

    rows = []
    for value in values:
        says(f"{name}={value}")
        told = variants[name, value]
        server = run.server(told)
        named = run.source.block_tokens is not None
        rows.append(sweep_row(value, server, told.bytes_per_token, named=named))
    return sweep_of(name, rows)


def _smallest(run: _Runs, limit: Limit, told: Resolved) -> Smallest:
    from kvprobe.plan.simulate.settings import MAX_BLOCKS
    from kvprobe.plan.simulate.sweep import WIDEST, smallest_part, smallest_pool

    settings = told.settings

    def tried(blocks: int) -> Server:
        return run.server(replace(told, settings=replace(settings, usable_blocks=blocks)))

    least = 1 if settings.groups is None else settings.weight
    found = smallest_pool(
        limit, settings.usable_blocks, least, tried, min(settings.usable_blocks * WIDEST, MAX_BLOCKS)
    )
    return smallest_part(limit, found, settings.block_size, told.bytes_per_token)
