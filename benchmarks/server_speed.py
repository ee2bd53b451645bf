"""Output tokens a second at 1, 8 and 16 streams: this server, vLLM, transformers' continuous batching.

    python benchmarks/server_speed.py --model DIR [--vllm VENV/bin/vllm] [--transformers VENV/bin/python]
                                      [--threads 1] [--streams 1 8 16] [--rounds 3] [--out FILE.md]

The same model, the same prompts (65 random token ids each, new ones every round), 64 tokens out, greedy,
end of sequence ignored, the same number of threads, fp32. All are started first; then they take turns,
round by round, so that a noisy machine is noisy for each. The best round counts, the median stands
beside it. This server and vLLM are asked over HTTP, streaming; transformers runs in a process of its
own without HTTP. An engine that is not given is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

HERE = Path(__file__).parent
PROMPT_TOKENS, OUTPUT_TOKENS = 65, 64
START_SECONDS = 900
VLLM_CACHE_GIB = 1


class Contestant(Protocol):
    name: str
    pid: int

    def generate(self, prompts: list[list[int]]) -> float:
        """Seconds until every prompt has its tokens."""

    def close(self) -> None: ...


class HttpServer:
    """A server with OpenAI's completions endpoint."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.name = name
        self.port = int(command[command.index("--port") + 1])
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, **environment}, start_new_session=True
            )
        self.pid = self._process.pid
        end = time.monotonic() + START_SECONDS
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{name} did not start; see {log}")
            time.sleep(0.5)
        self._model = self._get("/v1/models")["data"][0]["id"]

    def generate(self, prompts: list[list[int]]) -> float:
        threads = [threading.Thread(target=self._one, args=(prompt,)) for prompt in prompts]
        self._failures: list[str] = []
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            raise SystemExit(f"{self.name}: {self._failures[0]}")
        return time.perf_counter() - started

    def _one(self, prompt: list[int]) -> None:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": OUTPUT_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                lines = [line[6:] for line in answer if line.startswith(b"data: {")]
            count = json.loads(lines[-1])["usage"]["completion_tokens"]
            if count != OUTPUT_TOKENS:
                self._failures.append(f"{count} tokens")
        except (OSError, ValueError, LookupError) as error:
            self._failures.append(repr(error))

    def _healthy(self) -> bool:
        try:
            self._get("/health")
        except OSError:
            return False
        return True

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return json.loads(answer.read() or b"null")

    def close(self) -> None:
        # A session of its own: vLLM's engine process goes with it.
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Transformers:
    """`speed_transformers.py` in a process of its own."""

    name = "transformers (continuous batching)"

    def __init__(self, python: str, model: str, threads: int, log: Path) -> None:
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [python, str(HERE / "speed_transformers.py"), model, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **thread_variables(threads), "HF_HUB_OFFLINE": "1"},
        )
        self.pid = self._process.pid
        self._answer("ready")

    def generate(self, prompts: list[list[int]]) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": OUTPUT_TOKENS}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._answer("{"))
        if answer["tokens"] != OUTPUT_TOKENS * len(prompts):
            raise SystemExit(f"{self.name}: {answer['tokens']} tokens")
        return float(answer["seconds"])

    def _answer(self, start: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(start):
                return line
        raise SystemExit(f"{self.name} ended")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._log.close()


def thread_variables(threads: int) -> dict[str, str]:
    return {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}


def contestants(options: argparse.Namespace, stack: ExitStack) -> list[Contestant]:
    model, threads = str(options.model), options.threads
    ours = [sys.executable, "-m", "reference_server", "--model", model, "--threads", str(threads)]
    ours += ["--kv-memory", f"{VLLM_CACHE_GIB}GiB", "--max-model-len", "2048", "--port", str(free_port())]
    found: list[Contestant] = [HttpServer("kvprobe serve", ours, {}, options.logs / "ours.log")]
    stack.callback(found[-1].close)
    if options.vllm:
        command = [options.vllm, "serve", model, "--host", "127.0.0.1", "--port", str(free_port())]
        command += [
            "--dtype",
            "float32",
            "--max-model-len",
            "2048",
            "--max-num-seqs",
            "16",
            "--enforce-eager",
        ]
        environment = {
            **thread_variables(threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": str(VLLM_CACHE_GIB),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        found.append(HttpServer("vLLM", command, environment, options.logs / "vllm.log"))
        stack.callback(found[-1].close)
    if options.transformers:
        found.append(Transformers(options.transformers, model, threads, options.logs / "transformers.log"))
        stack.callback(found[-1].close)
    return found


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def prompts(streams: int, seed: int, vocabulary: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, vocabulary) for _ in range(PROMPT_TOKENS)] for _ in range(streams)]


@dataclass
class Figures:
    """Of one contestant at one number of streams, a figure a round."""

    a_second: list[float] = field(default_factory=list)
    a_cpu_second: list[float] = field(default_factory=list)


Speeds = dict[tuple[str, int], Figures]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its children so far."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(float(one.user + one.system) for one in times)


def measure(found: list[Contestant], options: argparse.Namespace) -> Speeds:
    """Each contestant's turn in each round."""
    vocabulary = json.loads((options.model / "config.json").read_text())["vocab_size"]
    speeds: Speeds = defaultdict(Figures)
    for one in found:
        one.generate(prompts(max(options.streams), 0, vocabulary))  # warm
    for turn in range(1, options.rounds + 1):
        for streams in options.streams:
            for one in found:
                tokens, before = streams * OUTPUT_TOKENS, cpu_seconds(one.pid)
                seconds = one.generate(prompts(streams, 1000 * turn + streams, vocabulary))
                own = speeds[one.name, streams]
                own.a_second.append(tokens / seconds)
                own.a_cpu_second.append(tokens / (cpu_seconds(one.pid) - before))
                figures = f"{own.a_second[-1]:.1f}/s, {own.a_cpu_second[-1]:.1f} a CPU second"
                print(f"round {turn}, {streams} streams, {one.name}: {figures}", flush=True)
    return speeds


def table(
    title: str, figures: dict[tuple[str, int], list[float]], names: list[str], streams: list[int]
) -> str:
    """Best figures, medians, and how many times as large the first contestant's best is."""
    rows = [
        f"| {title} | " + " | ".join(f"{n} streams" for n in streams) + " |",
        "|" + " --- |" * (len(streams) + 1),
    ]
    for name in names:
        cells = []
        for n in streams:
            best, middle = max(figures[name, n]), statistics.median(figures[name, n])
            times = f"; ours is {max(figures[names[0], n]) / best:.1f}x" if name != names[0] else ""
            cells.append(f"{best:.1f} (median {middle:.1f}{times})")
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def report(speeds: Speeds, found: list[Contestant], options: argparse.Namespace) -> str:
    names = [one.name for one in found]
    head = (
        f"{PROMPT_TOKENS} tokens in, {OUTPUT_TOKENS} out, greedy, fp32, {options.threads} thread(s), best of "
        f"{options.rounds} rounds; {platform.machine()}, {os.cpu_count()} cores, load average "
        f"{os.getloadavg()[0]:.1f} at the end (some 1.5 is this benchmark's own). Tokens a CPU second: by "
        "the time that a server and its children computed, whatever else the machine was doing. Every engine "
        "computes in fp32; kvprobe keeps bf16 weights as they are in memory and widens them in registers."
    )
    by_wall = {key: own.a_second for key, own in speeds.items()}
    by_cpu = {key: own.a_cpu_second for key, own in speeds.items()}
    return "\n\n".join(
        (
            "# Output tokens a second on a CPU",
            head,
            table("output tokens/s", by_wall, names, options.streams),
            table("output tokens / CPU s", by_cpu, names, options.streams),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--vllm")
    parser.add_argument("--transformers")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--logs", type=Path, default=Path("/tmp"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        found = contestants(options, stack)
        text = report(measure(found, options), found, options)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
