"""Who takes part in server_speed.py: servers asked over HTTP, and transformers behind a pipe."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).parent
OUTPUT_TOKENS = 64
START_SECONDS = 240
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
