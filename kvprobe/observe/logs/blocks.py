"""A byte stream in blocks that end at a line end, made readable: no escapes, no NULs, lines bounded.

Memory stays bounded whatever the stream holds: a line that does not end within a block keeps its first
64 KiB (and its last ones where a progress bar redraws itself).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kvprobe.observe.logs.cleaning import ANSI_BYTES
from kvprobe.observe.logs.entries import LINE_BYTES
from kvprobe.observe.logs.partials import rejoined
from kvprobe.observe.logs.tally import Tally

BLOCK_BYTES = 1 << 20


class ByteStream(Protocol):
    """What can be read from: an empty answer is the end."""

    def read(self, size: int, /) -> bytes: ...


def blocks(stream: ByteStream, tally: Tally) -> Iterator[bytes]:
    """Blocks of whole lines; only the last may lack its line end."""
    rest = b""
    while chunk := stream.read(BLOCK_BYTES):
        tally.bytes += len(chunk)
        end = chunk.rfind(b"\n") + 1
        if not end:
            rest = _bounded(rest + chunk, tally)
            continue
        first = chunk.find(b"\n") + 1
        head = _bounded_line(rest + chunk[:first], tally)
        yield readable(head + chunk[first:end], tally)
        rest = chunk[end:]
    if rest:
        yield readable(_bounded_line(rest, tally), tally)


def _bounded(line: bytes, tally: Tally) -> bytes:
    """The beginning of a line that goes on: not more than two blocks are kept."""
    return _cut(line) if len(line) > 2 * BLOCK_BYTES else line


def _bounded_line(line: bytes, tally: Tally) -> bytes:
    """A whole line; one that is longer than the bound is counted and cut."""
    if len(line) <= LINE_BYTES:
        return line
    tally.cut_lines += 1
    return _cut(line.rstrip(b"\n")) + (b"\n" if line.endswith(b"\n") else b"")


def _cut(line: bytes) -> bytes:
    if b"\r" in line:
        return line[: LINE_BYTES // 2] + b"\r" + line[-LINE_BYTES // 2 + 1 :]
    return line[:LINE_BYTES]


def readable(block: bytes, tally: Tally) -> bytes:
    """Without escape sequences and NULs, lines whole; invalid UTF-8 is counted (lines replace it)."""
    if b"\0" in block:
        tally.nul_bytes += block.count(b"\0")
        # Left out, not made a blank: UTF-16 text that a shell appended to a log is readable then.
        block = block.replace(b"\0", b"")
    if b"\x1b" in block:
        block = ANSI_BYTES.sub(b"", block)
    if not block.isascii():
        tally.bad_utf8 += _invalid(block)
    return rejoined(block)


def _invalid(block: bytes) -> int:
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        shown = block.decode("utf-8", "replace")
        return shown.count("\ufffd") - block.count(b"\xef\xbf\xbd")
    return 0
