"""What the command line gives to the two processes that speak to other machines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kvprobe.errors import Problem, UsageError
from kvprobe.load.job import LoadJob

MAX_FILES_BYTES = 32 << 20
_SUFFIX = re.compile(r"(?:\.[a-z0-9]{1,8}){0,2}\Z")

DEFAULT_PORT = 5557
"""Locust's own, for its master."""
LOST_AFTER_S = 6.0
"""A worker, or a master, that says nothing for so long is lost: each speaks once a second or oftener."""
DEFAULT_WEB_PORT = 8089
"""Locust's own, for its page."""


def address_text(host: str, port: int) -> str:
    """`host:port`, or `[v6]:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class MasterJob(msgspec.Struct, kw_only=True):
    """For `python -m kvprobe.load.master`. `job` is what every worker gets, but for its name and share."""

    job: LoadJob
    spool_dir: str
    bind_host: str
    bind_port: int
    """0: a free one."""
    expect_workers: int
    lost_after_s: float = LOST_AFTER_S
    web_port: int | None = None
    """Port of Locust's page on 127.0.0.1; null for no page, 0 for a free one."""


class AgentJob(msgspec.Struct, kw_only=True):
    """For `python -m kvprobe.load.agent`."""

    master_host: str
    master_port: int
    spool_dir: str
    api_key_env: str | None = None
    """The variable on this machine; null takes the name that the master says."""
    lost_after_s: float = LOST_AFTER_S
    trusted: bool = False
    """The master is this machine's own: nobody has to be asked."""


class Offer(msgspec.Struct, kw_only=True):
    """What a master asks of this machine, for whoever has to allow it."""

    base_url: str
    workload: str
    insecure: bool


def files_of(workload: dict[str, Any]) -> dict[str, bytes]:
    """The trace files that a workload names, for machines that do not have them. Raises UsageError."""
    files: dict[str, bytes] = {}
    for place in _places(workload):
        path = Path(place["trace"])
        try:
            too_large = path.stat().st_size + sum(map(len, files.values())) > MAX_FILES_BYTES
            if not too_large:
                files[str(path)] = path.read_bytes()
        except OSError as error:
            message = f"cannot read the trace: {error.strerror}"
            raise UsageError(Problem("trace", message, "check the path", str(path))) from error
        if too_large:
            message = f"a trace of more than {MAX_FILES_BYTES >> 20} MiB is not sent to other machines"
            raise UsageError(
                Problem("trace", message, "cut it, or use --processes on one machine", str(path))
            )
    return files


def unpack_files(job: LoadJob, folder: Path) -> None:
    """Lay the files of a job into `folder` and let the workload name them there. Raises OSError."""
    for place in _places(job.workload):
        data = job.files.get(place["trace"])
        if data is None:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        match = _SUFFIX.search(Path(place["trace"]).name.lower())
        path = folder / f"{job.worker}-{len(list(folder.iterdir()))}{match[0] if match else ''}"
        path.write_bytes(data)
        place["trace"] = str(path)
    job.files = {}


def _places(value: Any) -> Iterator[dict[str, Any]]:
    """Mappings that name a trace by its path."""
    if isinstance(value, dict):
        if isinstance(value.get("trace"), str):
            yield value
        for child in value.values():
            yield from _places(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _places(child)
