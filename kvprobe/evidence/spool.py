"""The spool: evidence as it comes in, one JSON line each, safe from a kill -9.

A line goes to the kernel in one unbuffered `os.write` on a descriptor opened for appending, so
whatever `write` has acknowledged is in the page cache and outlives the process. (It is not
fsynced line by line: a power cut may cost the last seconds, a killed process costs nothing.)
A line is `{"type": "open" | "row" | "wait" | "sample" | "fact", ...fields of the struct}`.

Reading never raises because of what stands in the file: a truncated tail, NUL bytes and garbage
are counted, and every whole line is recovered.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from kvprobe.errors import Problem, StorageError
from kvprobe.evidence import secrets
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.records import OpenedRequest, RequestRecord, Waiting
from kvprobe.evidence.samples import Sample

Item = OpenedRequest | RequestRecord | Waiting | Sample | Fact

MAX_LINE_BYTES = 32 * 1024 * 1024
"""A longer line is damage: a stream of a million chunks takes about a third of this."""

_TAGS: dict[type[Item], bytes] = {
    OpenedRequest: b"open",
    RequestRecord: b"row",
    Waiting: b"wait",
    Sample: b"sample",
    Fact: b"fact",
}
_PREFIXES = {kind: b'{"type":"' + tag + b'",' for kind, tag in _TAGS.items()}
_FIXES = {
    errno.ENOSPC: "free space on the filesystem of {path}, or choose another folder with --out",
    errno.EDQUOT: "the disk quota for {path} is used up: free some, or choose another folder with --out",
    errno.EFBIG: "{path} reached the file size limit (ulimit -f): raise it, or use --out",
    errno.EROFS: "{path} lies on a read-only filesystem: choose a writable folder with --out",
    errno.EACCES: "no permission to write {path}: choose a folder that you own with --out",
    errno.EPERM: "no permission to write {path}: choose a folder that you own with --out",
    errno.EEXIST: "{path} is a file: name a folder with --out",
    errno.ENOTDIR: "a part of {path} is a file: name a folder with --out",
    errno.ELOOP: "{path} is a symbolic link where a real file is needed: remove the link",
    errno.EMFILE: "too many open files (ulimit -n): raise the limit, then write {path} again",
}


def storage_error(exc: OSError, path: Path | str) -> StorageError:
    """The typed form of an operating system's refusal to store `path`, with what to do."""
    reason = os.strerror(exc.errno) if exc.errno else str(exc)
    fix = _FIXES.get(exc.errno or 0, "check the disk that holds {path}, or choose another folder with --out")
    return StorageError(
        Problem(
            code="storage_failed",
            message=f"cannot write {path}: {reason}",
            fix=fix.format(path=path),
            path=str(path),
        )
    )


def write_all(fd: int, data: bytes) -> None:
    """Write every byte of `data`; the kernel may take it in parts (OSError as it comes)."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class JsonLineFile:
    """Appends whole lines to a file; a torn line of a failed write never swallows the next."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags, 0o644)
            self._torn = _ends_torn(path)
        except OSError as exc:
            raise storage_error(exc, path) from exc

    def append(self, line: bytes) -> None:
        """Write `line` (without its newline); it is safe from a kill when this returns.

        Raises StorageError when the disk refuses and ValueError after `close`.
        """
        with self._lock:
            if self._fd < 0:
                raise ValueError(f"{self.path} is closed")
            data = line + b"\n"
            if self._torn:
                data = b"\n" + data
            # Until the last byte is in, a failure leaves a partial line behind.
            self._torn = True
            try:
                write_all(self._fd, data)
            except OSError as exc:
                raise storage_error(exc, self.path) from exc
            self._torn = False

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)


class SpoolWriter:
    """One writer's spool file. Thread-safe; `source` names the writer for people who look inside."""

    def __init__(self, path: Path, source: str = "parent") -> None:
        """Create or continue `path`. Raises StorageError."""
        self.path = path
        self.source = source
        self._file = JsonLineFile(path)

    def write(self, item: Item) -> None:
        """Append one item; once this returns, a kill of the process cannot lose it.

        Raises StorageError when the disk refuses, ValueError after `close`.
        """
        self._file.append(_PREFIXES[type(item)] + encode(item)[1:])

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> SpoolWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(slots=True)
class SpoolContent:
    """What was recovered from spool files. `bad_lines` counts the lines that are damaged."""

    opened: list[OpenedRequest] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    bad_lines: int = 0


def read_spool(path: Path) -> SpoolContent:
    """Read one spool file. A file that cannot be opened raises OSError, content never does."""
    content = SpoolContent()
    read_spool_into(content, path)
    return content


def read_spool_into(content: SpoolContent, path: Path) -> None:
    """Add what `path` holds to `content`."""
    for line, damaged in read_lines(path):
        item = _decode(line) if line else None
        content.bad_lines += damaged or item is None
        if isinstance(item, RequestRecord):
            content.records.append(item)
        elif isinstance(item, OpenedRequest):
            content.opened.append(item)
        elif isinstance(item, Sample):
            content.samples.append(item)
        elif isinstance(item, Fact):
            content.facts.append(item)


def decode_line(line: bytes) -> Item | None:
    """The item of one whole line, null for damage. Never raises."""
    return _decode(line)


def open_regular(path: Path) -> BinaryIO:
    """Open a file of a run for reading. No link is followed, and what is no regular file is an
    OSError: a pipe would block for ever, a device never end."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(fd, "rb")


def read_lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Yield (text, damaged) for each line that is not blank.

    NUL bytes (what a filesystem leaves after a crash) are taken off both ends, and the line counts
    as damaged; a line beyond MAX_LINE_BYTES is yielded empty and damaged. Links are not followed.
    """
    with open_regular(path) as file:
        while raw := file.readline(MAX_LINE_BYTES):
            if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
                _skip_line(file)
                yield b"", True
                continue
            line = raw.strip()
            bare = line.strip(b"\0").strip()
            if line:
                yield bare, bare != line


def encode(item: Item) -> bytes:
    """The JSON object of `item` in bytes, without secrets; strings and numbers that JSON cannot
    carry are mended."""
    try:
        line = msgspec.json.encode(item)
    except (UnicodeEncodeError, OverflowError):
        # Only foreign text and foreign numbers get here: lone surrogates, integers beyond 64 bits.
        line = msgspec.json.encode(_mend({name: getattr(item, name) for name in item.__struct_fields__}))
    if secrets.occur_in(line):
        line = msgspec.json.encode(secrets.masked_value(msgspec.json.decode(line)))
    return line


class _Tag(msgspec.Struct):
    type: str = ""


_DECODERS: dict[bytes, msgspec.json.Decoder[Any]] = {
    tag: msgspec.json.Decoder(kind) for kind, tag in _TAGS.items()
}
_TAG_DECODER = msgspec.json.Decoder(_Tag)


def _decode(line: bytes) -> Item | None:
    try:
        decoder = _DECODERS.get(_TAG_DECODER.decode(line).type.encode())
        item: Item | None = decoder.decode(line) if decoder else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return item


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None
    if isinstance(value, dict):
        return {_mend(key): _mend(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mend(item) for item in value]
    return value


def _ends_torn(path: Path) -> bool:
    """Whether the file ends in the middle of a line (a writer was killed or the disk was full)."""
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _skip_line(file: BinaryIO) -> None:
    while (part := file.readline(MAX_LINE_BYTES)) and not part.endswith(b"\n"):
        continue
