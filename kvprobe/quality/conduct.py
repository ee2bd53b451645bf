"""One comparison from start to end: two servers, the questions, once more under pressure, a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from kvprobe.errors import Problem, UsageError
from kvprobe.load.calibration import calibrate
from kvprobe.load.job import Calibration
from kvprobe.load.prompts import PromptSource
from kvprobe.observe.metrics import MetricsClient
from kvprobe.quality import items as questions
from kvprobe.quality.asking import Given, Side, ask_all
from kvprobe.quality.build import diagnose, one_pass
from kvprobe.quality.dataset import read_dataset
from kvprobe.quality.divergence import Divergence, divergence
from kvprobe.quality.items import Item
from kvprobe.quality.model import Pass, Quality, Server
from kvprobe.quality.pressure import FILLERS, FULL_RATIO, Pressure
from kvprobe.quality.verdict import judge
from kvprobe.run import target as targets
from kvprobe.run.embedded import EmbeddedServer, require_server_extra

NOISE_ITEMS = 24
"""Questions asked a second time of the baseline."""
DEFAULT_CONTEXT_TOKENS = 2_048
RESERVE_TOKENS = 160
"""Of the context: template, question and answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the command line asked for. Either two addresses, or two formats of the reference server."""

    baseline: str | None = None
    candidate: str | None = None
    formats: tuple[str, str] | None = None
    server_args: tuple[str, ...] = ()
    candidate_args: tuple[str, ...] = ()
    model: str | None = None
    dataset: Path | None = None
    items: int = 50
    context_tokens: int | None = None
    pool_pressure: bool = False
    at_once: int = 4
    seed: int = 1
    margin: float = 0.1
    api_key_env: str | None = None
    insecure: bool = False
    own_target: bool = False
    endpoint: str = "chat"
    scratch: Path = field(default_factory=lambda: Path("."))


@dataclass(slots=True)
class _Ready:
    """A side that answers, with what is known of it."""

    side: Side
    server: Server
    calibration: Calibration
    metrics_url: str
    headers: dict[str, str]
    max_model_len_tokens: int | None
    pool_tokens: float | None
    insecure: bool


def compare_quality(question: Question, say: Callable[[str], None]) -> Quality:
    """Raises `KvprobeError` for whatever is wrong before the first question."""
    with ExitStack() as stack:
        a, b = _sides(question, stack, say)
        chosen = _items(question, a, b)
        passes = [_ask(chosen, a, b, question, say, pressure=False)]
        again = ask_all(a.side, chosen[:: max(1, len(chosen) // NOISE_ITEMS)], at_once=question.at_once)
        noise = divergence(_every(passes[0][1], chosen), again)
        warnings = _warnings(question, a, b)
        if question.pool_pressure:
            found, told = _under_pressure(chosen, a, b, question, say)
            passes += [found] if found is not None else []
            warnings += told
        return _document(question, chosen, [p for p, _ in passes], noise, a.server, b.server, warnings)


def _every(given: Sequence[Given], chosen: Sequence[Item]) -> Sequence[Given]:
    return given[:: max(1, len(chosen) // NOISE_ITEMS)]


def _document(
    question: Question,
    chosen: Sequence[Item],
    passes: list[Pass],
    noise: Divergence,
    baseline: Server,
    candidate: Server,
    warnings: list[str],
) -> Quality:
    verdict, summary = judge(passes, noise, question.margin)
    certain = verdict == "loss" and "McNemar" in summary
    return Quality(
        baseline=baseline,
        candidate=candidate,
        items=len(chosen),
        dataset=str(question.dataset) if question.dataset is not None else None,
        seed=question.seed,
        margin=question.margin,
        verdict=verdict,
        summary=summary,
        passes=passes,
        noise=noise,
        warnings=warnings,
        diagnosis=diagnose(verdict, summary, baseline, candidate, certain),
    )


# -- the two sides ---------------------------------------------------------------------------------


def _sides(question: Question, stack: ExitStack, say: Callable[[str], None]) -> tuple[_Ready, _Ready]:
    if question.formats is not None:
        require_server_extra()
        urls: list[str] = []
        extra = ((), question.candidate_args)
        for name, more in zip(question.formats, extra, strict=True):
            say(f"starting the reference server with --kv-dtype {name} ...")
            args = (*question.server_args, "--kv-dtype", name, *more)
            folder = question.scratch / f"server-{len(urls)}"
            server = EmbeddedServer(args, folder)
            stack.callback(server.stop)
            urls.append(server.start())
    else:
        urls = [targets.normalise_url(u) for u in (question.baseline or "", question.candidate or "")]
        for url in urls:
            targets.guard(url, own_target=question.own_target)
    if urls[0] == urls[1]:
        message = "baseline and candidate are the same address"
        raise UsageError(Problem("conflict", message, "name two servers, or use --kv-dtype A,B"))
    a, b = (
        _ready(name, url, question, stack) for name, url in zip(("baseline", "candidate"), urls, strict=True)
    )
    return a, b


def _ready(name: str, url: str, question: Question, stack: ExitStack) -> _Ready:
    key = targets.api_key(question.api_key_env)
    client: httpx.Client = stack.enter_context(targets.control_client(key, insecure=question.insecure))
    target = targets.preflight(client, url, question.model if question.formats is None else None)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    server, pool = _described(url, target.model, headers, insecure=question.insecure)
    return _Ready(
        side=Side(name, url, target.model, client, endpoint=question.endpoint),
        server=server,
        calibration=calibrate(url, target.model, question.endpoint, key, client, PromptSource.vocabulary),
        metrics_url=f"{url}/metrics",
        headers=headers,
        max_model_len_tokens=target.max_model_len_tokens,
        pool_tokens=pool,
        insecure=question.insecure,
    )


def _described(
    url: str, model: str, headers: dict[str, str], *, insecure: bool
) -> tuple[Server, float | None]:
    """Engine, KV format and pool as the metrics page tells them."""
    client = MetricsClient(f"{url}/metrics", headers, insecure=insecure)
    try:
        page = client.scrape(buckets=False).page
    finally:
        client.close()
    server = Server(url=url, model=model)
    if page is None:
        return server, None
    config = page.cache_config or {}
    server.engine, server.engine_version = page.engine, page.version
    stated = config.get("cache_dtype")
    server.kv_dtype = stated if stated and stated != "auto" else None
    readings = {name: value for name, labels, value in page.readings if not labels}
    server.kv_bytes_per_token = readings.get("engine.kv_bytes_per_token")
    blocks, size = config.get("num_gpu_blocks", ""), config.get("block_size", "")
    return server, float(int(blocks) * int(size)) if blocks.isdigit() and size.isdigit() else None


# -- the questions ---------------------------------------------------------------------------------


def _items(question: Question, a: _Ready, b: _Ready) -> list[Item]:
    if question.dataset is not None:
        return read_dataset(question.dataset, question.items)
    limits = [r.max_model_len_tokens for r in (a, b) if r.max_model_len_tokens is not None]
    wanted = question.context_tokens or min(DEFAULT_CONTEXT_TOKENS, *limits, DEFAULT_CONTEXT_TOKENS)
    if limits and wanted > min(limits):
        message = f"a context of {wanted:,} tokens is above the servers' limit of {min(limits):,}"
        raise UsageError(Problem("too_long", message, "ask for a shorter one with --context"))
    per_word = max(r.calibration.default_word_tokens for r in (a, b)) + 1 / questions.WORDS_PER_SENTENCE
    words = max(8, int((wanted - RESERVE_TOKENS) / per_word))
    return list(questions.built_in(question.items, question.seed, words))


def _ask(
    chosen: list[Item],
    a: _Ready,
    b: _Ready,
    question: Question,
    say: Callable[[str], None],
    *,
    pressure: bool,
) -> tuple[Pass, list[Given]]:
    answers = []
    usage = {}
    for ready in (a, b):
        with _held(ready, pressure=pressure) as held:
            told = _counted(say, ready.side.name, len(chosen))
            answers.append(ask_all(ready.side, chosen, at_once=question.at_once, done=told))
            if held is not None:
                usage[ready.side.name] = held.seen.summary()
    found = one_pass(chosen, answers[0], answers[1], pressure=pressure)
    found.kv_usage = usage
    return found, answers[0]


def _counted(say: Callable[[str], None], name: str, total: int) -> Callable[[int], None]:
    def told(done: int) -> None:
        if done % 10 == 0 or done == total:
            say(f"{name}: {done} of {total} questions")

    return told


@contextmanager
def _held(ready: _Ready, *, pressure: bool) -> Iterator[Pressure | None]:
    """The pool of one side held nearly full, where that is asked for."""
    if not pressure or ready.pool_tokens is None:
        yield None
        return
    most = ready.max_model_len_tokens or ready.pool_tokens
    with Pressure(
        ready.side.base_url,
        ready.side.model,
        ready.metrics_url,
        ready.headers,
        filler_tokens=int(min(ready.pool_tokens / FILLERS, 0.8 * most)),
        word_tokens=ready.calibration.default_word_tokens,
        insecure=ready.insecure,
    ) as held:
        yield held


def _under_pressure(
    chosen: list[Item], a: _Ready, b: _Ready, question: Question, say: Callable[[str], None]
) -> tuple[tuple[Pass, list[Given]] | None, list[str]]:
    for ready in (a, b):
        if ready.pool_tokens is None:
            text = f"no pass under pressure: {ready.side.name} does not say how large its pool is"
            return None, [text]
    say("once more with the pools held nearly full ...")
    found = _ask(chosen, a, b, question, say, pressure=True)
    told = []
    for name, seen in found[0].kv_usage.items():
        middle = seen["median"]
        if middle is None or middle < FULL_RATIO:
            reached = f"{middle:.0%}" if middle is not None else "not known"
            told.append(f"the pool of {name} was not held at {FULL_RATIO:.0%}: the median was {reached}")
    return found, told


def _warnings(question: Question, a: _Ready, b: _Ready) -> list[str]:
    out = []
    if urlsplit(a.server.url).scheme and a.server.model != b.server.model:
        out.append(
            f"the models have two names, {a.server.model} and {b.server.model}: are they the same weights?"
        )
    if not (a.side.logprobs and b.side.logprobs):
        out.append("no log probabilities: damage that changes no answer cannot be seen")
    if None in (a.server.kv_dtype, b.server.kv_dtype):
        out.append("a server does not tell its KV format: a loss can then only be suspected to come from it")
    return out
