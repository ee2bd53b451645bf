"""Fetching a /metrics page. Whatever goes wrong comes back as a typed failure, never as an exception."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import httpx

from kvprobe.observe.dialects import Page, read_page

MAX_PAGE_BYTES = 8 * 1024 * 1024
DEFAULT_TIMEOUT_S = 2.0

FailureKind = Literal["unreachable", "timeout", "status", "too_large", "not_prometheus", "unknown_engine"]

_NOT_METRICS = ("text/html", "application/json", "text/event-stream")


@dataclass(frozen=True, slots=True)
class ScrapeFailure:
    """Why there is no page. `text` is one sentence without secrets and without the page's text."""

    kind: FailureKind
    text: str


@dataclass(frozen=True, slots=True)
class Scrape:
    """One attempt. `t_ns` is CLOCK_MONOTONIC half-way between request and end of response;
    exactly one of `page` and `failure` is set."""

    t_ns: int
    duration_s: float
    page: Page | None = None
    failure: ScrapeFailure | None = None


class _Refused(Exception):
    def __init__(self, kind: FailureKind, text: str) -> None:
        super().__init__(text)
        self.failure = ScrapeFailure(kind, text)


class MetricsClient:
    """Scrapes one URL over one connection. Thread-safe as httpx.Client is; `close` it.

    `timeout_s` bounds the whole scrape: connect, each read, and their sum (a read that is under way
    when the time is up may add one more `timeout_s`).
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        insecure: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._client = httpx.Client(
            # Compression would spend the server's and our CPU beside the load.
            headers={"accept": "text/plain;version=0.0.4", "accept-encoding": "identity", **(headers or {})},
            timeout=timeout_s,
            verify=url.startswith("https:") and not insecure,
            follow_redirects=False,
            # A proxy of the environment has no business between us and our own machine.
            trust_env=not _is_loopback(url),
            limits=httpx.Limits(max_connections=2, max_keepalive_connections=1),
        )

    def scrape(self, *, buckets: bool = True) -> Scrape:
        """Fetch and read the page once."""
        begin = time.monotonic_ns()
        page, failure = None, None
        try:
            text = self._fetch()
        except _Refused as exc:
            failure = exc.failure
        except httpx.TimeoutException:
            failure = ScrapeFailure("timeout", f"no page within {self._timeout_s:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as exc:
            failure = ScrapeFailure("unreachable", f"cannot fetch the page: {type(exc).__name__}: {exc}")
        end = time.monotonic_ns()
        if failure is None:
            page = read_page(text, buckets=buckets)
            if page.engine is None:
                page, failure = None, _explain(text)
        return Scrape((begin + end) // 2, (end - begin) / 1e9, page, failure)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _fetch(self) -> str:
        deadline = time.monotonic() + self._timeout_s
        body = bytearray()
        with self._client.stream("GET", self.url) as response:
            if response.status_code != httpx.codes.OK:
                raise _Refused("status", f"the metrics URL answers with status {response.status_code}")
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind in _NOT_METRICS:
                raise _Refused("not_prometheus", f"the metrics URL answers with {kind}, not with metrics")
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_PAGE_BYTES:
                    raise _Refused("too_large", f"the page is larger than {MAX_PAGE_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise _Refused("timeout", f"no complete page within {self._timeout_s:g} s")
        return body.decode("utf-8", "replace")


def _explain(text: str) -> ScrapeFailure:
    """Why a page that was fetched names no engine that is known."""
    if "# TYPE " in text or "# HELP " in text:
        return ScrapeFailure("unknown_engine", "the page is Prometheus text, but of no engine that is known")
    return ScrapeFailure("not_prometheus", "the answer is no Prometheus text")


def _is_loopback(url: str) -> bool:
    try:
        host = httpx.URL(url).host
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except (httpx.InvalidURL, ValueError):
        return False
