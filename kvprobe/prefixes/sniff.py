"""Is a file a log of requests? Asked of every file that is diagnosed, so that nothing heavy is imported."""

from __future__ import annotations

import json

from kvprobe.errors import KvprobeError
from kvprobe.observe.logs import sources
from kvprobe.observe.logs.blocks import ByteStream
from kvprobe.observe.logs.tally import Tally
from kvprobe.prefixes.openai_form import body_of

_SNIFF_BYTES = 1 << 20
_SNIFF_LINES = 50


def is_request_log(path: str) -> bool:
    """Is the first line that is not blank a request, or at least every other of the first lines? Never
    raises."""
    try:
        with sources.opened(path, Tally()) as source:
            head = _read(source.stream, _SNIFF_BYTES)
    except (OSError, KvprobeError):
        return False
    lines = [line for line in head.split(b"\n") if line.strip()]
    if len(head) >= _SNIFF_BYTES and len(lines) > 1:
        lines.pop()  # cut
    verdicts = [_is_request(line) for line in lines[:_SNIFF_LINES]]
    return bool(verdicts) and (verdicts[0] or 2 * sum(verdicts) >= len(verdicts))


def _is_request(line: bytes) -> bool:
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        return body_of(json.loads(line)) is not None
    except (ValueError, RecursionError):
        # A line that is longer than what was looked at: its keys stand at its start.
        return len(line) >= _SNIFF_BYTES // 2 and (b'"messages"' in line or b'"prompt"' in line)


def _read(stream: ByteStream, size: int) -> bytes:
    parts = []
    while size > 0 and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
