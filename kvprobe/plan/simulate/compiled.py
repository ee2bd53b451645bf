"""The kernel's functions, compiled by numba where it is there and worth its start, else plain Python.

The same source runs both ways. Which way is decided once a process, before the kernel is imported:
compiling takes some seconds the first time (the result is kept on disk), so a short trace is faster without.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib import util
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

SWITCH = "KVPROBE_COMPILE"
"""Environment variable: 0 never compiles, 1 always; else by the length of the trace."""
WORTH_ROWS = 3_000
"""Below, plain Python is done before numba is loaded."""
WORTH_COMPILING_ROWS = 40_000
"""Below, it is done before numba has compiled, where that was not done before on this machine."""

_chosen: list[bool] = []


def choose(rows: int | None) -> bool:
    """Decide for this process whether to compile; `rows` is about how many requests come (null: many).

    Returns what holds: a choice that was made before stays.
    """
    if not _chosen:
        wish = os.environ.get(SWITCH, "")
        least = WORTH_ROWS if is_cached() else WORTH_COMPILING_ROWS
        wanted = wish == "1" or (wish != "0" and (rows is None or rows >= least))
        _chosen.append(wanted and available())
    return _chosen[0]


def available() -> bool:
    """Whether numba is installed."""
    return util.find_spec("numba") is not None


def is_cached() -> bool:
    """Whether numba has left this compiled kernel on disk (a guess: another version of numba may have)."""
    return any(cache_folder().rglob("steps.advance-*.nbi"))


@cache
def cache_folder() -> Path:
    """Where the compiled kernel of exactly this source is kept; it need not exist.

    numba's own place is beside the source, which an installation may not let us write, and there it sees a
    change of a function's own file only: a kernel with a stale callee would go on giving the old numbers.
    """
    base = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    digest = sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return Path(base).expanduser() / "kvprobe" / f"kernel-{digest.hexdigest()[:16]}"


@cache
def _writable() -> bool:
    """Whether the compiled kernel can be kept; else it is compiled in each process."""
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(cache_folder(), os.W_OK)


def is_compiled() -> bool:
    """Whether the kernel of this process is compiled."""
    return bool(_chosen) and _chosen[0] and "numba" in sys.modules


def jit(function: F) -> F:
    """Compile at first call, or hand back as it is."""
    if not choose(0):
        return function
    from numba import config, njit

    before = config.CACHE_DIR
    if _writable():
        config.CACHE_DIR = str(cache_folder())
    try:
        compiled: F = njit(cache=_writable(), error_model="numpy")(function)
    finally:
        config.CACHE_DIR = before
    return compiled
