"""One target: its page, the looks at it, and what is shown."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit, urlunsplit

from kvprobe.errors import Problem, TargetError
from kvprobe.observe.metrics import MetricsClient, Scrape, ScrapeFailure
from kvprobe.run.target import guard, page_url, without_query
from kvprobe.watch.figures import engines, figures
from kvprobe.watch.model import Failure, Reading, TargetView
from kvprobe.watch.window import SPAN_S, Window
from kvprobe.watch.words import reading

HISTORY = 240
"""KV readings that the sparkline can show."""


def page_address(text: str) -> str:
    """The page of a server: `http://127.0.0.1:8000` (or `.../v1`) is looked at under /metrics. Raises
    `UsageError` for what is no URL."""
    parts = urlsplit(page_url(text))
    bare = parts.path.rstrip("/") in ("", "/v1")
    return urlunsplit(parts._replace(path="/metrics")) if bare else urlunsplit(parts)


def check(url: str, *, own_target: bool) -> None:
    """Raises `TargetError` for another machine without the user's word, for addresses at which clouds hand
    out credentials, and for a name that nobody knows."""
    try:
        guard(url, own_target=own_target)
    except TargetError as error:
        if error.problems[0].code != "guard" or "--i-own-this-target" not in (error.problems[0].fix or ""):
            raise
        host = urlsplit(url).hostname
        message = f"`{host}` is not this machine, and nobody said that you may read its metrics"
        raise TargetError(Problem("guard", message, "add --i-own-this-target if you may")) from error


def is_local(url: str) -> bool:
    """Does the page belong to a server of this machine, whose GPUs are the ones here?"""
    try:
        guard(url, own_target=False)
    except TargetError:
        return False
    return True


class WatchedTarget:
    """Looks are made in any thread (`look`), taken in by one (`take`)."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        insecure: bool = False,
        interval_s: float,
        unchecked: Callable[[str], None] | None = None,
    ) -> None:
        """`unchecked` is what has to pass before the first look, for a name that could not be resolved."""
        self.url = url
        self.shown = without_query(url)
        self.history: deque[tuple[float, float]] = deque(maxlen=HISTORY)
        """(seconds, KV use) for the sparkline."""
        self._client = MetricsClient(url, headers, insecure=insecure)
        self._unchecked = unchecked
        self._window = Window(max(SPAN_S, 3 * interval_s))
        self._failure: ScrapeFailure | None = None
        self._gone_since_ns: int | None = None

    def look(self) -> Scrape:
        """One scrape, buckets included."""
        if self._unchecked is not None:
            try:
                self._unchecked(self.url)
            except TargetError as error:
                failure = ScrapeFailure("unreachable", error.problems[0].message)
                return Scrape(time.monotonic_ns(), 0.0, failure=failure)
            self._unchecked = None
        return self._client.scrape(buckets=True)

    def take(self, scrape: Scrape) -> None:
        """Take in the outcome of a look."""
        self._failure = scrape.failure
        if scrape.page is None:
            self._gone_since_ns = self._gone_since_ns or scrape.t_ns
            return
        self._gone_since_ns = None
        self._window.add(scrape.t_ns, scrape.page)
        usage = scrape.page.look("engine.kv_usage_ratio")
        if isinstance(usage, float) and 0 <= usage <= 1.1:
            self.history.append((scrape.t_ns / 1e9, usage))

    def view(self) -> TargetView:
        """What is known now."""
        page = self._window.last
        reached = self._failure is None and page is not None
        numbers = figures(self._window, reached=reached)
        several = engines(page if reached else None)
        return TargetView(
            url=self.shown,
            reachable=reached,
            failure=Failure(kind=self._failure.kind, text=self._failure.text) if self._failure else None,
            engine=page.engine if page else None,
            engine_version=page.version if page else None,
            engine_version_range=page.version_range if page else None,
            looks=len(self._window),
            window_s=self._window.span_s,
            restarted_s_ago=self._window.restarted_s_ago(),
            numbers=numbers,
            engines=several,
            doubts=dict(page.doubts) if reached and page else {},
            reading=reading(self._window, numbers, several) if reached else self._gone(),
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _gone(self) -> Reading:
        why = self._failure.text if self._failure else "not asked yet"
        if self._gone_since_ns is None or not len(self._window):
            return Reading(id="unreachable", text=why)
        seconds = (time.monotonic_ns() - self._gone_since_ns) / 1e9
        return Reading(id="unreachable", text=f"gone for {seconds:.0f} s: {why}")
