"""Did the server keep up with an open loop's schedule? A page must not read as healthy where it did not.

No cause of the list is shown by an overload alone, so the diagnosis stays `healthy_baseline`; it says so
as a warning of the measurement, and whoever reads the first line of a report has to see that too.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvprobe.diagnose.causes import HEALTHY
from kvprobe.diagnose.model import Diagnosis

FELL_BEHIND = "the server does not keep up"
"""How that warning begins (`diagnose.steadiness.overloaded`)."""


BEHIND = "did not keep up"
"""In a table, of a run that is no step of a sweep."""


def fell_behind(warnings: Sequence[object]) -> str | None:
    """The warning that says so, with its numbers; null where the server kept up, or nobody can tell."""
    return next((str(text) for text in warnings if str(text).startswith(FELL_BEHIND)), None)


def behind(diagnosis: Diagnosis) -> str | None:
    """The same of a diagnosis that names no cause: one that does has a better first line."""
    if diagnosis.primary != HEALTHY or diagnosis.validity is None or not diagnosis.validity.valid:
        return None
    return fell_behind(diagnosis.validity.warnings)


def words_of_run(primary: str, warnings: Sequence[object], verdict: str | None) -> list[str]:
    """What a table of runs says of one, in ids: how it kept up, then its cause. `verdict` is that of its
    step, in a sweep."""
    said = verdict or (BEHIND if fell_behind(warnings) else None)
    return [said, *([primary] if primary != HEALTHY else [])] if said else [primary]
