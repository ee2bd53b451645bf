"""How much of the ceiling could be reached in the order and the overlap in which prompts were sent.

A prefix is in the cache only after the first request that carries it was computed. Requests of the
same prefix that were sent meanwhile cannot hit, and nobody is to blame.
"""

from __future__ import annotations

from collections import defaultdict

from kvprobe.diagnose.view import View


def reachable(view: View) -> float:
    """The ceiling as sent, less what came before its prefix had been computed."""
    ceiling = view.summary.metrics.prefix_hit_rate.ceiling or 0.0
    first_ready: dict[str, int] = {}
    repeats = early = 0
    groups = defaultdict(list)
    for record in view.ok:
        if record.prefix_id is not None and record.sent_ns is not None:
            groups[record.prefix_id].append(record)
    for prefix, rows in groups.items():
        ready = [r.first_token_ns for r in rows if r.first_token_ns is not None]
        if not ready:
            continue
        first_ready[prefix] = min(ready)
        repeats += len(rows) - 1
        early += sum(1 for r in rows[1:] if (r.sent_ns or 0) < first_ready[prefix])
    return ceiling * (1.0 - early / repeats) if repeats else ceiling
