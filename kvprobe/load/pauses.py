"""How long a user holds still after a request that failed, besides its think time."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime

from kvprobe.evidence.records import RequestRecord

RETRY_AFTER_WAIT = "client.retry_after_wait_s"
"""Sample: seconds that one user waited because the server asked for it."""
MAX_RETRY_AFTER_S = 300.0
FD_PAUSE_S = 0.25
"""Without descriptors a connection fails at once: a closed loop would try thousands of times a second."""
_SAID = re.compile(r"Retry-After: ([^;]{1,64});")
_SECONDS = re.compile(r"[0-9]{1,9}\Z")


def pause_after(record: RequestRecord, *, obey: bool) -> float | None:
    """Seconds; null to go on at once. `obey` is the workload's `obey_retry_after`."""
    if record.failure == "client_fd":
        return FD_PAUSE_S
    if record.failure == "throttled" and obey:
        return retry_after_s(record.failure_detail or "", time.time())
    return None


def retry_after_s(detail: str, now_s: float) -> float | None:
    """Of `Retry-After: 3; ...` or a date (RFC 9110, 10.2.3); at most `MAX_RETRY_AFTER_S`. Null where the
    server named no time, or none that can be read."""
    found = _SAID.match(detail)
    if found is None:
        return None
    said = found[1].strip()
    if _SECONDS.match(said):
        return min(float(said), MAX_RETRY_AFTER_S)
    try:
        wait_s = parsedate_to_datetime(said).timestamp() - now_s
    except (ValueError, OverflowError):
        return None
    return min(max(wait_s, 0.0), MAX_RETRY_AFTER_S)
