"""The Linux OOM killer (global and cgroup), systemd-oomd, earlyoom, macOS jetsam.

The victim and the process that invoked the killer may both be innocent: the table of tasks, in pages,
names the largest. Pinned (page-locked) memory stands in no rss figure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of, signature, table_reader

_PAGE = 4096

_ROWS = (
    signature("oom_invoked", "invoked oom-killer", r"(?P<process__text>\S[^\]]{0,40}?) invoked oom-killer"),
    signature(
        "killed",
        "oom-kill:constraint=",
        r"constraint=(?P<constraint__text>CONSTRAINT_\w+).{0,600}?"
        r"task=(?P<process__text>[^,]{1,40}),pid=(?P<pid__text>\d+)",
        how="kernel",
    ),
    signature(
        "killed",
        "ut of memory: Kill",
        r"(?P<scope__text>Memory cgroup out of memory|[Oo]ut of memory): "
        r"Kill(?:ed)? process (?P<pid__text>\d+)"
        r"(?:, UID \d+,)? \((?P<process__text>[^)]{1,40})\)?"
        r"(?:.{0,30}?total-vm:(?P<virtual__kB>[\d,]+)kB)?(?:, anon-rss:(?P<anon__kB>[\d,]+)kB)?"
        r"(?:, file-rss:(?P<file_mapped__kB>[\d,]+)kB)?(?:, shmem-rss:(?P<shared__kB>[\d,]+)kB)?",
        how="kernel",
    ),
    signature(
        "killed",
        "Killed process ",
        r"^Killed process (?P<pid__text>\d+)(?:, UID \d+,)? \((?P<process__text>[^)]{1,40})\) "
        r"total-vm:(?P<virtual__kB>\d+)kB, anon-rss:(?P<anon__kB>\d+)kB",
        how="kernel",
    ),
    signature("killed", "Namespace JETSAM", r"Namespace JETSAM, Code", how="jetsam"),
    signature(
        "killed",
        "oom_reaper: reaped process",
        r"reaped process (?P<pid__text>\d+) \((?P<process__text>[^)]{1,40})\)",
        how="kernel",
    ),
    signature(
        "cgroup_limit",
        "failcnt",
        r"memory: usage (?P<used__kB>\d+)kB, limit (?P<limit__kB>\d+)kB, failcnt (?P<failures__count>\d+)",
    ),
    signature("killed", "killed by the OOM killer", r"killed by the OOM killer", how="kernel"),
    signature("killed", "Failed with result 'oom-kill'", r"oom-kill", how="kernel"),
    signature("killed", "Out of memory (OOM) killer", r"killer", how="kernel"),
    signature(
        "killed",
        "systemd-oomd",
        r"Killed (?P<process__text>\S{1,200}) due to memory (?:pressure|used)",
        how="systemd-oomd",
    ),
    signature(
        "killed",
        "earlyoom",
        r"sending SIG(?:KILL|TERM) to process (?P<pid__text>\d+).{0,30}?\"(?P<process__text>[^\"]{1,40})\"",
        how="earlyoom",
    ),
    signature(
        "killed",
        "OOMController",
        r"Sending SIGKILL to (?:cgroup|process)",
        how="user-space OOM controller",
    ),
    signature(
        "killed",
        "lowmemorykiller: Kill",
        r"Kill(?:ing)? '(?P<process__text>[^']{1,80})' \((?P<pid__text>\d+)",
        how="Android's low-memory killer",
    ),
    signature(
        "killed",
        "memorystatus: killing",
        r"memorystatus: killing_?\w* ?(?:process )?(?:pid )?(?P<pid__text>\d+)? ?"
        r"\[?(?P<process__text>[\w.-]{1,40})",
        how="jetsam",
    ),
    signature(
        "signal",
        "status=9/KILL",
        r"Main process exited, code=killed, status=9/KILL",
        how="systemd",
        signal=9,
    ),
    signature("nvmap_refused", "NvMapMemAllocInternalTagged", r"NvMapMemAlloc\w{1,30}: \d+ error 12\b"),
    signature("bus_error", "us error", r"[Bb]us error(?:.{0,80}(?P<shared_memory__text>shared memory|shm))?"),
)

_TASK = re.compile(r"\[ *\d+\] +\d+ +\d+ +(\d+) +(\d+) +.{0,80}? (-?\d+) (\S.{0,30})$")
_TABLE_HEAD = re.compile(r"\[ *pid *\] +uid +tgid +total_vm +rss")


def _table(line: Line, around: Around) -> Iterable[Event]:
    """The largest tasks of the killer's table; rows are in pages of 4 KiB."""
    if _TABLE_HEAD.search(line.text) is None:
        return
    largest: tuple[int, str] | None = None
    for row in around.after(32):
        found = _TASK.search(row.text)
        if found is not None:
            rss = int(found[2]) * _PAGE
            if largest is None or rss > largest[0]:
                largest = (rss, found[4].strip())
    if largest is not None:
        values = {"rss": Value(largest[0], "B"), "process": Value(largest[1])}
        yield event_of(line, "oom_largest_task", values)


READERS: tuple[Reader, ...] = (
    table_reader("kernel", None, _ROWS),
    Reader(name="kernel task table", engine=None, anchors=("total_vm",), read=_table),
)
