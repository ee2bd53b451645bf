"""What tells the unit of prefix reuse, and what an offload of KV to the host found there."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of, signature, table_reader

_SIZES = re.compile(
    r"(?:block[_ ]sizes?\b.{0,24}?|LCM ?)[\[({] ?(?P<sizes>\d{1,6}(?:, ?\d{1,6}){1,11}) ?[\])}]"
)
_UNIT = re.compile(r"scheduler_block_size ?[=:] ?(?P<unit>\d{1,6})\b")
_MOST = 1 << 20


def _alignment(line: Line, around: Around) -> Iterable[Event]:
    """Groups of layers with blocks of their own: a hit has to end on a multiple of all of them."""
    found, unit = _SIZES.search(line.text), _UNIT.search(line.text)
    sizes = [int(n) for n in found["sizes"].split(",")] if found is not None else []
    if unit is not None:
        tokens = int(unit["unit"])
    elif len(sizes) > 1 and all(sizes):
        tokens = math.lcm(*sizes)
    else:
        return
    if 0 < tokens <= _MOST:
        values = {"unit": Value(tokens, "tokens")}
        if sizes:
            values["sizes"] = Value(", ".join(str(n) for n in sizes))
        yield event_of(line, "block_alignment", values, engine="vllm")


_LMCACHE = (
    signature(
        "offload_lookup",
        "LMCache hit tokens",
        r"Total tokens (?P<total__tokens>\d+), LMCache hit tokens: (?P<hits__tokens>\d+), "
        r"need to load: (?P<load__tokens>-?\d+)",
        phase="serve",
    ),
)

READERS: tuple[Reader, ...] = (
    Reader(
        name="prefix alignment",
        engine="vllm",
        anchors=("block_sizes", "block sizes", "scheduler_block_size", "LCM("),
        read=_alignment,
    ),
    table_reader("lmcache", "vllm", _LMCACHE),
)
