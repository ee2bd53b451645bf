"""Reading the spool of a run while it grows: whole lines only, each once, bounded in one turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvprobe.evidence.spool import Item, decode_line, open_regular

MAX_READ_BYTES = 8 << 20
"""Of one file in one turn: what is left comes in the next."""


@dataclass(slots=True)
class _File:
    path: Path
    offset: int = 0
    rest: bytes = b""

    def lines(self) -> Iterator[bytes]:
        """Whole lines that came since the last time."""
        try:
            with open_regular(self.path) as file:
                file.seek(self.offset)
                data = file.read(MAX_READ_BYTES)
        except OSError:  # not there yet, or gone: what it held is judged at the end
            return
        self.offset += len(data)
        *whole, self.rest = (self.rest + data).split(b"\n")
        yield from whole


@dataclass(slots=True)
class SpoolTail:
    """All `*.jsonl` files of a folder; new ones are found as they appear."""

    folder: Path
    _files: dict[Path, _File] = field(default_factory=dict)

    def items(self) -> Iterator[Item]:
        """What was written since the last time. Never raises for what stands in the files."""
        for path in sorted(self.folder.glob("*.jsonl")):
            for line in self._files.setdefault(path, _File(path)).lines():
                item = decode_line(line.strip()) if line else None
                if item is not None:
                    yield item
