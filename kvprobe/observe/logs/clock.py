"""Timestamps of log lines as seconds since the epoch.

A time without a zone is read as UTC: within one log only differences count. A time without a year
(`01-02 03:04:05`, `Jan 26 17:48:20`) gives none.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache

_FULL = re.compile(
    r"(\d{4})[-/.](\d\d)[-/.](\d\d)[T ,-]{1,3}(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r" ?(?:(Z|UTC)|([+-])(\d\d):?(\d\d))?"
)
_US_STYLE = re.compile(r"(\d\d)/(\d\d)/(\d{4})-(\d\d):(\d\d):(\d\d)")
_SYSLOG_YEAR = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@lru_cache(maxsize=1024)
def epoch_s(text: str) -> float | None:
    """Seconds since the epoch, null for what is no full timestamp."""
    found = _FULL.match(text)
    try:
        if found is not None:
            return _full(found)
        if us := _US_STYLE.match(text):
            month, day, year, hour, minute, second = map(int, us.groups())
            return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
        if dated := _SYSLOG_YEAR.match(text):
            month = _MONTHS.index(dated[1]) + 1
            day, hour, minute, second, year = (int(dated[i]) for i in range(2, 7))
            return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:  # the 31st of February
        return None
    return None


def _full(found: re.Match[str]) -> float:
    year, month, day, hour, minute, second = (int(found[i]) for i in range(1, 7))
    whole = datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    fraction = float(f"0.{found[7]}") if found[7] else 0.0
    offset_s = 0
    if found[9]:
        offset_s = (int(found[10]) * 60 + int(found[11])) * 60 * (1 if found[9] == "+" else -1)
    return whole + fraction - offset_s


def epoch_of_number(value: float) -> float | None:
    """An epoch in seconds, milliseconds, microseconds or nanoseconds, by its size."""
    for factor in (1.0, 1e3, 1e6, 1e9):
        if 1e9 <= value / factor < 4e9:
            return value / factor
    return None
