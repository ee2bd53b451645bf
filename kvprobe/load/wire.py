"""What a master and its workers on other machines say to each other, over Locust's own sockets.

Locust carries messages of a type and msgpack data; nothing is ever unpickled. Ours:

- worker to master: `kvp-hello` (who it is), `kvp-event` (a `WorkerEvent`), `kvp-started` (its own
  reading of the schedule's zero), `kvp-pong`, `kvp-rows` (bytes of its spool, whole lines);
- master to worker: `kvp-job` (a `LoadJob`), `kvp-go`, `kvp-command`, `kvp-ping`, `kvp-ack` (how much
  of the spool is on the master's disk), `kvp-bye`.

Rows go with their offset in the spool file and are acknowledged once they are on the master's disk;
what is not acknowledged is sent again from there, so none is lost and none comes twice.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kvprobe.evidence.spool import JsonLineFile

HELLO, EVENT, STARTED, PONG, ROWS = "kvp-hello", "kvp-event", "kvp-started", "kvp-pong", "kvp-rows"
JOB, GO, COMMAND, PING, ACK, BYE = "kvp-job", "kvp-go", "kvp-command", "kvp-ping", "kvp-ack", "kvp-bye"

MAX_MESSAGE_BYTES = 64 << 20
CHUNK_BYTES = 128 << 10
WINDOW_BYTES = 2 << 20
"""Sent and not acknowledged, at most."""
RESEND_S = 3.0
SHIP_EVERY_S = 0.25
PING_EVERY_S = 1.0
STOOD_STILL_S = 2.0
"""Whoever was stopped himself for so long has heard nothing for that reason."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}\Z")


class Hello(msgspec.Struct, kw_only=True):
    """Who a worker is, and on which clock and loopback it lives."""

    host: str
    pid: int
    version: str
    kernel: str = ""
    """The machine's boot id: the same for all processes of one running kernel."""
    time_space: str = ""
    net_space: str = ""

    @classmethod
    def of_this_process(cls, version: str) -> Hello:
        """Spaces are Linux's namespaces; elsewhere they are empty, and nothing is taken to be shared."""
        return cls(
            host=socket.gethostname() or platform.node() or "machine",
            pid=os.getpid(),
            version=version,
            kernel=_read("/proc/sys/kernel/random/boot_id"),
            time_space=_link("/proc/self/ns/time"),
            net_space=_link("/proc/self/ns/net"),
        )

    def shares_clock(self, other: Hello) -> bool:
        """Whether one CLOCK_MONOTONIC serves both."""
        return bool(self.kernel) and (self.kernel, self.time_space) == (other.kernel, other.time_space)

    def shares_loopback(self, other: Hello) -> bool:
        """Whether 127.0.0.1 is the same place for both."""
        return bool(self.kernel) and (self.kernel, self.net_space) == (other.kernel, other.net_space)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def worker_name(host: str, index: int) -> str:
    """A name that can stand in a file name: the host's first label and the worker's number."""
    label = _UNSAFE.sub("-", host.partition(".")[0]).strip("-.")[:40] or "machine"
    return f"{label}-{index}"


def is_loopback(url: str) -> bool:
    """Whether a URL names the machine that it is used on."""
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")


class Shipper:
    """The worker's side: reads its own spool behind the writer and says what is to be sent next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sent = 0
        self._acked = 0
        self._acked_at_s = time.monotonic()

    @property
    def unacked_bytes(self) -> int:
        """Bytes of the spool that the master has not said it has."""
        try:
            return self._path.stat().st_size - self._acked
        except OSError:
            return 0

    def next_rows(self, now_s: float) -> dict[str, Any] | None:
        """The next whole lines as message data, or None when there is nothing to send now."""
        if self._sent > self._acked and now_s - self._acked_at_s > RESEND_S:
            self._sent, self._acked_at_s = self._acked, now_s  # lost on the way: again from there
        if self._sent - self._acked >= WINDOW_BYTES:
            return None
        data = self._whole_lines()
        if not data:
            return None
        if self._sent == self._acked:
            self._acked_at_s = now_s  # nothing was awaited until now
        message = {"offset": self._sent, "data": data}
        self._sent += len(data)
        return message

    def acked(self, offset: int, now_s: float) -> None:
        """The master has everything before `offset`."""
        if offset > self._acked:
            self._acked, self._acked_at_s = offset, now_s
            self._sent = max(self._sent, offset)

    def _whole_lines(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._sent)
                data = file.read(CHUNK_BYTES)
                if data and not data.endswith(b"\n"):
                    end = data.rfind(b"\n")
                    data = data[: end + 1] if end >= 0 else data + file.readline(MAX_MESSAGE_BYTES // 2)
        except FileNotFoundError:
            return b""
        return data if data.endswith(b"\n") else b""


class Receiver:
    """The master's side of one worker's rows: keeps what follows on what it has, and only that."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises StorageError."""
        self._file = JsonLineFile(path)
        self.size = 0

    def take(self, offset: Any, data: Any) -> int:
        """What the master has now; rows that do not follow on it are sent again. Raises StorageError."""
        if offset == self.size and isinstance(data, bytes) and data.endswith(b"\n"):
            self._file.append(data[:-1])
            self.size += len(data)
        return self.size

    def close(self) -> None:
        """Close the file."""
        self._file.close()
