"""The public command as a process, and a reference server to point it at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RUN_TIMEOUT_S = 110


@dataclass
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        loaded = json.loads(self.out)
        assert isinstance(loaded, dict)
        return loaded


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "kvprobe", *argv]


def kvprobe(*argv: str, env: dict[str, str] | None = None) -> Result:
    done = subprocess.run(
        command(*argv),
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        env={**os.environ, **(env or {})},
    )
    return Result(done.returncode, done.stdout, done.stderr)


def valid_run(*argv: str) -> Result:
    """`kvprobe run`, again at most twice when it called itself INVALID (exit 4): on a machine that
    other work disturbs that is the right answer, and not what the tests that call this are about."""
    for _ in range(2):
        result = kvprobe("run", *argv)
        if result.code != 4:
            return result
    return kvprobe("run", *argv)


@dataclass
class Server:
    url: str
    process: subprocess.Popen[str]


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    """Starts reference servers on free ports and ends them by their pid."""
    servers: list[Server] = []

    def start(*args: str) -> Server:
        process = subprocess.Popen(
            [sys.executable, "-m", "reference_server", "--port", "0", "--stop-with-parent", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        server = Server(json.loads(process.stdout.readline())["url"], process)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()
        for pipe in (server.process.stdin, server.process.stdout):
            if pipe is not None:
                pipe.close()


SMALL_SHARED = (
    "--set", "prompt.prefix_tokens=512",
    "--set", "prompt.suffix_tokens=24",
    "--set", "prompt.families=22",
    "--set", "prompt.requests_per_family=3",
    "--set", "requests=66",
    "--set", "output.tokens=8",
    "--set", "warmup.requests=2",
)  # fmt: skip
"""A shared_prefix or timestamp_first run of some ten seconds that still has over twenty families."""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "runs"
