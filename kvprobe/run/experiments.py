"""The small experiments of `--investigate`: each asks the server one question that the load left open.

They run one after the other on the server of the run, once its load is over, so that nobody else is in
the way. Every request counts against a stated budget; an experiment that no longer fits is not begun.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from kvprobe.load.filler import Filler
from kvprobe.observe.metrics import MetricsClient
from kvprobe.run.options import Prepared

MOST_REQUESTS: Final = 24
MOST_TOKENS: Final = 48_000
MOST_S: Final = 30.0
BURST: Final = 12
BURST_PROMPT_TOKENS: Final = 64
BURST_ANSWER_TOKENS: Final = 48
REPEAT_BLOCKS: Final = 6
"""A repeated prompt is longer than so many blocks: enough to tell a hit from the last block's loss."""
LEAST_REPEAT_TOKENS: Final = 192
REST_S: Final = 1.0
LOOK_EVERY_S: Final = 0.1
_LINE_BYTES: Final = 1 << 20
_SEEN: Final = (
    "engine.requests_running",
    "engine.requests_waiting",
    "engine.kv_usage_ratio",
    "engine.kv_blocks_used",
    "engine.prefix_hits_tokens_total",
    "engine.preemptions_total",
)

Result = dict[str, Any]


@dataclass(slots=True)
class Budget:
    """What is left of it; `take` says whether a request of so many tokens still fits."""

    requests: int = MOST_REQUESTS
    tokens: int = MOST_TOKENS
    until_s: float = field(default_factory=lambda: time.monotonic() + MOST_S)

    def take(self, requests: int, tokens: int) -> bool:
        if requests > self.requests or tokens > self.tokens or time.monotonic() >= self.until_s:
            return False
        self.requests -= requests
        self.tokens -= tokens
        return True

    @property
    def left_s(self) -> float:
        return max(self.until_s - time.monotonic(), 0.1)


@dataclass(slots=True)
class Answer:
    """One request as the experimenter saw it; null where it did not happen."""

    ttft_s: float | None = None
    total_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    failure: str | None = None


class Bench:
    """The server under experiment: asks it, looks at its page."""

    def __init__(self, prepared: Prepared, client: httpx.Client, metrics: MetricsClient) -> None:
        self._prepared = prepared
        self._client = client
        self._metrics = metrics
        self._filler = Filler(prepared.calibration)
        self._token = secrets.token_bytes(8)
        self.budget = Budget()

    def text(self, name: str, tokens: int) -> str:
        """A text of about so many tokens, of this run and this name alone."""
        return self._filler.fill(self._token + name.encode(), tokens)[0].strip()

    def look(self) -> dict[str, float]:
        """The page's canonical readings that experiments are read from; empty when there is none."""
        page = self._metrics.scrape(buckets=False).page
        if page is None:
            return {}
        return {name: value for name, labels, value in page.readings if name in _SEEN and not labels}

    def ask(self, text: str, answer_tokens: int) -> Answer:
        """Send one prompt and read its stream; never raises for what the server does."""
        prepared = self._prepared
        chat = prepared.workload.endpoint == "chat"
        path = "/v1/chat/completions" if chat else "/v1/completions"
        body: dict[str, Any] = {
            "model": prepared.target.model,
            "max_tokens": answer_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        if prepared.workload.output.ignore_eos:
            body["ignore_eos"] = True
        answer, sent = Answer(), time.monotonic()
        try:
            with self._client.stream(
                "POST", prepared.target.base_url + path, json=body, timeout=self.budget.left_s
            ) as response:
                if response.status_code != 200:
                    answer.failure = f"status {response.status_code}"
                    return answer
                self._read(response, answer, sent)
        except httpx.HTTPError as error:
            answer.failure = type(error).__name__
        return answer

    def _read(self, response: httpx.Response, answer: Answer, sent: float) -> None:
        for line in response.iter_lines():
            if not line.startswith("data:") or len(line) > _LINE_BYTES:
                continue
            data = line[5:].strip()
            if data == "[DONE]":
                break
            try:
                chunk = json.loads(data)
            except ValueError:
                answer.failure = "a chunk that is no JSON"
                return
            _take(chunk, answer, sent)
        answer.total_s = time.monotonic() - sent


def _take(chunk: Any, answer: Answer, sent: float) -> None:
    if not isinstance(chunk, dict):
        return
    if chunk.get("error") is not None:
        answer.failure = "an error in the stream"
    for choice in chunk.get("choices") or []:
        delta = choice.get("delta") or choice if isinstance(choice, dict) else {}
        if answer.ttft_s is None and any(delta.get(k) for k in ("content", "text", "reasoning_content")):
            answer.ttft_s = time.monotonic() - sent
    usage = chunk.get("usage")
    if isinstance(usage, dict):
        prompt, details = usage.get("prompt_tokens"), usage.get("prompt_tokens_details")
        answer.prompt_tokens = prompt if type(prompt) is int else None
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        answer.cached_tokens = cached if type(cached) is int else None


# -- the experiments ------------------------------------------------------------------------------


def at_rest(bench: Bench, **_: Any) -> Result | None:
    """What is held with nobody there: a look, a pause, another look."""
    first = bench.look()
    time.sleep(REST_S)
    last = bench.look()
    return {"first": first, "last": last, "pause_s": REST_S} if last else None


def repeat(bench: Bench, *, block: int, limit: int, **_: Any) -> Result | None:
    """The same prompt twice, byte for byte, with nobody else there."""
    tokens = min(max(REPEAT_BLOCKS * block, LEAST_REPEAT_TOKENS), limit - 8)
    if tokens <= block or not bench.budget.take(2, 2 * tokens):
        return None
    text = bench.text("repeat", tokens)
    return _pair(bench, text, text, shared=None, block=block)


def aligned(bench: Bench, *, block: int, limit: int, **_: Any) -> Result | None:
    """Two prompts that share a long prefix, many blocks of it, and differ after it."""
    shared = min(max(REPEAT_BLOCKS * block, LEAST_REPEAT_TOKENS), limit - 80)
    if shared <= block or not bench.budget.take(2, 2 * (shared + 64)):
        return None
    prefix = bench.text("aligned", shared)
    first, second = (f"{prefix} {bench.text(name, 48)}" for name in ("left", "right"))
    return _pair(bench, first, second, shared=shared, block=block)


def _pair(bench: Bench, first: str, second: str, *, shared: int | None, block: int) -> Result | None:
    """Sent one after the other; hits of the second by usage, else by the counter's growth."""
    cold = bench.ask(first, 2)
    before = bench.look().get("engine.prefix_hits_tokens_total")
    warm = bench.ask(second, 2)
    after = bench.look().get("engine.prefix_hits_tokens_total")
    if cold.failure or warm.failure or not warm.prompt_tokens:
        return None
    hits: float | None = warm.cached_tokens
    if not hits and before is not None and after is not None:
        hits = after - before
    expected = (min(shared or warm.prompt_tokens, warm.prompt_tokens - 1)) // block * block
    return {
        "prompt_tokens": warm.prompt_tokens,
        "hit_tokens": hits,
        "expected_tokens": expected,
        "ttft_cold_s": cold.ttft_s,
        "ttft_warm_s": warm.ttft_s,
    }


def long_alone(bench: Bench, *, longest: int, limit: int, **_: Any) -> Result | None:
    """One sequence as long as the load's longest, with nobody else there."""
    tokens = min(longest, limit - 16)
    if tokens < 2 or not bench.budget.take(1, tokens):
        return None
    text = bench.text("alone", tokens)
    answer, looks = _watched(bench, lambda: [bench.ask(text, 8)])
    if answer[0].failure or answer[0].prompt_tokens is None:
        return {"failure": answer[0].failure or "no usage", "asked_tokens": tokens}
    return {
        "prompt_tokens": answer[0].prompt_tokens,
        "ttft_s": answer[0].ttft_s,
        "kv_usage_max": _most(looks, "engine.kv_usage_ratio"),
        "waiting_max": _most(looks, "engine.requests_waiting"),
    }


def burst(bench: Bench, *, limit: int, **_: Any) -> Result | None:
    """Many short requests at one instant: what do they wait for, if they wait?"""
    if limit < BURST_PROMPT_TOKENS + BURST_ANSWER_TOKENS + 8:
        return None
    if not bench.budget.take(BURST, BURST * (BURST_PROMPT_TOKENS + BURST_ANSWER_TOKENS)):
        return None
    texts = [bench.text(f"burst {n}", BURST_PROMPT_TOKENS) for n in range(BURST)]

    def all_at_once() -> list[Answer]:
        with ThreadPoolExecutor(BURST) as pool:
            return list(pool.map(lambda text: bench.ask(text, BURST_ANSWER_TOKENS), texts))

    answers, looks = _watched(bench, all_at_once)
    queued = [look for look in looks if look.get("engine.requests_waiting", 0.0) > 0]
    return {
        "requests": BURST,
        "failed": sum(1 for a in answers if a.failure),
        "looks": len(looks),
        "looks_with_queue": len(queued),
        "running_max": _most(looks, "engine.requests_running"),
        "running_with_queue": sorted({look.get("engine.requests_running", 0.0) for look in queued}),
        "waiting_max": _most(looks, "engine.requests_waiting"),
        "kv_usage_max": _most(looks, "engine.kv_usage_ratio"),
    }


def _watched(bench: Bench, work: Callable[[], list[Answer]]) -> tuple[list[Answer], list[dict[str, float]]]:
    """The work, and the page as it looked meanwhile."""
    looks: list[dict[str, float]] = []
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        while not done.done():
            if look := bench.look():
                looks.append(look)
            time.sleep(LOOK_EVERY_S)
        return done.result(), looks


def _most(looks: list[dict[str, float]], name: str) -> float | None:
    return max((look[name] for look in looks if name in look), default=None)
