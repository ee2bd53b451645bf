"""Resident memory of a process as monitors, engines and people write it: `RSS: 12.5 GiB`, `rss=900MiB`,
`worker_rss_kb 280032560 -> 280235436`, `Worker RSS ~= 234.1 GiB`, `VmRSS:  1234 kB`.

Readings belong to one series when what stands before them is the same but for its digits (dates, pids).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of, size_bytes

_NUMBER = r"\d[\d,]{0,20}(?:\.\d{1,6})?"
_UNIT = r"(?: ?([KMGT]i?B|kB))?"
_RSS = re.compile(
    r"(?<![-\w])(?P<name>(?:\w{1,30}_)?(?:VmRSS|RSS|rss))(?:_(?P<suffix>kb|mb|gb|kib|mib|gib|bytes))?\b['\"]?"
    r"(?P<sep>\s{0,3}(?:~=|≈|[=:~]|\bis\b|\bat\b|\bof\b|\bfrom\b|)\s{0,4})"
    rf"~?(?P<first>{_NUMBER}){_UNIT}(?:\s{{0,3}}(?:→|->|=>|to)\s{{0,3}}~?(?P<then>{_NUMBER}){_UNIT})?"
)
_MOST_IN_A_LINE = 8
_SUBJECT_CHARS = 60
_SUFFIX = {"bytes": "B", "kb": "kB", "mb": "MB", "gb": "GB", "kib": "KiB", "mib": "MiB", "gib": "GiB"}
_DIGITS = re.compile(r"[\d.:]+")


def _read(line: Line, around: Around) -> Iterable[Event]:
    for found in islice(_RSS.finditer(line.text), _MOST_IN_A_LINE):
        name, suffix = found["name"], found["suffix"]
        if name == "rss" and suffix is None and "=" not in found["sep"]:
            continue  # the kernel's cgroup counters (`rss:12KB`) are no process
        before = line.text[max(0, found.start() - _SUBJECT_CHARS) : found.start()]
        subject = _DIGITS.sub("", f"{before}{name}").strip()
        printed = found[5] or found[7] or _SUFFIX.get(suffix or "")
        for number, unit in ((found["first"], found[5]), (found["then"], found[7])):
            used = unit or printed
            value = size_bytes(f"{number.replace(',', '')} {used}") if number and used else None
            if value is not None:
                yield event_of(line, "host_rss", {"rss": Value(value, "B"), "subject": Value(subject)})


READERS: tuple[Reader, ...] = (
    Reader(
        name="resident memory",
        engine=None,
        anchors=("RSS: ", "RSS ", "RSS=", "rss=", "rss_kb", "rss_mb", "rss_gb", "rss_bytes", "VmRSS:"),
        read=_read,
    ),
)
