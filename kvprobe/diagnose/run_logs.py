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
    return LogView(
        events=[e for e in read.events if _counts(e, borders)],
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


def _counts(event: Event, borders: dict[str, int]) -> bool:
    border = borders.get(event.source)
    return border is None or event.line > border or event.name in _TIMELESS
