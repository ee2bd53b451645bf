"""Kubernetes and Docker: `kubectl describe pod`, `get pods`, events, `docker inspect`, compose."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of, signature, size_bytes, table_reader

_ROWS = (
    signature("killed", "OOMKilled", r"[Rr]eason\"?[: ]+\"?OOMKilled", how="container"),
    signature("killed", '"OOMKilled": true', r"\"OOMKilled\": true", how="container"),
    signature("killed", "OOMKilled", r"^\S{1,120} +\d+/\d+ +OOMKilled", how="container"),
    signature("killed", "OOMKilling", r"OOMKilling.{0,120}", how="container"),
    signature("killed", "OOMKilled", r"^(?:Status|STATUS|State)?:? *OOMKilled\b", how="container"),
    signature("killed", "System OOM encountered", r"System OOM encountered", how="kubelet"),
    signature("not_oom_killed", '"OOMKilled": false', r"\"OOMKilled\": false"),
    signature("evicted", "low on resource", r"low on resource: (?P<resource__text>[\w-]{3,30})"),
    signature("evicted", "[MemoryPressure]", r"had condition: \[MemoryPressure\]", resource="memory"),
    signature("killed", "container oom ", r"\bcontainer oom [0-9a-f]{4,64} \(", how="container"),
    signature("disk_full", "ephemeral local storage", r"ephemeral local storage usage exceeds"),
    signature("threads_exhausted", "by pids controller", r"fork rejected by pids controller"),
    signature("probe_failed", "failed startup probe", r"failed startup probe", probe="startup"),
    signature("probe_failed", "failed liveness probe", r"failed liveness probe", probe="liveness"),
    signature("probe_failed", "Startup probe failed", r"Startup probe failed", probe="startup"),
    signature("probe_failed", "Liveness probe failed", r"Liveness probe failed", probe="liveness"),
    signature(
        "host_memory_state",
        "memory.max",
        r"memory\.max[: =]+(?P<limit__B>\d{6,16})",
    ),
    signature(
        "shm_full",
        "No space left on device",
        r"shared memory (?:pool|key|region|segment|object).{0,400}?No space left on device",
    ),
    signature(
        "shm_full",
        "No space left on device",
        r"/dev/shm.{0,200}?No space left on device|No space left on device.{0,120}/dev/shm",
    ),
)

_CODE = re.compile(r"^\s*\"?(?:Exit ?Code|exitCode)\"?: +\"?(\d{1,3})\b")


def _exit_code(line: Line, around: Around) -> Iterable[Event]:
    """`Exit Code: 137`, with the reason that stands beside it."""
    found = _CODE.search(line.text)
    if found is None or found[1] != "137":
        return
    beside = " ".join(a.text for a in (*around.before(4), *around.after(4)))
    if "OOMKilled" in beside and '"OOMKilled": false' not in beside:
        return
    values = {"how": Value("container"), "signal": Value(9), "exit_code": Value("137")}
    reason = re.search(r"Reason\"?: +\"?(\w+)", beside)
    if reason is not None:
        values["reason"] = Value(reason[1])
    yield event_of(line, "signal", values)


_LIMIT = re.compile(r"^\s*memory: +\"?([\d.]+ ?[KMGT]i?)\b")


def _limit(line: Line, around: Around) -> Iterable[Event]:
    """The memory limit of a container, under `Limits:`."""
    found = _LIMIT.search(line.text)
    if found is None or not any(re.search(r"[Ll]imits:", b.text) for b in around.before(4)):
        return
    size = size_bytes(found[1] + "B" if found[1].endswith("i") else found[1])
    if size is not None:
        yield event_of(line, "container_limit", {"limit": Value(size, "B")})


READERS: tuple[Reader, ...] = (
    table_reader("kubernetes", None, _ROWS),
    Reader(
        name="container exit code",
        engine=None,
        anchors=("Exit Code", "ExitCode", "exitCode"),
        read=_exit_code,
    ),
    Reader(name="container limit", engine=None, anchors=("memory:",), read=_limit),
)
