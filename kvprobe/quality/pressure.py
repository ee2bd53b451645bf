"""Holding a pool nearly full while questions are asked: some damage comes out only then."""

from __future__ import annotations

import itertools
import math
import statistics
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

import httpx

from kvprobe.checked_transport import CheckedTransport
from kvprobe.doctor.prefix_probe import prompt
from kvprobe.observe.dialects import Page
from kvprobe.observe.metrics import MetricsClient

FULL_RATIO = 0.95
FILLERS = 8
"""The pool is held by so many requests, so that the room that is left comes and goes in small pieces."""
PROMPT_SHARE = 0.3
"""Of a filler: the rest it generates, which is what holds its blocks for a while."""
POLL_S = 0.1
REACH_S = 40.0
"""To fill the pool before the first question."""
FILLER_TIMEOUT_S = 600.0
MAX_AT_ONCE = 24
"""More would only queue, and the questions behind them."""


def usage_of(page: Page) -> float | None:
    """Use of the pool, 0 to 1; null where it is not exported."""
    values = [value for name, _, value in page.readings if name == "engine.kv_usage_ratio" and value == value]
    return values[-1] if values else None


@dataclass(slots=True)
class Seen:
    """Readings of the pool's use while questions were asked."""

    values: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float | None]:
        if not self.values:
            return {"min": None, "median": None, "max": None}
        middle = statistics.median(self.values)
        return {"min": min(self.values), "median": middle, "max": max(self.values)}


class Pressure:
    """A context: fills the pool of one server and keeps it filled until it is left."""

    def __init__(
        self,
        base_url: str,
        model: str,
        metrics_url: str,
        headers: Mapping[str, str],
        *,
        filler_tokens: int,
        word_tokens: float,
        insecure: bool,
    ) -> None:
        self._url, self._model = base_url, model
        self._words = max(8, int(filler_tokens * PROMPT_SHARE / word_tokens))
        self._output_tokens = max(8, int(filler_tokens * (1 - PROMPT_SHARE)))
        self._metrics = MetricsClient(metrics_url, dict(headers), insecure=insecure)
        self._client = httpx.Client(
            headers=dict(headers),
            timeout=FILLER_TIMEOUT_S,
            transport=CheckedTransport(insecure=insecure),
            trust_env=False,
        )
        self._over = threading.Event()
        self._full = threading.Event()
        self._running = 0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._started = 0
        self.seen = Seen()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Pressure:
        self._keeper.start()
        self._full.wait(REACH_S)
        self.seen.values.clear()  # only what held while questions were asked counts
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._keeper.join()
        self._client.close()  # ends the streams that are under way
        for thread in self._threads:
            thread.join(10.0)
        self._metrics.close()

    def _keep(self) -> None:
        while not self._over.wait(POLL_S):
            scrape = self._metrics.scrape(buckets=False)
            usage = usage_of(scrape.page) if scrape.page is not None else None
            if usage is None:
                continue
            self.seen.values.append(usage)
            if usage >= FULL_RATIO:
                self._full.set()
            else:
                self._top_up(FULL_RATIO - usage)

    def _top_up(self, missing: float) -> None:
        """So many fillers as the missing share of the pool holds, at their full length, and one more:
        those that run have most of their length still before them."""
        for _ in range(math.ceil(missing * FILLERS) + 1):
            if self._running < MAX_AT_ONCE:
                self._start_filler()

    def _start_filler(self) -> None:
        with self._lock:
            self._running += 1
            self._started += 1
        thread = threading.Thread(target=self._fill, args=(self._started,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _fill(self, number: int) -> None:
        """One request after the other, so that a fast server is held as a slow one is."""
        try:
            for turn in itertools.count():
                if self._over.is_set():
                    return
                self._fill_once(number + turn * MAX_AT_ONCE)
        except (httpx.HTTPError, httpx.StreamError, RuntimeError):
            self._over.wait(1.0)  # refused, or closed at the end: the keeper starts another where it must
        finally:
            with self._lock:
                self._running -= 1

    def _fill_once(self, number: int) -> None:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt(time.time_ns() + number, self._words)}],
            "max_tokens": self._output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        with self._client.stream("POST", f"{self._url}/v1/chat/completions", json=body) as response:
            for _ in response.iter_raw():
                if self._over.is_set():
                    return
