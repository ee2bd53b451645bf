"""Between two runs on one server: wait until it has done with the requests of the one before."""

from __future__ import annotations

import logging
import time

from kvprobe.errors import KvprobeError
from kvprobe.observe.metrics import MetricsClient
from kvprobe.run import target as targets
from kvprobe.run.options import RunOptions
from kvprobe.run.progress import Progress

log = logging.getLogger("kvprobe.run")

SETTLE_S = 15.0
POLL_S = 0.2
_BUSY = ("engine.requests_running", "engine.requests_waiting")


def settle(options: RunOptions, base_url: str | None, progress: Progress) -> None:
    """Returns when nothing runs or waits at the server, when it does not say, or after a bound.

    A server that others use is never idle: the runs' own validity checks tell that, not this.
    """
    url = _metrics_url(options, base_url)
    if url is None:
        return
    client = MetricsClient(url, insecure=options.insecure)
    deadline = time.monotonic() + SETTLE_S
    told = False
    try:
        while time.monotonic() < deadline:
            page = client.scrape(buckets=False).page
            busy = None if page is None else [v for name, _, v in page.readings if name in _BUSY]
            if not busy or not any(busy):
                return
            if not told:
                progress.say("waiting until the server has done with the run before ...")
                told = True
            time.sleep(POLL_S)
        log.warning("the server was not idle after %g s: the next run begins beside its work", SETTLE_S)
    finally:
        client.close()


def _metrics_url(options: RunOptions, base_url: str | None) -> str | None:
    try:
        if options.metrics_url is not None:
            return targets.page_url(options.metrics_url)
        base = base_url or (targets.normalise_url(options.target) if options.target is not None else None)
    except KvprobeError:
        return None  # the run itself refuses it, with the reason
    return f"{base}/metrics" if base is not None else None
