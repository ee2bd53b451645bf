"""The directory that keeps one run.

While a run goes on, rows and samples stand in `spool/*.jsonl` and facts in `facts.jsonl`;
`finalise` turns them into parquet. The spool is the truth as long as it is there: it goes away in
one rename, and only after every other file is complete and fsynced, so a kill at any instant
leaves a directory that `load` can read. `STATUS` is written last; without it the run was killed.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kvprobe.errors import Problem, StorageError, UsageError
from kvprobe.evidence import columns
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.rundata import (
    DAMAGED_LINES,
    FACTS,
    OPENED,
    REQUESTS,
    SAMPLES,
    SPOOL,
    RunData,
    Status,
    read_spooled,
    read_status,
)
from kvprobe.evidence.spool import JsonLineFile, encode, storage_error, write_all

__all__ = ["RunData", "RunDir", "Status"]

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
_HASH = re.compile(r"[0-9a-f]{8,128}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_SPOOL_DONE = ".spool-done"
_MAX_SUFFIX = 1000


class RunDir:
    """One run directory; see the module's text for what stands in it when."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spool_dir = path / SPOOL

    @classmethod
    def create(cls, parent: Path, name: str, workload_hash: str) -> RunDir:
        """Make `parent/<utc>-<name>-<hash8>/`, with `-2`, `-3`… when that is taken.

        Raises UsageError for what is no plain run name, StorageError when the disk refuses.
        """
        run = cls(make_folder(parent, name, workload_hash))
        try:
            run.spool_dir.mkdir()
            _fsync_dir(run.path)
        except OSError as exc:
            raise storage_error(exc, parent) from exc
        return run

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """An existing run. Raises UsageError (`not_a_run`, `run_escapes`)."""
        try:
            real, home = path.resolve(strict=True), path.parent.resolve(strict=True)
            is_run = real.is_dir() and any(os.path.lexists(real / mark) for mark in (SPOOL, REQUESTS))
        except (OSError, ValueError, RuntimeError):
            is_run = False
        if not is_run:
            fix = "give a directory that `kvprobe run` made, such as runs/20261130T165102Z-name-1a2b3c4d"
            raise _usage("not_a_run", f"{str(path)!r} is not a run directory", fix, path)
        if (path.is_symlink() and real.parent != home) or (real / SPOOL).is_symlink():
            message = f"{str(path)!r} is, or holds, a symbolic link that leaves its folder"
            raise _usage("run_escapes", message, f"name the real directory: {real}", path)
        return cls(real)

    def discard(self) -> None:
        """Remove the directory: for a run that never began. What cannot be removed stays."""
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def status(self) -> Status:
        """`killed` when there is no STATUS file or it says nothing known."""
        return read_status(self.path)

    def write_text(self, name: str, text: str) -> None:
        """Replace the file `name` by `text`, atomically. Raises StorageError."""
        self._replace(name, text.encode("utf-8", "replace"))

    def write_json(self, name: str, obj: Any) -> None:
        """Replace the file `name` by `obj` as JSON; NaN and infinity become null. StorageError."""
        self._replace(name, msgspec.json.format(msgspec.json.encode(obj), indent=2) + b"\n")

    def write_status(self, status: Status) -> None:
        """Say how the run ended: the last thing that a run writes. Raises StorageError."""
        self.write_text("STATUS", status + "\n")

    def add_fact(self, fact: Fact) -> None:
        """Append to facts.jsonl at once; a kill afterwards does not lose it. Raises StorageError."""
        file = JsonLineFile(self.path / FACTS)
        try:
            file.append(encode(fact))
        finally:
            file.close()

    def finalise(self) -> None:
        """Turn the spool into requests.parquet, samples.parquet, opened.jsonl and facts.jsonl.

        Safe to repeat and to be killed at any instant: the spool goes last, in one rename. Raises
        StorageError with the spool still whole.
        """
        if self.spool_dir.is_dir():
            content = read_spooled(self.path)
            facts = content.facts
            if content.bad_lines:
                facts = [
                    *facts,
                    Fact(name=DAMAGED_LINES, value=content.bad_lines, unit="count", source=SPOOL),
                ]
            self._replace_by(REQUESTS, lambda path: columns.write_requests(path, content.records))
            self._replace_by(SAMPLES, lambda path: columns.write_samples(path, content.samples))
            self._replace(OPENED, _lines(content.opened))
            self._replace(FACTS, _lines(facts))
            try:
                shutil.rmtree(self.path / _SPOOL_DONE, ignore_errors=True)
                os.rename(self.spool_dir, self.path / _SPOOL_DONE)
                _fsync_dir(self.path)
            except OSError as exc:
                raise storage_error(exc, self.spool_dir) from exc
        shutil.rmtree(self.path / _SPOOL_DONE, ignore_errors=True)

    def load(self) -> RunData:
        """Everything in memory, from parquet when finalised and from the spool when not.

        Raises UsageError (`run_damaged`) when requests.parquet itself cannot be read, `newer_run` for
        a directory that a newer version wrote.
        """
        from kvprobe.evidence.migrations import load_up_to_date

        return load_up_to_date(self.path)

    def _replace(self, name: str, data: bytes) -> None:
        def write(path: Path) -> None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            fd = os.open(path, flags, 0o644)
            try:
                write_all(fd, data)
                os.fsync(fd)
            finally:
                os.close(fd)

        self._replace_by(name, write)

    def _replace_by(self, name: str, write: Callable[[Path], None]) -> None:
        """Let `write` make a complete, fsynced temporary file, then put it in place of `name`."""
        if not _FILE.fullmatch(name):
            raise ValueError(f"{name!r} is not a file name inside a run directory")
        temporary = self.path / f".{name}.{os.getpid()}.tmp"
        try:
            temporary.unlink(missing_ok=True)
            write(temporary)
            os.replace(temporary, self.path / name)
            _fsync_dir(self.path)
        except OSError as exc:
            raise storage_error(exc, self.path / name) from exc
        finally:
            _discard(temporary)  # gone already when all went well


def make_folder(parent: Path, name: str, content_hash: str) -> Path:
    """An empty folder `parent/<utc>-<name>-<hash8>/` that this call alone has made; see `RunDir.create`."""
    if not _NAME.fullmatch(name) or not _HASH.fullmatch(content_hash):
        raise _usage(
            "bad_run_name",
            f"{name!r} with hash {content_hash!r} cannot name a run directory",
            "use lower-case letters, digits, _ and -, beginning with a letter or digit",
        )
    stem = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{name}-{content_hash[:8]}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        home = parent.resolve()
        _require_text(home)
        return _make_unique(home, stem)
    except OSError as exc:
        raise storage_error(exc, parent) from exc


def _require_text(path: Path) -> None:
    """The path stands in JSON, which carries text and not any bytes. Raises UsageError."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise _usage(
            "bad_out", f"the path {shown} is not UTF-8", "choose another folder with --out"
        ) from None


def _make_unique(parent: Path, stem: str) -> Path:
    """A directory that this call alone has made (mkdir neither shares nor follows links)."""
    for number in range(1, _MAX_SUFFIX):
        path = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise StorageError(
        Problem(
            code="storage_failed",
            message=f"{_MAX_SUFFIX} runs called {stem} stand in {parent} already",
            fix="choose another folder with --out",
            path=str(parent),
        )
    )


def _lines(items: list[Any]) -> bytes:
    return b"".join(encode(item) + b"\n" for item in items)


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the disk refuses everything; the error being raised already says so


def _fsync_dir(path: Path) -> None:
    """Make renames and new names in `path` survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _usage(code: str, message: str, fix: str, path: Path | None = None) -> UsageError:
    return UsageError(Problem(code=code, message=message, fix=fix, path=str(path) if path else None))
