"""A pseudo-terminal with `kvprobe watch` in it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

PATIENCE_S = 60.0


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "kvprobe", "watch", *argv]


class Terminal:
    """A pseudo-terminal with `kvprobe watch` in it."""

    def __init__(self, *argv: str, environment: dict[str, str] | None = None) -> None:
        self.seen = ""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 110, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._process = subprocess.Popen(
            command(*argv, "--interval", "200ms"),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**kept, "TERM": "xterm-256color", **(environment or {})},
            start_new_session=True,
        )
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:  # the test failed before its end
            self._process.kill()
            self._process.wait()
        os.close(self._master)

    def until(self, *texts: str) -> str:
        """Read until the screen was painted with all of `texts`; what was read since the last call."""
        begin, deadline = len(self.seen), time.monotonic() + PATIENCE_S
        while not all(text in self.seen[begin:] for text in texts):
            if time.monotonic() > deadline or not self._read():
                raise AssertionError(f"{texts!r} not in {self.seen[begin:]!r}")
        return self.seen[begin:]

    def end(self, number: int = signal.SIGINT) -> int:
        self._process.send_signal(number)
        while self._read():
            pass
        return self._process.wait(PATIENCE_S)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], PATIENCE_S)
        try:
            data = os.read(self._master, 65536) if ready else b""
        except OSError:  # the other end is closed
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)
