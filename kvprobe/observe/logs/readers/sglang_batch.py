"""SGLang's line for each batch, of every version, and the check of its pool's books."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of

ENGINE = "sglang"

_BATCH = re.compile(r"(?P<kind>Prefill|Decode) batch")
_NAMES: dict[str, tuple[str, str]] = {
    "#running-req": ("running", "count"),
    "#queue-req": ("waiting", "count"),
    "token usage": ("kv_usage", "ratio"),
    "full token usage": ("full_usage", "ratio"),
    "swa token usage": ("swa_usage", "ratio"),
    "mamba usage": ("state_usage", "ratio"),
    "#token": ("used_tokens", "tokens"),
    "#full token": ("used_tokens", "tokens"),
    "#new-token": ("new_tokens", "tokens"),
    "#cached-token": ("cached_tokens", "tokens"),
    "#new-seq": ("new_requests", "count"),
    "gen throughput (token/s)": ("generation_tokens_per_s", "tokens/s"),
    "input throughput (token/s)": ("prompt_tokens_per_s", "tokens/s"),
    "#new_token": ("new_tokens", "tokens"),
    "#cached_token": ("cached_tokens", "tokens"),
    "#remaining_req": ("waiting", "count"),
    "#running_req": ("running", "count"),
}
_OLD = re.compile(r"(?P<name>#[a-z_]{3,16}): (?P<value>\d+)\.")
_OLD_RATE = re.compile(r"tree_cache_hit_rate: ([\d.]+)%")


def _batch(line: Line, around: Around) -> Iterable[Event]:
    """`Prefill batch` and `Decode batch` of every version; the old `new fill batch` too."""
    text = line.text
    values: dict[str, Value] = {}
    for name, number in _old_pairs(text) if "new fill batch" in text else _pairs(text):
        known = _NAMES.get(name)
        if known is not None and known[0] not in values:
            whole = known[1] in {"count", "tokens"}
            values[known[0]] = Value(int(number) if whole else number, known[1])
    if (rate := _OLD_RATE.search(text)) is not None:
        values["prefix_hit_rate"] = Value(float(rate[1]) / 100, "ratio")
    if "kv_usage" not in values and "full_usage" in values:
        values["kv_usage"] = values["full_usage"]
    if "running" not in values and "kv_usage" not in values:
        return
    if (kind := _BATCH.search(text)) is not None:
        values["batch"] = Value(kind["kind"].lower())
    yield event_of(line, "engine_stats", values, engine=ENGINE, phase="serve")


def _pairs(text: str) -> Iterable[tuple[str, float]]:
    """`name: number` between commas; these lines come by the million, so no pattern is used."""
    for part in text.split(","):
        name, _, number = part.rpartition(":")
        try:
            value = float(number)
        except ValueError:
            continue
        yield name.rpartition(". ")[2].strip(), value


def _old_pairs(text: str) -> Iterable[tuple[str, float]]:
    return ((found["name"], float(found["value"])) for found in _OLD.finditer(text))


_LEAK_NUMBERS = re.compile(
    r"(?P<name>[\w.]{0,60}?(?:size|num_tokens?|available|evictable|protected)(?:\(\))?)=(?P<value>-?\d+)"
)
_LEAK = re.compile(r"memory leak detected|cache pool leak detected|: Mem Leak Detected!")


def _leak(line: Line, around: Around) -> Iterable[Event]:
    """The pool's books do not balance: total - available - evictable - protected is not 0."""
    if _LEAK.search(line.text) is None:
        return
    numbers: dict[str, int] = {}
    for source in (line, *around.after(4)):
        if source is not line and "_size" not in source.text and "mamba" not in source.text:
            break
        for found in _LEAK_NUMBERS.finditer(source.text):
            numbers.setdefault(found["name"], int(found["value"]))
    values = _books(numbers)
    pool = re.search(r"([\w-]{3,40}) memory leak", line.text)
    values["pool"] = Value(pool[1] if pool else "KV cache pool")
    yield event_of(line, "kv_leak", values, engine=ENGINE, phase="serve")


def _books(numbers: dict[str, int]) -> dict[str, Value]:
    """Total, available, evictable and protected tokens of the first pool that is named.

    Some versions print a first `available_size` that includes the evictable part, and the parts by
    themselves below it (`….available_size()`): the parts are taken.
    """
    found: dict[str, int] = {}
    calls_first = sorted(numbers.items(), key=lambda item: not item[0].endswith("available_size()"))
    for name, value in calls_first:
        if "mamba" in name or "swa" in name:
            continue
        for key, parts in _BOOK_NAMES.items():
            if any(part in name for part in parts):
                found.setdefault(key, value)
                break
    return {key: Value(value, "tokens") for key, value in found.items()}


_BOOK_NAMES: dict[str, tuple[str, ...]] = {
    "available": ("available",),
    "evictable": ("evictable",),
    "protected": ("protected",),
    "total": ("max_total_num_token", "total_size", "allocator.size", "pool.size"),
}


READERS: tuple[Reader, ...] = (
    Reader(
        name="sglang batch",
        engine=ENGINE,
        anchors=("Prefill batch", "Decode batch", "new fill batch", "token usage:"),
        read=_batch,
    ),
    Reader(
        name="sglang leak",
        engine=ENGINE,
        anchors=("memory leak detected", "pool leak detected", "Mem Leak Detected"),
        read=_leak,
    ),
)
