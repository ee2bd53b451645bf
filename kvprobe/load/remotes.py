"""What a master knows of each of its workers, and whether one can take part."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from locust.env import Environment

from kvprobe import __version__
from kvprobe.errors import Problem, UsageError
from kvprobe.evidence.environment import read_clocks
from kvprobe.load import wire
from kvprobe.load.jobs_remote import MasterJob, address_text


@dataclass(slots=True)
class Remote:
    """One worker, as the master knows it."""

    client_id: str
    hello: wire.Hello
    name: str = ""
    receiver: wire.Receiver | None = None
    heard_s: float = field(default_factory=time.monotonic)
    pinged_s: float = 0.0
    ping_number: int = 0
    round_trip_s: float | None = None


def refusal(hello: wire.Hello, me: wire.Hello, target: str) -> str | None:
    """Why a worker cannot send to `target` for the master `me`; null when it can."""
    if hello.version != __version__:
        return f"it has kvprobe {hello.version}, and the master has {__version__}"
    if wire.is_loopback(target) and not hello.shares_loopback(me):
        return f"the target {target} is the master's own machine, which cannot be reached from there"
    return None


def clock_value(remote: Remote, me: wire.Hello, t0_ns: int, said: dict[str, Any]) -> dict[str, Any]:
    """Which instant of its clock is which of ours: the only thing that is ever known of its clock."""
    return {
        "worker": remote.name,
        "host": remote.hello.host,
        "pid": remote.hello.pid,
        "same_clock": remote.hello.shares_clock(me),
        "t0_ns": t0_ns,
        "worker_t0_ns": int(said["t0_ns"]),
        "uncertainty_s": (remote.round_trip_s or 0.0) / 2,
        "clock": said["clock"],
        "master_clock": read_clocks(),
    }


def master_runner(job: MasterJob) -> Any:
    """Locust's master. Raises UsageError when it cannot listen there."""
    environment = Environment(user_classes=[])
    where = address_text(job.bind_host, job.bind_port)
    try:
        return environment.create_master_runner(job.bind_host, job.bind_port)
    except SystemExit as error:  # Locust's answer to a port that is taken
        message, fix = f"something else listens on {where}", "choose another port with --bind"
        raise UsageError(Problem("address_in_use", message, fix)) from error
    except Exception as error:
        message = f"cannot listen on {where}: {error}"
        raise UsageError(Problem("bad_address", message, "choose another address with --bind")) from error
