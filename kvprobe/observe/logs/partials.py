"""Lines that a container runtime cut at 16 KiB, put together again.

CRI marks the pieces (`P`, the last one `F`); Docker's json-file leaves the line end off all but the last. The
whole stands on the line of its first piece, and the other lines stay as empty ones: line numbers do not move.
Source: the log format of Kubernetes' CRI, and Docker's `daemon/logger/copier.go` (its buffer size).
"""

from __future__ import annotations

import re

from kvprobe.observe.logs.entries import LINE_BYTES

_CRI = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d) (stdout|stderr) ([PF]) ")
_JSON = re.compile(
    rb'\{"log":"(?P<text>.*)(?P<rest>","stream":"(?P<stream>stdout|stderr)","time":"[^"]{1,60}"\})\s*$'
)
_SHORTEST_PIECE = 8 * 1024
"""Docker cuts at 16 KiB of text; a shorter record without a line end is a whole one."""


def rejoined(block: bytes) -> bytes:
    """The block with as many lines as before."""
    if b"stdout P " in block or b"stderr P " in block:
        block = _joined_cri(block)
    if b'{"log":"' in block:
        block = _joined_json(block)
    return block


def _joined_cri(block: bytes) -> bytes:
    lines = block.split(b"\n")
    open_at: dict[bytes, int] = {}
    for i, line in enumerate(lines):
        found = _CRI.match(line)
        if found is None:
            continue
        stream, kind = found[1], found[2]
        first = open_at.get(stream)
        if first is not None:
            lines[first] = _longer(lines[first], line[found.end() :])
            lines[i] = b""
        elif kind == b"P":
            open_at[stream] = i
        if kind == b"F":
            open_at.pop(stream, None)
    return b"\n".join(lines)


def _joined_json(block: bytes) -> bytes:
    lines = block.split(b"\n")
    open_at: dict[bytes, int] = {}
    for i, line in enumerate(lines):
        if not line.startswith(b'{"log":"') or not (open_at or len(line) >= _SHORTEST_PIECE):
            continue
        found = _JSON.match(line)
        if found is None:
            continue
        stream, goes_on = found["stream"], not found["text"].endswith(b"\\n") and len(line) >= _SHORTEST_PIECE
        first = open_at.get(stream)
        if first is not None:
            lines[first] = _within(lines[first], found["text"])
            lines[i] = b""
        elif goes_on:
            open_at[stream] = i
        if not goes_on:
            open_at.pop(stream, None)
    return b"\n".join(lines)


def _longer(line: bytes, more: bytes) -> bytes:
    return line + more if len(line) < LINE_BYTES else line


def _within(line: bytes, more: bytes) -> bytes:
    """The record with more text; what would not fit into a line is left out, so that it stays a record."""
    found = _JSON.match(line)
    if found is None or len(line) + len(more) > LINE_BYTES:
        return line
    return b'{"log":"' + found["text"] + more + found["rest"]
