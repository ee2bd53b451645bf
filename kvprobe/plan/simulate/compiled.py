"""The kernel's functions, compiled by numba where it is there and worth its start, else plain Python.

The same source runs both ways. Which way is decided once a process, before the kernel is imported:
compiling takes some seconds the first time (the result is kept on disk), so a short trace is faster without.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
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
    """Whether numba has left the compiled kernel beside its source (a guess: another version may have)."""
    return any((Path(__file__).parent / "__pycache__").glob("steps.advance-*.nbi"))


def is_compiled() -> bool:
    """Whether the kernel of this process is compiled."""
    return bool(_chosen) and _chosen[0] and "numba" in sys.modules


def jit(function: F) -> F:
    """Compile at first call, or hand back as it is."""
    if not choose(0):
        return function
    from numba import njit

    compiled: F = njit(cache=True, error_model="numpy")(function)
    return compiled
