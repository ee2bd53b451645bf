"""A live server, looked at a few times: the rules over a run's samples, without a run.

What the readings show over those seconds (how full, who waits, how counters grew) is judged by the same
rules as a run; those that need requests of ours have nothing to say here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvprobe.diagnose.rules.logs.base import LogCandidate
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.rundata import RunData
from kvprobe.evidence.samples import Sample

if TYPE_CHECKING:
    from kvprobe.diagnose.log_view import LogView
    from kvprobe.observe.dialects import Page

MIN_LOOKS = 3


def live_candidates(looks: Sequence[tuple[int, Page]], source: str, log: LogView) -> list[LogCandidate]:
    """Causes that these looks (CLOCK_MONOTONIC ns, page) support, in the form of the log's rules."""
    known = [(t, page) for t, page in looks if page.engine is not None]
    if len(known) < MIN_LOOKS:
        return []
    from kvprobe.diagnose.rules import fragmented, pool, queue_limit, reserved
    from kvprobe.diagnose.view import View
    from kvprobe.summary.build import summarise

    run = as_run(known, source)
    view = View(run, summarise(run), log)
    rules = (reserved.reserved_unused, fragmented.fragmented, queue_limit.queue_limit, pool.kv_pool)
    found = [c for rule in rules for c in rule(view).candidates]
    return [
        LogCandidate(finding=c.finding, fatal=c.fatal, root=c.root, phase="serve", excludes=c.excludes)
        for c in found
    ]


def as_run(looks: Sequence[tuple[int, Page]], source: str) -> RunData:
    """The looks as the samples of a run without requests, its load from the first to the last."""
    samples = [
        Sample(t_ns=t, metric=metric, labels=labels, value=value)
        for t, page in looks
        for metric, labels, value in page.readings
    ]
    first, last = looks[0], looks[-1]
    samples.append(Sample(t_ns=first[0], metric="mark.load_start", value=1.0))
    samples.append(Sample(t_ns=last[0], metric="mark.load_end", value=1.0))
    samples += [Sample(t_ns=t, metric="scrape.ok", value=1.0) for t, _ in looks]
    facts = [
        Fact(name="engine", value={"name": last[1].engine, "version": last[1].version}, source=source),
        Fact(name="cache_config", value=last[1].cache_config or {}, source=source),
    ]
    samples.sort(key=lambda s: s.t_ns)
    return RunData(path=Path(source), status="complete", samples=samples, facts=facts)
