"""PyTorch's out-of-memory of the `cudaMallocAsync` back end, and the allocator's own warning.

The asynchronous back end prints a small table, one figure a line (or with `\\n` where a log quotes it):

    Allocation on device 0 would exceed allowed memory. (out of memory)
    Currently allocated     : 16.08 GiB
    Requested               : 4.83 GiB
    Device limit            : 22.20 GiB
    Free (according to CUDA): 11.12 MiB

What the driver's pool keeps is not told, so nothing may be concluded of pieces or of other processes. The
warning of the caching allocator prints plain bytes.
"""

from __future__ import annotations

import re
from typing import Final

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of
from kvprobe.observe.logs.readers.torch_sizes import SIZE, to_bytes

_TABLE: Final = {
    "requested": re.compile(rf"Requested\s{{0,20}}: {SIZE}"),
    "total": re.compile(rf"Device limit\s{{0,20}}: {SIZE}"),
    "free": re.compile(rf"Free \(according to CUDA\)\s{{0,8}}: {SIZE}"),
    "pool_allocated": re.compile(rf"Currently allocated\s{{0,20}}: {SIZE}"),
}
_WARNING: Final = re.compile(
    r"OOM on device (?P<device>\d{1,3})\s{1,4}while trying to allocate (?P<requested>\d{1,16}) bytes "
    r"\(free: (?P<free>\d{1,16}), total: (?P<total>\d{1,16})\)"
)
_JOINED = 7


def _table(line: Line, around: Around) -> list[Event]:
    text = "\n".join([line.text, *[following.text for following in around.after(_JOINED)]])
    values: dict[str, Value] = {"backend": Value("cuda_async")}
    for name, pattern in _TABLE.items():
        found = pattern.search(text)
        if found is not None:
            values[name] = Value(to_bytes(*found.groups()), "B")
    if "requested" not in values:
        return [event_of(line, "cuda_oom", {"backend": Value("cuda_async"), "where": Value("torch")})]
    return [event_of(line, "torch_oom", values, phase="profile" if "warmup" in line.text else None)]


def _bare(line: Line, around: Around) -> list[Event]:
    """ComfyUI and others print the first words only: no size, no free bytes."""
    if "would exceed" in line.text:
        return []
    following = around.after(1)
    if following and "would exceed" in following[0].text:
        return []
    values = {"backend": Value("cuda_async"), "where": Value("torch")}
    return [event_of(line, "cuda_oom", values)]


def _warning(line: Line, around: Around) -> list[Event]:
    text = " ".join([line.text.strip(), *[following.text.strip() for following in around.after(1)]])
    found = _WARNING.search(text)
    if found is None:
        return []
    values = {name: Value(int(found[name]), "B") for name in ("requested", "free", "total")}
    values |= {"device": Value(int(found["device"])), "backend": Value("cuda")}
    return [event_of(line, "torch_oom", values)]


READERS: Final = (
    Reader(name="torch_async", engine=None, anchors=("would exceed allowed memory",), read=_table),
    Reader(
        name="torch_async_bare",
        engine=None,
        anchors=("OutOfMemoryError: Allocation on device",),
        read=_bare,
    ),
    Reader(
        name="torch_warning",
        engine=None,
        anchors=("memory allocation failed with OOM on device",),
        read=_warning,
    ),
)
