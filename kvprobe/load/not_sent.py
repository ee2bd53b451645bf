"""Keys of a workload that say nothing of what a target receives: how it is named, served or judged.

They stay out of a workload's content hash, and two runs that differ in nothing else did the same work.
"""

from __future__ import annotations

NOT_SENT = frozenset(
    {
        "name",
        "description",
        "sampling",
        "server_args",
        "thresholds",
        "abort",
        "slo",
        "limits",
        "budget",
        "breaker",
        "sweep",
    }
)
