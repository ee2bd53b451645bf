"""The server's log beside a run: what it proves counts together with what was measured.

A bundled server's own log lies in the run directory; of a given server's log (`--log`) the run keeps
what was written while it ran, and what stood before it for its facts (sizes, settings) alone: a failure
of yesterday explains nothing today.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvprobe.diagnose.log_answer import FACT_EVENTS
from kvprobe.diagnose.log_view import LogView
from kvprobe.errors import KvprobeError
from kvprobe.evidence.events import Event
from kvprobe.evidence.rundata import RunData

SERVER_LOG: Final = "server.log"
LOGS: Final = "logs"
_TIMELESS: Final = frozenset({*FACT_EVENTS, "engine_start", "serving", "engine_version", "block_size"})
"""What a log told before the run and what still holds during it."""
_DROPPED: Final = ("cut",)
_ZONES_S: Final = 15 * 3600.0
"""Log times without a zone are read as UTC, and clocks on earth differ from it by 14 hours at most."""
_METRICS_ENGINES: Final = frozenset({"reference", "vllm", "sglang", "llama.cpp", "trtllm", "lmdeploy", "tgi"})
"""Engines that both a metrics page and a log tell for sure."""


def log_view(run: RunData, more: Sequence[str] = ()) -> LogView | None:
    """The logs of this run as the rules read them; null when there is none that can be read."""
    paths = [*_kept(run.path), *more]
    if not paths:
        return None
    from kvprobe.observe.logs.intake import read_logs

    try:
        read = read_logs(paths)
    except (KvprobeError, OSError):
        return None
    if not read.events:
        return None
    borders = _borders(run)
    alive = server_lived(run)
    events = [e for e in read.events if _counts(e, borders)]
    return LogView(
        events=_of_this_server(run, _of_this_time(run, events), read.engine),
        engine=read.engine,
        engine_version=read.engine_version,
        # The log of a server that still lives just has no end yet.
        ended={k: "excerpt" if alive and v in _DROPPED else v for k, v in read.ended.items()},
        read={"bytes": read.bytes, "lines": read.lines},
        alive=alive,
    )


def server_lived(run: RunData) -> bool:
    """The server answered until the end of the load, as far as anybody saw."""
    if any(f.name == "server_exit_code" and f.value is not None for f in run.facts):
        return False
    scrapes = [(s.t_ns, s.value) for s in run.samples if s.metric == "scrape.ok"]
    if scrapes:
        return max(scrapes)[1] == 1.0
    ended = sorted((r.end_ns, r.failure) for r in run.records if r.end_ns is not None)
    return not ended or ended[-1][1] != "connect"


def _kept(folder: Path) -> list[str]:
    paths = [folder / SERVER_LOG]
    with contextlib.suppress(OSError):  # no --log was given
        paths += sorted((folder / LOGS).iterdir())
    return [str(p) for p in paths if p.is_file() and not p.is_symlink()]


def _borders(run: RunData) -> dict[str, int]:
    """Path of a kept log -> its last line that stood there before the run."""
    found: dict[str, int] = {}
    for fact in run.facts:
        if fact.name == "log_kept" and isinstance(fact.value, dict):
            name, line = fact.value.get("file"), fact.value.get("lines_before")
            if isinstance(name, str) and type(line) is int:
                found[os.path.join(run.path, name)] = line
    return found


def _of_this_time(run: RunData, events: list[Event]) -> list[Event]:
    """Without what a log told days before or after the run: another incident. A line without a time has
    that of the line before it in its log."""
    clock, span = run.environment.get("clock"), _span_ns(run)
    shift = clock.get("utc_ns", 0) - clock.get("monotonic_ns", 0) if isinstance(clock, dict) else 0
    if not shift or span is None:
        return events
    begin_s, end_s = ((t + shift) / 1e9 for t in span)
    kept, last = [], dict[str, float]()
    for event in events:
        if event.time_s is not None:
            last[event.source] = event.time_s
        told = last.get(event.source)
        near = told is None or begin_s - _ZONES_S <= told <= end_s + _ZONES_S
        if near or event.name in _TIMELESS:
            kept.append(event)
    return kept


def _span_ns(run: RunData) -> tuple[int, int] | None:
    instants = [t for r in run.records for t in (r.intended_ns, r.end_ns) if t is not None]
    return (min(instants), max(instants)) if instants else None


def _of_this_server(run: RunData, events: list[Event], engine: str | None) -> list[Event]:
    """Without logs of another engine than the one whose metrics were read. `engine` is what all of the logs
    together look like: it stands for a log of which no line names one."""
    told = [f.value.get("name") for f in run.facts if f.name == "engine" and isinstance(f.value, dict)]
    if not told or told[-1] not in _METRICS_ENGINES:
        return events
    sources = {e.source for e in events}
    named = {s: {e.engine for e in events if e.source == s} & _METRICS_ENGINES for s in sources}
    if len(sources) == 1 and engine in _METRICS_ENGINES:
        named = {s: names | {engine} for s, names in named.items()}
    alien = {s for s, names in named.items() if names and told[-1] not in names}
    return [e for e in events if e.source not in alien]


def _counts(event: Event, borders: dict[str, int]) -> bool:
    border = borders.get(event.source)
    return border is None or event.line > border or event.name in _TIMELESS
