"""What a path on the command line is: a log, a packed log, a pipe, a saved /metrics page, or a mistake.

Rotated pieces of one log (`server.log`, `server.log.1`, `server.log.2.gz`) are read oldest first.
"""

from __future__ import annotations

import os
import re
import select
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from kvprobe.errors import Problem, UsageError
from kvprobe.observe.logs import unpack
from kvprobe.observe.logs.blocks import ByteStream
from kvprobe.observe.logs.encoding import Prepended, Recoded, utf16_of, without_mark
from kvprobe.observe.logs.tally import Tally

STDIN = "-"
_PIPE_WAIT_S = 10.0
_COUNTED_BYTES = 4 * 2**30
"""With --tail, lines of so much of what is left out are counted, so that line numbers are the file's."""
_COUNT_STEP_BYTES = 1 << 22
_ROTATED = re.compile(
    r"^(?P<base>.{1,200}?)(?:\.(?P<number>\d{1,3})|[.-](?P<date>\d{4}-?\d\d-?\d\d(?:[T_-]?\d{2,6})?))?"
    r"(?P<packed>\.(?:gz|xz|bz2|zst|zstd|lzma|Z))?$"
)


@dataclass(slots=True)
class Opened:
    """A source ready to be read. `size_bytes` is of the file as it lies on disk, null for a pipe."""

    name: str
    stream: ByteStream
    size_bytes: int | None
    first_line: int = 1


def in_order(paths: Sequence[str]) -> list[str]:
    """The paths as given, each once, but rotated pieces of one log oldest first."""
    unique = list(dict.fromkeys(paths))
    families: dict[tuple[str, str], list[str]] = {}
    for path in unique:
        families.setdefault(family(path), []).append(path)
    return [path for pieces in families.values() for path in sorted(pieces, key=_age)]


def family(path: str) -> tuple[str, str]:
    """Equal for the rotated pieces of one log."""
    folder, name = os.path.split(path)
    found = _ROTATED.match(name)
    return folder, found["base"] if found else name


def _age(path: str) -> tuple[int, int, str]:
    """Sorts oldest first: high numbers, then early dates, then the file that is written now."""
    found = _ROTATED.match(os.path.basename(path))
    if found is None or (found["number"] is None and found["date"] is None):
        return (2, 0, "")
    if found["number"] is not None:
        return (0, -int(found["number"]), "")
    return (1, 0, found["date"])


def check(paths: Sequence[str]) -> None:
    """Raises one `UsageError` with all that is wrong with the paths, before any is read."""
    problems = [problem for path in paths if path != STDIN and (problem := _problem(path)) is not None]
    if problems:
        raise UsageError(*problems)


def _problem(path: str) -> Problem | None:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        fix = (
            "check the path; `-` reads from stdin"
            if isinstance(error, FileNotFoundError)
            else "give another path"
        )
        return Problem("no_log", f"cannot read `{path}`: {reason}", fix, path)
    if stat.S_ISDIR(mode):
        return Problem(
            "is_directory", f"`{path}` is a directory and no run directory", _log_inside(path), path
        )
    if (
        stat.S_ISSOCK(mode)
        or stat.S_ISBLK(mode)
        or (stat.S_ISCHR(mode) and os.path.realpath(path) != os.devnull)
    ):
        return Problem(
            "not_a_file",
            f"`{path}` is a device or a socket, not a log",
            "name a file, or `-` for stdin",
            path,
        )
    if not os.access(path, os.R_OK):
        return Problem(
            "no_log", f"cannot read `{path}`: Permission denied", "read it as a user who may", path
        )
    return None


def _log_inside(path: str) -> str:
    try:
        with os.scandir(path) as found:
            inside = sorted(e.name for e in found if e.name.endswith((".log", ".txt", ".out", ".err", ".gz")))
    except OSError:
        inside = []
    example = f"{os.path.join(path, inside[0])}" if inside else os.path.join(path, "server.log")
    return f"name the log files in it: kvprobe diagnose {example}"


@contextmanager
def opened(path: str, tally: Tally, *, tail_bytes: int | None = None) -> Iterator[Opened]:
    """The content of a source as plain UTF-8 bytes. Raises `UsageError` for what is no log."""
    if path == STDIN:
        yield _from(_stdin(), "stdin", None, tally, tail_bytes)
        return
    try:
        with _open(path) as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            size = os.fstat(file.fileno()).st_size if regular else None
            yield _from(file, path, size, tally, tail_bytes)
    except IsADirectoryError as error:  # exchanged since it was checked
        raise UsageError(_problem(path) or Problem("no_log", f"cannot read `{path}`", path=path)) from error


def _stdin() -> IO[bytes]:
    """Standard input, unbuffered: what a buffer has collected is lost when a signal ends the reading. Python
    has no object for one that was closed when it started."""
    if sys.stdin is None:
        return open(0, "rb", buffering=0, closefd=False)
    buffer: IO[bytes] = sys.stdin.buffer
    return getattr(buffer, "raw", buffer)


def _open(path: str) -> IO[bytes]:
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode) and not path.startswith(("/dev/fd/", "/proc/")):
            return _open_pipe(path)
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise UsageError(
            Problem("no_log", f"cannot read `{path}`: {error.strerror}", "give another path", path)
        ) from error


def _open_pipe(path: str) -> IO[bytes]:
    """A named pipe; one that nobody writes to must not be waited for without end."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not select.select([number], [], [], _PIPE_WAIT_S)[0]:
        os.close(number)
        message = f"nobody wrote to the pipe `{path}` within {_PIPE_WAIT_S:g} s"
        raise UsageError(Problem("no_log", message, "pipe the log to stdin: ... | kvprobe diagnose -", path))
    os.set_blocking(number, True)
    return os.fdopen(number, "rb", buffering=0)


class _Full:
    """A raw file whose reads are as long as asked, and whose errors are ours."""

    def __init__(self, file: IO[bytes], name: str, tally: Tally) -> None:
        self._file, self._name, self._tally = file, name, tally

    def read(self, size: int, /) -> bytes:
        parts: list[bytes] = []
        missing = size
        while missing > 0 and self._tally.stopped is None:
            try:
                part = self._file.read(missing)
            except KeyboardInterrupt as signal:  # `docker logs -f | kvprobe diagnose -` ends so
                self._tally.stopped = signal
                break
            except OSError as error:
                self._tally.note(f"{self._name}: reading stopped: {error.strerror}")
                self._tally.skipped_lines += 1
                break
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _from(file: IO[bytes], name: str, size: int | None, tally: Tally, tail_bytes: int | None) -> Opened:
    raw = _Full(file, name, tally)
    head = raw.read(unpack.HEAD_BYTES)
    unpack.refuse_archive(head, name)
    packing = unpack.packing_of(head)
    stream: ByteStream = Prepended(head, raw)
    if packing is not None:
        stream = unpack.Unpacked(stream, packing, name, tally)
        head = stream.read(unpack.HEAD_BYTES)
        stream = Prepended(head, stream)
    encoding = utf16_of(head)
    if encoding is not None:
        tally.note(f"{name}: read as {encoding.upper()}")
        stream = Recoded(stream, encoding)
    elif head.startswith(b"\xef\xbb\xbf"):
        rest = stream
        stream = Prepended(without_mark(rest.read(unpack.HEAD_BYTES)), rest)
    if tail_bytes is None:
        return Opened(name, stream, size)
    plain = packing is None and encoding is None
    if plain and size is not None:
        return _tail_of_file(file, raw, name, size, tail_bytes, tally)
    return Opened(name, TailStream(stream, tail_bytes, name, tally), size)


def _tail_of_file(file: IO[bytes], raw: _Full, name: str, size: int, tail_bytes: int, tally: Tally) -> Opened:
    """The last bytes from a line start on; what is left out is counted in lines where that is quick."""
    begin = max(0, size - tail_bytes)
    if begin == 0:
        file.seek(0)
        return Opened(name, raw, size)
    lines: int | None = 0
    if begin <= _COUNTED_BYTES:
        file.seek(0)
        left = begin
        while left > 0 and (part := raw.read(min(left, _COUNT_STEP_BYTES))):
            lines = (lines or 0) + part.count(b"\n")
            left -= len(part)
    else:
        lines = None
        tally.note(f"{name}: line numbers count from the start of the tail")
    file.seek(begin - 1)
    skipped = _to_line_start(raw)
    tally.note(f"{name}: only the last {size - begin:,} bytes were read (--tail)")
    first = 1 if lines is None else lines + (2 if skipped is not None and skipped[1] else 1)
    return Opened(name, Prepended(skipped[0] if skipped else b"", raw), size - begin, first)


def _to_line_start(raw: _Full) -> tuple[bytes, bool] | None:
    """What stands after the next line end, and whether a part of a line was passed over."""
    passed = 0
    while part := raw.read(64 * 1024):
        at = part.find(b"\n")
        if at >= 0:
            return part[at + 1 :], passed + at > 0
        passed += len(part)
    return None


class TailStream:
    """The last bytes of a stream that cannot be wound: it is read to its end first, and little is kept."""

    MOST_BYTES = 64 * 2**20

    def __init__(self, stream: ByteStream, tail_bytes: int, name: str, tally: Tally) -> None:
        self._stream, self._name, self._tally = stream, name, tally
        self._most = min(tail_bytes, self.MOST_BYTES)
        self._limited = tail_bytes > self.MOST_BYTES
        self._kept: bytes | None = None

    def read(self, size: int, /) -> bytes:
        """The first call reads the whole stream."""
        if self._kept is None:
            self._kept = self._collect()
        part, self._kept = self._kept[:size], self._kept[size:]
        return part

    def _collect(self) -> bytes:
        kept, cut = b"", False
        while part := self._stream.read(1 << 20):
            kept += part
            if len(kept) > self._most + (8 << 20):
                kept, cut = kept[-self._most - 1 :], True
        if len(kept) > self._most:
            # One byte more tells whether the tail begins at a line.
            kept, cut = kept[-self._most - 1 :], True
        if cut:
            kept = kept[kept.find(b"\n") + 1 :]
            limit = " (64 MiB are the most for a stream)" if self._limited else ""
            self._tally.note(
                f"{self._name}: only the last {len(kept):,} bytes were read{limit}; lines count from there"
            )
        return kept
