"""The two servers of a comparison: started or found, guarded, and described."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import httpx

from kvprobe.errors import Problem, UsageError
from kvprobe.load.calibration import calibrate
from kvprobe.load.job import Calibration
from kvprobe.load.prompts import PromptSource
from kvprobe.observe.metrics import MetricsClient
from kvprobe.quality.asking import Side
from kvprobe.quality.exchange import Exchange
from kvprobe.quality.model import Server
from kvprobe.quality.question import Question
from kvprobe.run import target as targets
from kvprobe.run.embedded import EmbeddedServer, require_server_extra


@dataclass(slots=True)
class Ready:
    """A side that answers, with what is known of it."""

    side: Side
    server: Server
    calibration: Calibration
    metrics_url: str
    headers: dict[str, str]
    max_model_len_tokens: int | None
    pool_tokens: float | None
    insecure: bool


def open_sides(question: Question, stack: ExitStack, say: Callable[[str], None]) -> tuple[Ready, Ready]:
    """Servers that were started are stopped, and connections closed, with the stack."""
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


def _ready(name: str, url: str, question: Question, stack: ExitStack) -> Ready:
    key = targets.api_key(question.api_key_env)
    client: httpx.Client = stack.enter_context(targets.control_client(key, insecure=question.insecure))
    target = targets.preflight(client, url, question.model if question.formats is None else None)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    server, pool = _described(url, target.model, headers, insecure=question.insecure)
    return Ready(
        side=Side(name, Exchange(url, target.model, client, endpoint=question.endpoint)),
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
