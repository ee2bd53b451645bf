"""What a run was made with: versions, machine and the mapping between the clocks.

The environment variables of the process are never read here: they hold secrets.
"""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

LIBRARIES = (
    "geventhttpclient",
    "gevent",
    "httpx",
    "locust",
    "msgspec",
    "numpy",
    "nvidia-ml-py",
    "pandas",
    "prometheus-client",
    "psutil",
    "pyarrow",
    "pydantic",
    "rich",
    "ruamel.yaml",
    "torch",
)
"""Distributions whose behaviour can change a result. Only their metadata is read."""


LAYOUT = 1
"""Of the run directory that this version writes (`evidence.migrations`). It rises when an older reader
would misread a newer directory."""


def collect_environment() -> dict[str, Any]:
    """The content of environment.json; versions of what is not installed are null."""
    return {
        "kvprobe": _version("kvprobe"),
        "layout": LAYOUT,
        "python": {"version": platform.python_version(), "implementation": platform.python_implementation()},
        "platform": {
            "system": platform.system(),
            "release": platform.release(),
            "machine": platform.machine(),
        },
        "cpu_count": os.cpu_count(),
        "cpu_usable": usable_cpus(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "clock": read_clocks(),
    }


def read_clocks() -> dict[str, int | None]:
    """The three clocks read together, ns: monotonic, UTC and boot time (null where there is none).

    The reading is repeated a few times and the tightest one kept, so that a descheduled process
    does not put the clocks apart.
    """
    best: dict[str, int | None] = {}
    best_width = None
    for _ in range(5):
        before = time.monotonic_ns()
        utc = time.time_ns()
        boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else None
        width = time.monotonic_ns() - before
        if best_width is None or width < best_width:
            best_width = width
            best = {"monotonic_ns": before + width // 2, "utc_ns": utc, "boottime_ns": boot}
    return best


def usable_cpus() -> int | None:
    """CPUs that this process may run on (an affinity mask can be narrower than the machine)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
