"""The clients that client_truth.py runs, each once at one number of streams, judged against the server."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from truth_peers import Peer
from truth_rig import ROOT, TOKENS, Child, call, start_worker
from truth_table import Client, Run, gaps_ms, quantile

from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.spool import SpoolContent, read_spool
from kvprobe.load.job import Command

BODY = {
    "model": "truth",
    "messages": [{"role": "user", "content": "word " * 32}],
    "max_tokens": TOKENS,
    "stream": True,
    "stream_options": {"include_usage": True},
}


@dataclass(frozen=True)
class Seen:
    """What a client of ours saw. `cpu_s` is (in all, up to the start signal) of each process."""

    name: str
    streams: int
    processes: int
    requests: list[Client]
    failed: int
    cpu_s: list[tuple[float, float]]
    lag_ms: float | None = None


def run_ours(url: str, streams: int, processes: int, rounds: int, folder: Path) -> Run:
    """The real load worker processes, a closed loop of `streams` users."""
    call(url + "/truth/reset", post=True)
    spools = [folder / f"{streams}-{processes}-{i}-{time.monotonic_ns()}.jsonl" for i in range(processes)]
    children = [start_worker(url, streams, rounds, index, spools) for index in range(processes)]
    for child in children:
        event = json.loads(child.hear())
        if event["event"] != "ready":
            raise RuntimeError(f"the worker did not start: {event}")
        child.note_start()
    go = msgspec.json.encode(Command(command="go", t0_ns=time.monotonic_ns() + 100_000_000))
    for child in children:
        child.say(go)
    for child in children:
        child.hear_until(b'"finished"')
    cpu_s = [(child.cpu_at_end_s(), child.start_cpu_s) for child in children]
    return judge(_seen(streams, processes, [read_spool(spool) for spool in spools], cpu_s), url)


def _seen(
    streams: int, processes: int, contents: list[SpoolContent], cpu_s: list[tuple[float, float]]
) -> Seen:
    records = [r for content in contents for r in content.records]
    lags = [s.value * 1e3 for c in contents for s in c.samples if s.metric == "client.loop_lag_s" and s.value]
    done = [r for r in records if r.failure is None]
    clients = [Client(r.server_request_id or "", r.sent_ns or 0, stamps_of(r)) for r in done]
    lag_ms = quantile(lags, 0.99) if lags else None
    return Seen("kvprobe", streams, processes, clients, len(records) - len(done), cpu_s, lag_ms)


def stamps_of(record: RequestRecord) -> list[int]:
    """The content chunks' instants, from the first token and the gaps."""
    stamps = [record.first_token_ns or 0]
    for gap in record.gaps_ns:
        stamps.append(stamps[-1] + gap)
    return stamps


def run_aiohttp(url: str, streams: int, rounds: int) -> Run:
    """The reference, in a process of its own."""
    call(url + "/truth/reset", post=True)
    options = {"url": url + "/v1/chat/completions", "streams": streams, "rounds": rounds, "body": BODY}
    child = Child([sys.executable, str(ROOT / "benchmarks" / "bare_aiohttp.py"), json.dumps(options)])
    if child.hear().strip() != b"ready":
        raise RuntimeError("the aiohttp client did not start")
    child.note_start()
    child.say(b"go")
    rows = json.loads(child.hear())
    cpu_s = [(child.cpu_at_end_s(), child.start_cpu_s)]
    return judge(Seen("aiohttp", streams, 1, [Client(**row) for row in rows], 0, cpu_s), url)


def run_peer(peer: Peer, url: str, streams: int, rounds: int, folder: Path, timeout_s: float) -> Run:
    """Another load generator: its own figures against the server's stamps of the same time."""
    call(url + "/truth/reset", post=True)
    work = folder / f"{peer.name}-{streams}-{time.monotonic_ns()}"
    work.mkdir()
    load = os.getloadavg()[0]
    said = peer.run(peer.folder, url, streams, rounds, work, timeout_s)
    rows = [r for r in call(url + "/truth?rows=1")["rows"] if not r["aborted"] and r["writes_ns"]]
    if not said.ttft_ms or not rows:
        raise RuntimeError(f"{len(said.ttft_ms)} requests in its result, {len(rows)} at the server")
    true_ttft, true_gaps = true_ttft_ms(rows), gaps_ms([r["writes_ns"] for r in rows])
    return Run(
        client=f"{peer.name} {said.version}",
        streams=streams,
        processes=0,
        requests=len(said.ttft_ms),
        failed=said.failed,
        ttft_p50_ms=quantile(said.ttft_ms, 0.5),
        ttft_p50_true_ms=quantile(true_ttft, 0.5),
        ttft_p99_ms=quantile(said.ttft_ms, 0.99),
        ttft_p99_true_ms=quantile(true_ttft, 0.99),
        ttft_late_p99_ms=None,
        gap_p50_ms=quantile(said.gaps_ms, 0.5) if said.gaps_ms else None,
        gap_p50_true_ms=quantile(true_gaps, 0.5),
        gap_p99_ms=quantile(said.gaps_ms, 0.99) if said.gaps_ms else None,
        gap_p99_true_ms=quantile(true_gaps, 0.99),
        chunk_late_p99_ms=None,
        cpu_ms_per_request=said.cpu_s * 1e3 / len(said.ttft_ms),
        cpu_ms_per_request_without_start=None,
        loop_lag_p99_ms=None,
        load_average=load,
    )


def true_ttft_ms(rows: list[dict[str, Any]]) -> list[float]:
    """By the server's stamps: from the request's receipt to the write of the first chunk."""
    return [(row["writes_ns"][0] - row["received_ns"]) / 1e6 for row in rows]


def judge(seen: Seen, url: str) -> Run:
    """Match by id and compare. "Late" is per chunk: the client's stamp minus the server's."""
    truth = {row["id"]: row for row in call(url + "/truth?rows=1")["rows"]}
    pairs = [(c, truth[c.id]) for c in seen.requests if c.id in truth and c.token_ns]
    if not pairs or len(pairs) != len(seen.requests):
        unknown = len(seen.requests) - len(pairs)
        raise RuntimeError(f"{unknown} of {len(seen.requests)} requests are unknown to the server")
    ttft = [(c.token_ns[0] - c.sent_ns) / 1e6 for c, _ in pairs]
    true_ttft = true_ttft_ms([t for _, t in pairs])
    late = [(a - b) / 1e6 for c, t in pairs for a, b in zip(c.token_ns, t["writes_ns"], strict=True)]
    total_s, start_s = sum(t for t, _ in seen.cpu_s), sum(s for _, s in seen.cpu_s)
    gaps, true_gaps = gaps_ms([c.token_ns for c, _ in pairs]), gaps_ms([t["writes_ns"] for _, t in pairs])
    return Run(
        client=seen.name,
        streams=seen.streams,
        processes=seen.processes,
        requests=len(pairs),
        failed=seen.failed,
        ttft_p50_ms=quantile(ttft, 0.5),
        ttft_p50_true_ms=quantile(true_ttft, 0.5),
        ttft_p99_ms=quantile(ttft, 0.99),
        ttft_p99_true_ms=quantile(true_ttft, 0.99),
        ttft_late_p99_ms=quantile([a - b for a, b in zip(ttft, true_ttft, strict=True)], 0.99),
        gap_p50_ms=quantile(gaps, 0.5),
        gap_p50_true_ms=quantile(true_gaps, 0.5),
        gap_p99_ms=quantile(gaps, 0.99),
        gap_p99_true_ms=quantile(true_gaps, 0.99),
        chunk_late_p99_ms=quantile(late, 0.99),
        cpu_ms_per_request=total_s * 1e3 / len(pairs),
        cpu_ms_per_request_without_start=(total_s - start_s) * 1e3 / len(pairs),
        loop_lag_p99_ms=seen.lag_ms,
        load_average=os.getloadavg()[0],
    )
