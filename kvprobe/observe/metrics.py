"""Fetching a /metrics page. Whatever goes wrong comes back as a typed failure, never as an exception."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.request import getproxies

import httpx

from kvprobe.checked_transport import CheckedTransport
from kvprobe.observe.dialects import NO_METRICS, Page, read_page
from kvprobe.observe.slots import read_slots, read_version

MAX_PAGE_BYTES = 8 * 1024 * 1024
DEFAULT_TIMEOUT_S = 2.0

FailureKind = Literal["unreachable", "timeout", "status", "too_large", "not_prometheus", "unknown_engine"]

_PROXIES = ("http", "https", "all")
_NOT_METRICS = {
    "text/html": "",
    "application/json": " (trtllm-serve has its page at /prometheus/metrics, with return_perf_metrics)",
    "text/event-stream": "",
}


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
    def __init__(self, kind: FailureKind, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.failure = ScrapeFailure(kind, text)
        self.status = status


_SWITCHES = {
    404: "no such page (SGLang has one only with --enable-metrics, LMDeploy not with --disable-metrics, "
    "transformers serve never)",
    501: "it is switched off (llama.cpp has one only with --metrics)",
    401: "the page wants a key",
    403: "the page wants a key",
    **dict.fromkeys((301, 302, 303, 307, 308), "it redirects, which is not followed: name the final address"),
}


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
        self._beside: dict[str, bool] = {}
        self._llama_version: str | None = None
        self._explained: str | None = None
        bounds = httpx.Limits(max_connections=2, max_keepalive_connections=1)
        # A proxy of the environment has no business between us and our own machine. Where one is used, it
        # is the proxy that looks the host up.
        proxied = not _is_loopback(url) and not getproxies().keys().isdisjoint(_PROXIES)
        self._client = httpx.Client(
            # Compression would spend the server's and our CPU beside the load.
            headers={"accept": "text/plain;version=0.0.4", "accept-encoding": "identity", **(headers or {})},
            timeout=timeout_s,
            verify=url.startswith("https:") and not insecure,
            follow_redirects=False,
            trust_env=proxied,
            limits=bounds,
            transport=None if proxied else CheckedTransport(insecure=insecure, limits=bounds),
        )

    def scrape(self, *, buckets: bool = True) -> Scrape:
        """Fetch and read the page once."""
        begin = time.monotonic_ns()
        page, failure = None, None
        try:
            text = self._fetch()
        except _Refused as exc:
            failure = self._in_words(exc)
        except httpx.TimeoutException:
            failure = ScrapeFailure("timeout", f"no page within {self._timeout_s:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as exc:
            failure = ScrapeFailure("unreachable", f"cannot fetch the page: {type(exc).__name__}: {exc}")
        end = time.monotonic_ns()
        if failure is None:
            page = read_page(text, buckets=buckets)
            if page.engine is None:
                page, failure = None, _explain(text)
            elif page.engine == "llama.cpp":
                self._add_slots(page)
        return Scrape((begin + end) // 2, (end - begin) / 1e9, page, failure)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _in_words(self, refused: _Refused) -> ScrapeFailure:
        """A refusal by status, with what it means; the engines that export nothing are asked who they are,
        once."""
        failure, status = refused.failure, refused.status
        if failure.kind != "status" or status not in _SWITCHES:
            return failure
        if self._explained is None:
            said = self._beside_page("/") if status == 404 else None
            ollama = said is not None and said.startswith(b"Ollama is running")
            self._explained = NO_METRICS["ollama"] if ollama else _SWITCHES[status]
        return ScrapeFailure(failure.kind, f"{failure.text}: {self._explained}")

    def _add_slots(self, page: Page) -> None:
        """llama.cpp tells in /slots and /props what its page leaves out."""
        if self._llama_version is None and (props := self._beside_page("/props")) is not None:
            self._llama_version = read_version(props) or ""
        page.version = page.version or self._llama_version or None
        slots = self._beside_page("/slots")
        for metric, labels, value in read_slots(slots) if slots is not None else ():
            page.readings.append((metric, labels, value))
            page.names[metric] = "GET /slots"

    def _beside_page(self, path: str) -> bytes | None:
        """Another page of the same server, null when it is refused; one that was refused is not asked
        for again."""
        base = self.url.partition("?")[0]
        if not base.endswith("/metrics") or not self._beside.get(path, True):
            return None
        try:
            return self._body(base.removesuffix("/metrics") + path, {}, None)
        except _Refused as refused:
            # A server that is busy answers 503 and may not a moment later; these do not change.
            self._beside[path] = refused.status not in (401, 403, 404, 501)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError):
            # It stalled or broke off: the next scrape tries again, and says what the main page says.
            return None
        return None

    def _fetch(self) -> str:
        return self._body(self.url, _NOT_METRICS, "the metrics URL").decode("utf-8", "replace")

    def _body(self, url: str, refused_types: Mapping[str, str], what: str | None) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        body = bytearray()
        with self._client.stream("GET", url) as response:
            if response.status_code != httpx.codes.OK:
                text = f"{what} answers with status {response.status_code}"
                raise _Refused("status", text, response.status_code)
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind in refused_types:
                text = f"{what} answers with {kind}, not with metrics{refused_types[kind]}"
                raise _Refused("not_prometheus", text)
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_PAGE_BYTES:
                    raise _Refused("too_large", f"the page is larger than {MAX_PAGE_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise _Refused("timeout", f"no complete page within {self._timeout_s:g} s")
        return bytes(body)


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
