"""GPUs by name, or by the size of their memory.

A budget multiplies the total that the driver reports, not the figure on the box: "40 GB" is 39.5 GiB.
Each device says where its total is from. Nothing unknown is guessed; ambiguous names are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from functools import cache

from kvprobe.errors import Problem, UsageError
from kvprobe.model.device_table import TABLE, WHITE_PAPERS

GIB = 1 << 30
_UNITS = {"GiB": GIB, "GB": 10**9, "MiB": 1 << 20, "MB": 10**6, "TiB": 1 << 40, "TB": 10**12}
_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?(GiB|GB|MiB|MB|TiB|TB)\Z")
_GENERATION = re.compile(r"(sxm|hbm)[0-9]e?")
_WORDS = re.compile(r"[a-z]+|[0-9]+")
_NOISE = frozenset(("nvidia", "geforce", "amd", "instinct", "tesla", "radeon", "intel", "gpu", "quadro"))
_FORM = frozenset(("sxm", "pcie", "hbm", "nvl"))
"""Words of a board's form, which drivers print and the table names only where they change something."""
_MAX_NAME_CHARS = 100
_TERA = 1e12
_PEAKS = ("bf16", "fp8", "fp4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU.

    `memory_bytes` is what the driver reports where that is known, else what the vendor markets;
    `memory_source` says which. `peak_flops` is dense, in FLOP/s by dtype (`bf16`, `fp8`, `fp4`); a dtype
    that is not there is not known. `bandwidth_bytes_per_s` is null where it is not known.
    """

    name: str
    memory_bytes: int
    memory_source: str
    marketed: str | None = None
    bandwidth_bytes_per_s: float | None = None
    peak_flops: dict[str, float] = field(default_factory=dict)
    source: str = ""
    unified_memory: bool = False


def device(name: str) -> Device:
    """The GPU called `name` in any usual spelling, or one of a given memory (`80GiB`, `80GB`).

    Raises UsageError for a name that is unknown or fits several GPUs of the table, and for a bare number.
    """
    text = name.strip()
    if len(text) > _MAX_NAME_CHARS:
        raise _unknown(text[:40] + "...")
    size = _SIZE.match(text)
    if size is not None:
        return _sized(text, size)
    if re.fullmatch(r"[0-9.]+", text):
        raise UsageError(
            Problem(
                code="size_without_unit",
                message=f"{text!r} has no unit",
                fix=f"write {text}GiB (2^30 bytes) or {text}GB (10^9 bytes), or a GPU's name",
            )
        )
    return _named(text)


def _sized(text: str, size: re.Match[str]) -> Device:
    memory = int(Decimal(size[1]) * _UNITS[size[2]])
    if memory <= 0:
        raise UsageError(
            Problem(code="size_zero", message=f"{text!r} is no memory size", fix="write a size such as 80GiB")
        )
    return Device(name=text, memory_bytes=memory, memory_source="as given")


def _named(text: str) -> Device:
    wanted = _key(text)
    bare = tuple(word for word in wanted if word not in _FORM)
    for key in (wanted, bare):
        exact = [found for keys, found in _catalogue() if key in keys]
        if len(exact) == 1:
            return exact[0]
    parts = set(wanted)
    near = [found for keys, found in _catalogue() if any(parts <= set(key) for key in keys)] if parts else []
    if len(near) == 1:
        return near[0]
    if near:
        raise UsageError(
            Problem(
                code="ambiguous_gpu",
                message=f"{text!r} fits {len(near)} GPUs",
                fix=f"write one of: {', '.join(found.name for found in near[:12])}",
            )
        )
    raise _unknown(text)


def _unknown(text: str) -> UsageError:
    names = [found.name for _, found in _catalogue()]
    close = get_close_matches(text.lower(), [name.lower() for name in names], n=3, cutoff=0.5)
    shown = [name for name in names if name.lower() in close] or names[:6]
    return UsageError(
        Problem(
            code="unknown_gpu",
            message=f"no GPU called {text!r} is in the table",
            fix=f"give its memory, such as --gpu 80GiB, or a known name: {', '.join(shown)}",
        )
    )


def _key(text: str) -> tuple[str, ...]:
    """The words of a name: vendor names out, letters and numbers apart, `80g` and `80gib` as `80gb`."""
    plain = _GENERATION.sub(r"\1", text.lower())
    words = [word for word in _WORDS.findall(plain) if word not in _NOISE]
    return tuple("gb" if word in ("g", "gib") else word for word in words)


@cache
def _catalogue() -> tuple[tuple[frozenset[tuple[str, ...]], Device], ...]:
    """Each device with the keys that name it exactly."""
    lines = [line for line in TABLE.splitlines() if line and not line.startswith("#")]
    return tuple(_row([cell.strip() for cell in line.split("|")]) for line in lines)


def _row(cells: list[str]) -> tuple[frozenset[tuple[str, ...]], Device]:
    """One line of the table: its keys and its device."""
    name, spellings, marketed, reported, smi, bandwidth, *peaks, source = cells
    memory, memory_source = _memory(marketed, reported, smi)
    found = Device(
        name=name,
        memory_bytes=memory,
        memory_source=memory_source,
        marketed=marketed,
        bandwidth_bytes_per_s=float(bandwidth) * 1e9 if bandwidth else None,
        peak_flops={
            dtype: float(peak) * _TERA
            for dtype, peak in zip(("bf16", "fp8", "fp4"), peaks, strict=True)
            if peak
        },
        source=WHITE_PAPERS.get(source, f"vendor's data sheet: {source}"),
        unified_memory="unified" in marketed,
    )
    keys = frozenset(_key(spelling) for spelling in (name, *spellings.split(",")) if spelling.strip())
    return keys, found


def _memory(marketed: str, reported: str, smi: str) -> tuple[int, str]:
    """Bytes, and what figure they are: the runtime's total, nvidia-smi's, or the marketed one."""
    if reported.endswith("?"):
        total = reported.removesuffix("?")
        return round(float(total) * GIB), f"about {total} GiB as commonly reported, not checked against a log"
    if reported:
        return round(float(reported) * GIB), f"{reported} GiB, the total that engines print (CUDA or ROCm)"
    if smi:
        return int(smi) << 20, f"{smi} MiB, the total of nvidia-smi; engines see somewhat less"
    number = int(marketed.split()[0])
    return number * 10**9, f"marketed as {marketed}; what the driver reports is not known"


def known_devices() -> tuple[Device, ...]:
    """All devices of the table, in its order."""
    return tuple(found for _, found in _catalogue())


def next_larger(memory_bytes: int) -> Device | None:
    """The smallest server GPU with at least an eighth more memory than `memory_bytes`; null at the top."""
    better = [
        found
        for found in known_devices()
        if found.name in _LADDER and found.memory_bytes > memory_bytes * 9 / 8
    ]
    return min(better, key=lambda found: found.memory_bytes, default=None)


_LADDER = frozenset(
    ("T4", "L4", "L40S", "A100 SXM 80GB", "H200 SXM 141GB", "B200 180GB", "B300 288GB", "MI325X", "MI355X")
)
"""What a larger machine would be: common server GPUs, one of each size."""
