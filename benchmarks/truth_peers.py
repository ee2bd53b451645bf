"""Other load generators against the truth server, each in an environment of its own.

They are asked for the same thing: so many streams, each one request after the other, 32 tokens. Their
own figures per request (TTFT) are compared with the server's stamps of the same requests; what they do
not tell per request (the instant of each chunk) stays empty. Their CPU is that of the command and all
its processes, start-up included.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOKENIZER = "TRUTH_TOKENIZER"
"""Variable that names a folder with a Hugging Face tokenizer, for peers that cannot do without one."""


@dataclass(frozen=True)
class PeerResult:
    """What a peer says of its requests: TTFT in ms, and gaps in ms where it tells them."""

    version: str
    ttft_ms: list[float]
    gaps_ms: list[float]
    failed: int
    cpu_s: float


@dataclass(frozen=True)
class Peer:
    """`folder` is a virtual environment that holds it."""

    name: str
    folder: Path
    run: Callable[[Path, str, int, int, Path, float], PeerResult]


def version_of(folder: Path, package: str) -> str:
    """As its own environment has it."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([str(folder / "bin" / "python"), "-c", code], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def timed(
    command: list[str], timeout_s: float, folder: Path, log: Path, env: dict[str, str] | None = None
) -> float:
    """Run it; CPU seconds of it and of every child that it waited for. Raises when it fails or lasts too
    long (`timeout` ends its whole process group)."""
    env = {**os.environ, "HOME": str(folder), "HF_DATASETS_CACHE": str(folder), **(env or {})}
    with log.open("wb") as out:
        bounded = ["timeout", "-k", "5", f"{max(timeout_s, 1):.0f}", *command]
        process = subprocess.Popen(bounded, cwd=folder, stdout=out, stderr=out, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode in (124, 137):
        raise RuntimeError(f"{Path(command[0]).name} was not done after {timeout_s:.0f} s")
    if process.returncode:
        raise RuntimeError(f"{Path(command[0]).name}: code {process.returncode}: {log.read_text()[-400:]}")
    return usage.ru_utime + usage.ru_stime


def guidellm(venv: Path, url: str, streams: int, rounds: int, folder: Path, timeout_s: float) -> PeerResult:
    """guidellm's `run` with the `concurrent` profile on a file of prompts."""
    data, out, count = folder / "prompts.jsonl", folder / "guidellm.json", streams * rounds
    line = json.dumps({"prompt": "word " * 32, "output_tokens_count": 32})
    data.write_text(f"{line}\n" * count)
    command = [str(venv / "bin" / "guidellm"), "run", "--disable-console-interactive"]
    command += ["--backend", f"kind=openai_http,target={url},model=truth,request_format=/v1/chat/completions"]
    command += ["--profile", f"kind=concurrent,streams={streams}", "--data", f"kind=json_file,path={data}"]
    command += ["--constraint", f"kind=max_requests,count={count}", "--output", f"kind=json,path={out}"]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    cpu_s = timed(command, timeout_s, folder, folder / "guidellm.log", offline)
    (found,) = json.loads(out.read_text())["benchmarks"]
    rows = found["requests"]["successful"]
    return PeerResult(
        version_of(venv, "guidellm"),
        [row["time_to_first_token_ms"] for row in rows],
        [],
        len(found["requests"]["errored"]),
        cpu_s,
    )


def aiperf(venv: Path, url: str, streams: int, rounds: int, folder: Path, timeout_s: float) -> PeerResult:
    """aiperf's `profile`; prompts by the tokenizer of `TRUTH_TOKENIZER`: its built-in one would have to be
    downloaded."""
    tokenizer = os.environ.get(TOKENIZER)
    if not tokenizer:
        raise RuntimeError(f"{TOKENIZER} does not name a folder with a tokenizer, which aiperf needs")
    out = folder / "aiperf"
    command = [
        str(venv / "bin" / "aiperf"),
        "profile",
        "-m",
        "truth",
        "--url",
        url,
        "--endpoint-type",
        "chat",
    ]
    command += ["--streaming", "--concurrency", str(streams), "--request-count", str(streams * rounds)]
    command += [
        "--isl",
        "32",
        "--osl",
        "32",
        "--tokenizer",
        tokenizer,
        "--ui",
        "none",
    ]
    command += ["--output-artifact-dir", str(out), "--extra-inputs", "ignore_eos:true"]
    # Told to be offline, this version looks for a name in its cache and never for a folder.
    cpu_s = timed(command, timeout_s, folder, folder / "aiperf.log")
    rows = [
        json.loads(x) for path in out.rglob("profile_export.jsonl") for x in path.read_text().splitlines()
    ]
    done = [row["metrics"] for row in rows if row.get("error") is None]
    gaps = [g for metrics in done for g in _values(metrics.get("inter_chunk_latency"))]
    ttft = [v for metrics in done for v in _values(metrics.get("time_to_first_token"))]
    return PeerResult(version_of(venv, "aiperf"), ttft, gaps, len(rows) - len(done), cpu_s)


def _values(metric: Any) -> list[float]:
    """A value or a list of values with its unit, in ms."""
    if not isinstance(metric, dict):
        return []
    scale = {"ms": 1.0, "s": 1e3, "us": 1e-3, "ns": 1e-6}.get(str(metric.get("unit")), 1.0)
    value = metric.get("value")
    found = value if isinstance(value, list) else [value]
    return [v * scale for v in found if isinstance(v, int | float)]


def peers_in(folder: Path | None) -> list[Peer]:
    """The peers whose command stands in one of the environments below `folder`."""
    if folder is None:
        return []
    found = []
    for name, run in (("guidellm", guidellm), ("aiperf", aiperf)):
        for venv in sorted(p for p in folder.iterdir() if (p / "bin" / name).exists()):
            found.append(Peer(name, venv, run))
            break
    return found
