"""What the GPU driver reports: NVIDIA Xid events and lost devices, AMD resets; also as pasted excerpts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of, signature, table_reader

_NVRM = re.compile(
    r"Xid \(PCI:(?P<device>[0-9a-fA-F:.]{4,16})\)?: ?(?P<code>\d{1,3})\b"
    r"(?:,? ?pid=(?P<pid>\d+|'<unknown>'|<unknown>))?(?:,? ?name=(?P<process>[^,]{1,60}))?"
)
_BARE = re.compile(r"\bX[Ii][Dd](?:[ _-]?(?:error|code|event))?[ :#=(]{0,4}(?P<code>\d{1,3})\b(?!\d|[.:]\d)")
_CAUSED = re.compile(r"caused by previous Xid (\d{1,3})")


def _xid(line: Line, around: Around) -> Iterable[Event]:
    """An Xid with its device and process; a bare `Xid 79` of an excerpt too."""
    if line.text.count("Xid") > 6:
        return
    found = _NVRM.search(line.text)
    short = None if found is not None else _BARE.search(line.text)
    match = found or short
    if match is None:
        return
    values = {"code": Value(int(match["code"]))}
    if found is not None:
        for name in ("device", "pid", "process"):
            if found[name]:
                values[name] = Value(found[name])
    before = _CAUSED.search(line.text)
    if before is not None:
        values["caused_by"] = Value(int(before[1]))
    yield event_of(line, "xid", values)


_ROWS = (
    signature("device_off_bus", "fallen off the bus", r"fallen off the bus"),
    signature("device_off_bus", "GPU is lost", r"GPU is lost"),
    signature("device_off_bus", "GPU access blocked by the operating system", r"access blocked"),
    signature(
        "nvml_unreachable", "Unable to determine the device handle", r"Unable to determine the device handle"
    ),
    signature(
        "nvml_unreachable",
        "nvidia-smi",
        r"nvidia-smi.{0,40}(?:hangs?\b|hung|does not (?:return|respond)|stuck)",
    ),
    signature("nvml_unreachable", "No devices were found", r"No devices were found"),
    signature("gsp_timeout", "GSP RM heartbeat timed out", r"heartbeat timed out"),
    signature("gsp_timeout", "Heartbeat timed out", r"_kgsp\w{1,40}: Heartbeat timed out"),
    signature("gsp_timeout", "GSP Timeout", r"_kgsp\w{1,40}: \*+ GSP Timeout"),
    signature("driver_mismatch", "river/library version mismatch", r"version mismatch"),
    signature("adapter_failed", "RmInitAdapter failed", r"RmInitAdapter failed"),
    signature("amd_fault", "HW Exception by GPU", r"HW Exception by GPU node-\d+"),
    signature("amd_fault", "MES failed to respond", r"MES failed to respond to msg"),
    signature("amd_fault", "amdgpu", r"amdgpu.{0,60}(?:ring \S+ timeout|GPU reset begin|page fault)"),
    signature(
        "collective_timeout",
        "collective operation timeout",
        r"collective operation timeout: Work\w{2,6}\(SeqNum=\d+, OpType=(?P<operation__text>\w+)"
        r"(?:.{0,200}?ran for (?P<ran__ms>\d+) milliseconds)?",
    ),
)

READERS: tuple[Reader, ...] = (
    Reader(name="xid", engine=None, anchors=("Xid", "XID", "xid"), read=_xid),
    table_reader("gpu driver", None, _ROWS),
)
