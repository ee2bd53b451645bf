"""PyTorch's out-of-memory message in every wording since 1.0, on every backend.

The message is read piece by piece, not as one pattern: the wordings differ in which pieces they carry,
and pasted excerpts break them over lines. Wordings and constants: `c10/cuda/CUDACachingAllocator.cpp` of
the releases, `MPSAllocator.mm`, and the XPU and NPU back ends that follow them.
"""

from __future__ import annotations

import re
from typing import Final

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of
from kvprobe.observe.logs.readers.torch_sizes import SIZE, to_bytes

_BACKENDS: Final = (
    ("CUDA out of memory", "cuda"),
    ("HIP out of memory", "hip"),
    ("XPU out of memory", "xpu"),
    ("NPU out of memory", "npu"),
    ("MPS backend out of memory", "mps"),
)
_PIECES: Final = {
    "requested": re.compile(rf"[Tt]ried to allocate {SIZE}"),
    "total": re.compile(rf"total capac(?:i)?ty of {SIZE}|{SIZE} total capacity"),
    "free": re.compile(rf"of which {SIZE} is free|{SIZE} free[;)]"),
    "allocated": re.compile(rf"{SIZE} (?:is|are) allocated by PyTorch|{SIZE} already allocated"),
    "reserved_unallocated": re.compile(rf"{SIZE} is reserved by PyTorch but unallocated"),
    "reserved": re.compile(rf"{SIZE} reserved in total"),
    "cached": re.compile(rf"{SIZE} cached\)"),
    "own_process": re.compile(rf"[Tt]his process has {SIZE} memory in use"),
    "private_pools": re.compile(rf"with {SIZE} allocated in private pools"),
    "allowed": re.compile(rf"{SIZE} allowed;|max allowed: {SIZE}"),
    "mps_allocated": re.compile(rf"MPS allocated: {SIZE}"),
    "mps_other": re.compile(rf"other allocations: {SIZE}"),
}
_OTHERS: Final = re.compile(rf"Process (\d{{1,10}}) has {SIZE} memory in use")
_DEVICE: Final = re.compile(r"\b[GNX]PU (\d{1,3})\b")
_HEADLESS: Final = re.compile(
    rf"ried to allocate {SIZE}[.;]? .{{0,3}}GPU \d{{1,3}}[;.]? .{{0,12}}(?:total capac|{SIZE} total)"
)
"""An excerpt that begins after "CUDA out of memory." """
_MAX_JOINED = 4
_MESSAGE_CHARS = 4096
_WHOLE: Final = ("unallocated", "reserved in total", " cached)", " pool.", "max_split_size")


def _message(line: Line, around: Around) -> str:
    """The message, joined with the next lines where a terminal or a paste has broken it."""
    text = line.text
    if "Tried to allocate" not in text and "ried to allocate" not in "".join(n.text for n in around.after(1)):
        return text
    for following in around.after(_MAX_JOINED):
        if any(mark in text for mark in _WHOLE) or following.text.startswith(
            ("File ", "  File ", "Traceback")
        ):
            break
        text = f"{text} {following.text.strip()}"
    return text


def _read(line: Line, around: Around) -> list[Event]:
    backend = next((name for words, name in _BACKENDS if words in line.text), None)
    if (backend is None and _is_continuation(line, around)) or "when warming up " in line.text:
        return []
    text = _message(line, around)
    if backend is None:
        if _HEADLESS.search(text) is None:
            return []
        backend = "cuda"
    begin = max(0, text.find("out of memory"))
    text = text[begin : begin + _MESSAGE_CHARS]
    values = _sizes(text)
    if "requested" not in values:
        return [_without_size(line, backend)]
    values["backend"] = Value(backend)
    device = _DEVICE.search(text)
    if device:
        values["device"] = Value(int(device[1]))
    _settle_others(text, values)
    return [event_of(line, "torch_oom", values)]


def _is_continuation(line: Line, around: Around) -> bool:
    """The head of the message stands in this line or the one before: that one is read, with this."""
    said = line.text + "".join(before.text for before in around.before(1))
    return "ried to allocate" not in line.text or "out of memory" in said or "can NOT allocate" in said


def _sizes(text: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, pattern in _PIECES.items():
        found = pattern.search(text)
        if found:
            number, unit = (g for g in found.groups() if g is not None)
            values[name] = Value(to_bytes(number, unit), "B")
    _settle_reserved(values)
    return values


def _settle_reserved(values: dict[str, Value]) -> None:
    """One name for what is reserved and not allocated, whichever way the wording gives it.

    1.0 to 1.3 say "cached": some builds meant the unallocated part, others the total; less than what
    is allocated cannot be the total.
    """
    allocated = values.get("allocated")
    total = values.pop("reserved", None)
    cached = values.pop("cached", None)
    if allocated is None or "reserved_unallocated" in values:
        return
    if total is None and cached is not None:
        total = cached if cached.value >= allocated.value else Value(allocated.value + cached.value, "B")
    if total is not None:
        values["reserved_unallocated"] = Value(max(0, total.value - allocated.value), "B")


def _settle_others(text: str, values: dict[str, Value]) -> None:
    """Other processes of the device. In a container the own process has a foreign number: it is the
    smallest clause that can hold what this allocator reserved, and only where none is named ours."""
    found = [(int(pid), to_bytes(n, u)) for pid, n, u in _OTHERS.findall(text)]
    if not found or not {"own_process", "allocated"} & values.keys():
        return  # a broken paste: without our own share no clause is known to be another's
    if "own_process" not in values and "allocated" in values:
        unallocated = values.get("reserved_unallocated")
        held = values["allocated"].value + (unallocated.value if unallocated else 0)
        able = sorted((b, pid) for pid, b in found if b >= 0.99 * held)
        if able:
            values["own_process"] = Value(able[0][0], "B")
            found = [f for f in found if f[0] != able[0][1]]
    if found:
        values["others"] = Value(sum(b for _, b in found), "B")
        values["others_list"] = Value([{"pid": pid, "bytes": b} for pid, b in found])


def _without_size(line: Line, backend: str) -> Event:
    return event_of(line, "cuda_oom", {"backend": Value(backend), "where": Value("torch")})


READERS: Final = (
    Reader(
        name="torch_oom",
        engine=None,
        anchors=(*(words for words, _ in _BACKENDS), "ried to allocate "),
        read=_read,
    ),
)
