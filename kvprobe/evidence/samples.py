"""One reading of one series.

A metric that a server does not export has no samples; that it was looked for and not found is a
`Fact` named `metric_not_exported`. A reading that failed is a sample whose value is null.
"""

from __future__ import annotations

import msgspec


class Sample(msgspec.Struct, kw_only=True):
    """A row of `samples.parquet`: `t_ns metric labels value`.

    `t_ns` is CLOCK_MONOTONIC; for a scrape it is the instant half-way between request and
    response. `metric` is a canonical name (kvprobe.observe.dialects), `labels` a small dict of
    strings (stored as a JSON object with sorted keys).
    """

    t_ns: int
    metric: str
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    value: float | None = None
