"""The bundled reference server as a child process, on a free loopback port.

kvprobe meets it over HTTP like any other target. It is niced, so that on a small machine the
client that measures is scheduled before the server that computes; and it stops by itself when
this process dies, because its standard input closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvprobe import children
from kvprobe.errors import KvprobeError, Problem, TargetError, UsageError
from kvprobe.evidence.spool import storage_error
from kvprobe.run import start_failure

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
_LOG_TAIL_BYTES = 4096


class EmbeddedServer:
    """Owns one server process. `start` returns its base URL; `stop` ends it, by its pid."""

    def __init__(
        self, args: Sequence[str], log_folder: Path, hurried: Callable[[], bool] = lambda: False
    ) -> None:
        """`log_folder` keeps the log until the run directory exists (see `move_log`). `hurried`
        says whether the user has asked for the second time to stop: then nothing is waited for."""
        self.args = tuple(args)
        self._log_folder = log_folder
        self._new_folders = [path for path in (log_folder, *log_folder.parents) if not path.exists()]
        self._hurried = hurried
        self.log_path = log_folder / f".server-{os.getpid()}.log"
        self._log_kept = False
        self._process: subprocess.Popen[bytes] | None = None
        self.base_url: str | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def start(self) -> str:
        """Start and wait until it listens; raises `UsageError` when it refuses its options."""
        command = children.module_command("reference_server")
        command += ["--port", "0", "--stop-with-parent", "--nice", "5", *self.args]
        try:
            self._log_folder.mkdir(parents=True, exist_ok=True)
            log = self.log_path.open("ab")
        except OSError as error:
            raise storage_error(error, self.log_path) from error
        with log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a Ctrl-C of the terminal is ours to handle, not the server's
                env=children.environment(),
            )
        ready = self._await_ready()
        self.base_url = str(ready["url"])
        return self.base_url

    def _await_ready(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        said = b""
        while (ready := _ready_line(said)) is None:
            left = deadline - time.monotonic()
            readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, left))
            chunk = os.read(self._process.stdout.fileno(), 4096) if readable else b""
            if not chunk:
                raise self._failed_to_start(timed_out=not readable)
            said += chunk
        return ready

    def _failed_to_start(self, *, timed_out: bool) -> KvprobeError:
        tail = self.log_tail()
        if self._process is not None:
            self._end(self._process)
        if timed_out:
            message = f"the bundled server was not ready within {START_TIMEOUT_S:g} s: {tail}"
            failure: KvprobeError = TargetError(Problem("server_start", message, None))
        else:
            failure = start_failure.ended(self.log_path, tail, self.exit_code())
        self.stop()  # and the log goes with it
        return failure

    def log_tail(self) -> str:
        """The last lines of its log, for an error message."""
        try:
            data = self.log_path.read_bytes()[-_LOG_TAIL_BYTES:]
        except OSError:
            return "(no log)"
        lines = data.decode("utf-8", "replace").strip().splitlines()
        return " / ".join(lines[-4:]) or "(nothing in its log)"

    def move_log(self, path: Path) -> None:
        """Put the log into the run directory; the server goes on writing to the same file."""
        try:
            os.replace(self.log_path, path)
        except OSError as error:
            raise storage_error(error, path) from error
        self.log_path = path
        self._log_kept = True

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after a bound. Safe to call twice. A log that never found its run
        directory goes away, and the folders that were made for it."""
        if self._process is not None:
            self._end(self._process)
        if not self._log_kept:
            with contextlib.suppress(OSError):  # runs of others stand there by now
                self.log_path.unlink(missing_ok=True)
                for folder in self._new_folders:
                    folder.rmdir()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.terminate()
            if not self._ended_in_time(process):
                process.kill()
                process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _ended_in_time(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline and not self._hurried():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
                return True
        return process.poll() is not None


def _ready_line(said: bytes) -> dict[str, Any] | None:
    """The line that says where it listens; whatever else is printed is passed over."""
    for line in said.split(b"\n")[:-1]:
        with contextlib.suppress(ValueError):
            document = json.loads(line)
            if isinstance(document, dict) and isinstance(document.get("url"), str):
                return document
    return None


def require_server_extra() -> None:
    """Raise `UsageError` when the packages of the `server` extra are missing (imports none)."""
    missing = [name for name in ("torch", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(
            Problem(
                "server_extra_missing",
                f"the bundled server needs packages that are not installed: {', '.join(missing)}",
                "pip install 'kvprobe[server]', or name a running server with --target URL",
            )
        )


def split_args(text: str) -> list[str]:
    """`--serve-args` as a shell would split it."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(Problem("serve_args", f"--serve-args: {error}", "close the quotes")) from error
