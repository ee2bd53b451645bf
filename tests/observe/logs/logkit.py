"""Logs for the tests: readers of invented lines, and an out-of-memory with numbers of its own."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.blocks import blocks
from kvprobe.observe.logs.folding import Fold
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.scan import Scanner
from kvprobe.observe.logs.tally import Tally

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of "
    "39.50 GiB of which 602.00 MiB is free. Process 4711 has 38.90 GiB memory in use. Of the allocated "
    "memory 36.25 GiB is allocated by PyTorch, and 1.12 GiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
    "to avoid fragmentation."
)
_MARK = re.compile(r"MARKER-LINE n=(\d{1,12})(?: size=(\d{1,12}))?")


def _read(line: Line, around: Around) -> Iterable[Event]:
    found = _MARK.search(line.text)
    if found is None:
        return []
    values = {"n": Value(int(found[1]), "count")}
    if found[2]:
        values["size"] = Value(int(found[2]), "B")
    above, below = around.before(2), around.after(2)
    values["above"] = Value([x.text for x in above])
    values["below"] = Value([x.text for x in below])
    return [Event(name="mark", source=line.source, line=line.number, text=line.text, values=values)]


MARKER = Reader(name="marker", engine=None, anchors=("MARKER-LINE",), read=_read)


def scan(
    data: bytes | str, readers: Sequence[Reader] = (MARKER,), *, fold: bool = False
) -> tuple[list[Event], Tally]:
    """Events and counts of bytes in memory, without the intake around."""
    raw = data.encode() if isinstance(data, str) else data
    tally, kept, folded = Tally(), list[Event](), Fold()
    keep = folded.add if fold else kept.append
    Scanner(readers).scan("x.log", blocks(io.BytesIO(raw), tally), tally, keep)
    return (folded.events() if fold else sorted(kept, key=lambda e: e.line)), tally
