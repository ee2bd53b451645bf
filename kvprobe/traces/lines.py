"""Lines of a file that may be huge or hostile: a bounded buffer, exact line numbers and places."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from kvprobe.traces.rows import trace_error

MAX_LINE_BYTES = 4 << 20
"""A prompt of a million tokens in blocks of 16 has a line of half a MiB."""
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    b"PAR1": "parquet",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_BOM = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """A line without its end: its number from 1, and the byte at which it begins."""

    number: int
    offset: int
    text: str


def open_bytes(path: Path) -> BufferedReader:
    """The file for reading. Raises UsageError for what is no readable regular file of text."""
    if path.is_dir() or (path.exists() and not path.is_file()):  # a pipe without a writer waits for ever
        raise trace_error(path, "is no regular file", "give a file; write a pipe's content to one first")
    try:
        file = open(path, "rb")  # noqa: SIM115 - handed to the caller
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise trace_error(path, f"cannot be read: {why}", "give a file that can be read") from error
    try:
        start = file.read(6)
    except OSError as error:
        file.close()
        why = f"cannot be read: {error.strerror}"
        raise trace_error(path, why, "give a file that can be read") from error
    packed = next((name for magic, name in _PACKED.items() if start.startswith(magic)), None)
    if packed is not None:
        file.close()
        raise trace_error(path, f"is {packed}, not plain text", "unpack it, or convert it to CSV or JSONL")
    file.seek(0)
    return file


def read_lines(file: BufferedReader, path: Path) -> Iterator[Line]:
    """All lines from the start that are not blank. Raises UsageError for one that is too long."""
    number = offset = 0
    while True:
        try:
            data = file.readline(MAX_LINE_BYTES + 1)
        except OSError as error:
            raise trace_error(
                path, f"cannot be read: {error.strerror}", "check the disk", number + 1
            ) from error
        if not data:
            return
        number += 1
        if len(data) > MAX_LINE_BYTES:
            why = f"has a line of more than {MAX_LINE_BYTES >> 20} MiB"
            raise trace_error(path, why, "mend or drop that line", number)
        text = data.removeprefix(_BOM) if number == 1 else data
        if (shown := text.decode("utf-8", "replace").rstrip("\r\n")) and shown.strip():
            yield Line(number, offset, shown)
        offset += len(data)


def line_at(file: BufferedReader, offset: int) -> str:
    """The line that begins at byte `offset`, as `read_lines` gave it."""
    file.seek(offset)
    data = file.readline(MAX_LINE_BYTES + 1)
    return (data.removeprefix(_BOM) if offset == 0 else data).decode("utf-8", "replace").rstrip("\r\n")
