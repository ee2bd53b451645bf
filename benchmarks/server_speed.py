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
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).parent
PROMPT_TOKENS, OUTPUT_TOKENS = 65, 64
START_SECONDS = 900
VLLM_CACHE_GIB = 1


class Contestant(Protocol):
    name: str

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

    def metric(self, name: str) -> float:
        """A sample of /metrics, summed over labels; 0 where there is none."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

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
        command += ["--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "16", "--enforce-eager"]
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


def measure(found: list[Contestant], options: argparse.Namespace) -> dict[tuple[str, int], list[float]]:
    """Tokens a second, by contestant and number of streams, a figure a round."""
    vocabulary = json.loads((options.model / "config.json").read_text())["vocab_size"]
    speeds: dict[tuple[str, int], list[float]] = {}
    for one in found:
        one.generate(prompts(max(options.streams), 0, vocabulary))  # warm
    for turn in range(1, options.rounds + 1):
        for streams in options.streams:
            for one in found:
                seconds = one.generate(prompts(streams, 1000 * turn + streams, vocabulary))
                speeds.setdefault((one.name, streams), []).append(streams * OUTPUT_TOKENS / seconds)
                print(f"round {turn}, {streams} streams, {one.name}: {speeds[one.name, streams][-1]:.1f}/s")
    return speeds


def report(
    speeds: dict[tuple[str, int], list[float]], found: list[Contestant], options: argparse.Namespace
) -> str:
    rows = []
    for one in found:
        cells = [one.name]
        for streams in options.streams:
            own = speeds[one.name, streams]
            times = max(speeds[found[0].name, streams]) / max(own)
            beside = "" if one is found[0] else f"; ours is {times:.1f}x"
            cells.append(f"{max(own):.1f} (median {statistics.median(own):.1f}{beside})")
        rows.append("| " + " | ".join(cells) + " |")
    head = "| output tokens/s | " + " | ".join(f"{n} streams" for n in options.streams) + " |"
    load = os.getloadavg()[0]
    return "\n".join(
        (
            f"{PROMPT_TOKENS} tokens in, {OUTPUT_TOKENS} out, greedy, fp32, {options.threads} thread(s), best of "
            f"{options.rounds} rounds; {platform.machine()}, {os.cpu_count()} cores, load average {load:.1f} at the "
            "end (1.0 is this benchmark's own).",
            "",
            head,
            "|" + " --- |" * (len(options.streams) + 1),
            *rows,
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
        ours = found[0]
        assert isinstance(ours, HttpServer)
        text = report(measure(found, options), found, options)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
