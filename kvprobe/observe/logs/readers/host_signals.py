"""SIGKILL as the programs around a server tell it: shells, launchers, supervisors, batch systems.

A batch system that counts kernel OOM kills (Slurm, ECS) is a record of the kill; the others know only the
signal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of, signature, table_reader

_RECORDS = (
    signature("killed", "oom_kill event", r"Detected \d+ oom_kill event", how="Slurm (its memory limit)"),
    signature("killed", "oom-kill event", r"Detected \d+ oom-kill event", how="Slurm (its memory limit)"),
    signature("killed", "Exceeded job memory limit", r"Exceeded job memory", how="Slurm (its memory limit)"),
    signature(
        "killed",
        "OUT_OF_MEMORY",
        r"^(?:State: *|\S{1,40} +)OUT_OF_ME\w{1,4}\b",
        how="Slurm (its memory limit)",
    ),
    signature(
        "killed", "PBS: job killed: mem", r"job killed: mem \S{3,20} exceeded", how="PBS (its memory limit)"
    ),
    signature("killed", "Memory limit of ", r"Memory limit of \d+ MiB exceeded with", how="container"),
    signature("killed", "Error R15", r"Error R15 \(Memory quota", how="container"),
    signature("killed", "OOMKilled=true", r"OOMKilled=true", how="container"),
    signature("killed", "OOM Killed", r"(?:Driver Failure|Exit Message).{0,40}OOM Killed", how="container"),
    signature(
        "killed", "using all available RAM", r"crashed after using all available RAM", how="notebook service"
    ),
    signature(
        "killed",
        "more memory than is available. It has restarted",
        r"notebook tried to allocate more memory",
        how="notebook service",
    ),
    signature("killed", ": Out Of Memory", r"task \d{1,6}: Out Of Memory", how="Slurm (its memory limit)"),
    signature("killed", "TERM_MEMLIMIT", r"TERM_MEMLIMIT", how="LSF (its memory limit)"),
    signature(
        "killed", "Container killed due to memory", r"OutOfMemoryError: Container killed", how="container"
    ),
    signature("killed", "Perhaps out of memory?", r"was sent SIGKILL! Perhaps", how="signal", signal=9),
    signature("worker_timeout", "WORKER TIMEOUT", r"WORKER TIMEOUT"),
)

_SHELL = re.compile(
    r"^(?:\S{0,80}: line \d+: +\d+ +|\[\d+\][+-]? +(?:\d+ )?|zsh: |bash: |\S{0,60}: )?"
    r"[Kk]illed\b(?: +.{0,400})?$"
)
_NOT_SHELL = re.compile(r"[Kk]illed (?:by|process|process(?:es)?|worker|all|after|local|request)")


def _shell(line: Line, around: Around) -> Iterable[Event]:
    """`Killed`, as a shell prints it when a child got SIGKILL."""
    text = line.text.strip()
    if _SHELL.match(text) is None or _NOT_SHELL.search(text):
        return
    yield event_of(line, "signal", {"how": Value("shell"), "signal": Value(9)})


_EXIT = re.compile(
    r"(?:exit(?:ed|code)?|returned non-zero)[ _]?(?:with )?(?:exit )?(?:codes?|status)?[ :=]{0,3}"
    r"(?:exit (?:code|status) )?[(]?(-9|137)\b"
    r"|return ?code ?[=:]? ?-9\b|terminated by SIGKILL|(?:died from|killed by|got) signal 9\b"
    r"|died with <Signals\.SIGKILL: 9>|signal: killed|signal 9 \(SIGKILL\)|SIGKILL\)|\(SIGKILL"
)


def _exit(line: Line, around: Around) -> Iterable[Event]:
    """Exit code 137 or -9: SIGKILL, from whomever."""
    found = _EXIT.search(line.text)
    if found is None or "one or more of its" in line.text:
        return
    values = {"how": Value("exit code"), "signal": Value(9)}
    if found[1]:
        values["exit_code"] = Value(found[1])
    yield event_of(line, "signal", values)


READERS: tuple[Reader, ...] = (
    table_reader("batch systems", None, _RECORDS),
    Reader(name="shell Killed", engine=None, anchors=("Killed", "zsh: killed", "bash: killed"), read=_shell),
    Reader(
        name="exit by SIGKILL",
        engine=None,
        anchors=(
            "code 137",
            "code: 137",
            "status 137",
            "code=137",
            "code (137",
            "codes: 137",
            "exit code -9",
            "exitcode: -9",
            "exit code: -9",
            "return code = -9",
            "returncode",
            "signal 9",
            "SIGKILL",
            "signal: killed",
        ),
        read=_exit,
    ),
)
