"""Prefixes come off from the outside in; what they told is kept: time, rank, pid, logger, level, speaker."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvprobe.observe.logs.clock import epoch_of_number, epoch_s
from kvprobe.observe.logs.prefix_forms import DEEP, Form, forms_for

_MAX_LAYERS = 8


@dataclass(slots=True)
class Head:
    """What the prefixes of a line told. `speaker` is `logger` or `kernel` once one was unmistakable;
    `stamped` says that a timestamp or a logger's name was there. `container` is of docker compose, or
    the host of syslog."""

    time_s: float | None = None
    container: str | None = None
    rank: str | None = None
    pid: int | None = None
    logger: str | None = None
    level: str | None = None
    speaker: str | None = None
    stamped: bool = False


def strip_prefixes(text: str, head: Head) -> str:
    """The message of a line; what stood before it goes into `head`."""
    for _ in range(_MAX_LAYERS):
        stripped = _strip_one(text, head)
        if stripped is None:
            break
        text = stripped
    return text


def _strip_one(text: str, head: Head) -> str | None:
    for form in forms_for(text):
        if form.stamped and not head.stamped:
            continue
        found = form.pattern.match(text)
        if found is None:
            continue
        _note(found, form, head)
        return None if form.keep else text[found.end() :].lstrip()
    if not head.stamped and (deep := DEEP.match(text)) is not None:
        return text[deep.end() :]
    return None


def _note(found: re.Match[str], form: Form, head: Head) -> None:
    told = found.groupdict()
    if ts := told.get("ts"):
        head.time_s = head.time_s or epoch_s(ts)
    if epoch := told.get("epoch"):
        head.time_s = head.time_s or epoch_of_number(float(epoch))
    if rank := told.get("rank"):
        number = told.get("rank2")
        head.rank = f"rank{number}" if number else rank.strip()
    head.container = told.get("container") or head.container
    if pid := told.get("pid"):
        head.pid = int(pid)
    head.logger = told.get("file2") or told.get("file") or head.logger
    head.level = told.get("level") or head.level
    if form.speaker == "process":
        head.speaker = None  # journalctl gives every process the stamps of the kernel
    else:
        head.speaker = head.speaker or form.speaker
    if ts or epoch or form.speaker is not None or form.dated:
        head.stamped = True
