"""Compiles the kernels once per host and loads them.

The machine code is made for the CPU that it is made on, so it is never shipped: it lies in a cache
directory of the user's, under a name that follows from the sources, the compiler and the CPU. Without
a compiler, or with `REFERENCE_SERVER_NATIVE=0`, there are no kernels and torch computes.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

SWITCH = "REFERENCE_SERVER_NATIVE"
CACHE_VARIABLE = "REFERENCE_SERVER_NATIVE_CACHE"
SOURCES = ("pool.c", "matrix.c", "attention.c", "store.c", "decoder.c")
HEADERS = ("common.h", "tile.h")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno", "-pthread")
COMPILE_SECONDS = 120
HERE = Path(__file__).parent


class Unavailable(Exception):
    """Why there are no kernels here."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None; the reason is logged once."""
    try:
        if os.environ.get(SWITCH, "1") == "0":
            raise Unavailable(f"{SWITCH}=0")
        return _load(_compiled())
    except Unavailable as reason:
        log.info("kernels in C are off, torch computes: %s", reason)
        return None


def _compiled() -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise Unavailable("there is no C compiler (cc, or the one that CC names)")
    directory = _cache_directory()
    target = directory / f"kernels-{_fingerprint(compiler)}.so"
    if not target.exists():
        _compile(compiler, directory, target)
    return target


def _compile(compiler: str, directory: Path, target: Path) -> None:
    """Into a file of its own, moved into place when it is whole: two servers may start at once."""
    with tempfile.NamedTemporaryFile(dir=directory, suffix=".so", delete=False) as made:
        path = Path(made.name)
    try:
        if failure := _run_compiler([compiler, *FLAGS, "-o", str(path)]):
            raise Unavailable(f"{compiler} cannot compile them: {failure}")
        os.replace(path, target)
        log.info("kernels in C compiled into %s", target)
    finally:
        path.unlink(missing_ok=True)


def _run_compiler(command: list[str]) -> str:
    """What went wrong; empty when nothing did."""
    sources = [str(HERE / name) for name in SOURCES]
    try:
        done = subprocess.run(
            [*command, *sources, "-lm"], capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip() or "no reason given")[-300:]


def _cache_directory() -> Path:
    """A directory that nobody else can write to: what lies in it will be run."""
    wanted = os.environ.get(CACHE_VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(wanted) if wanted else (Path(home) if home else Path.home() / ".cache") / "kvprobe"
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = base.stat()
    except (OSError, RuntimeError) as error:
        raise Unavailable(f"no cache directory: {error}") from error
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unavailable(f"others may write to the cache directory {base}")
    return base


def _fingerprint(compiler: str) -> str:
    state = hashlib.sha256()
    for name in (*HEADERS, *SOURCES):
        state.update((HERE / name).read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=20, check=False).stdout
    for part in (" ".join(FLAGS).encode(), version, platform.machine().encode(), _cpu()):
        state.update(part + b"\0")
    return state.hexdigest()[:24]


def _cpu() -> bytes:
    """Model and instruction sets, as Linux tells them; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    wanted = (b"model name", b"flags", b"Features", b"CPU part")
    return b"\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _load(path: Path) -> ctypes.CDLL:
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path} cannot be loaded: {error}") from error
    loaded.panel_columns.restype = ctypes.c_int64
    loaded.packed_bytes.restype = ctypes.c_int64
    loaded.packed_bytes.argtypes = [ctypes.c_int64] * 3
    loaded.pack.argtypes = [ctypes.c_int64] * 3 + [ctypes.c_void_p] * 2
    loaded.matmul.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_int64,
    ]
    for name in ("attend", "store_kv"):
        getattr(loaded, name).argtypes = [ctypes.c_void_p] * 3
    loaded.decode_layers.argtypes = [ctypes.c_void_p] * 2
    for name in ("pack", "matmul", "attend", "store_kv", "decode_layers"):
        getattr(loaded, name).restype = None
    return loaded
