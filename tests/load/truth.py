"""Starts the known-truth server of benchmarks/ for a test."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "truth_server.py"


class TruthServer:
    """A running server and what it wrote down."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process = process
        self.url = url

    def rows(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(self.url + "/truth?rows=1", timeout=10) as response:
            return json.load(response)["rows"]


@contextlib.contextmanager
def truth_server(*switches: str) -> Iterator[TruthServer]:
    command = [sys.executable, str(SCRIPT), "--max-seconds", "100", *switches]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield TruthServer(process, json.loads(process.stdout.readline())["url"])
        finally:
            process.kill()
