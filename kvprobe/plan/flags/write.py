"""Recommended flags as shell, as YAML, and as a diff to a running configuration."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal

from kvprobe.plan.flags.recommend import Advice, Recommended
from kvprobe.plan.flags.table import ENTRY

Change = Literal["add", "change", "same"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffLine:
    """How one flag of the running server differs from the advice; values are null for switches."""

    name: str
    change: Change
    running: str | None
    recommended: str | None


def shell(advice: Advice) -> str:
    """The command line, a flag a line; MODEL stands for what is served. Empty without an engine."""
    if advice.engine not in ENTRY:
        return ""
    return " \\\n  ".join([ENTRY[advice.engine], *(_argument(flag) for flag in advice.flags)])


def _argument(flag: Recommended) -> str:
    return f"--{flag.name}" if flag.value is None else f"--{flag.name} {shlex.quote(flag.value)}"


def yaml(advice: Advice) -> str:
    """The same as keys and values, with the number that each comes from as a comment."""
    lines = [f"{flag.name}: {_scalar(flag.value)}  # {flag.why}" for flag in advice.flags]
    return "\n".join(lines) + ("\n" if lines else "")


def _scalar(value: str | None) -> str:
    if value is None:
        return "true"
    plain = value.replace(".", "", 1).isdigit() or (value.isascii() and value.replace("_", "").isalnum())
    return value if plain else "'" + value.replace("'", "''") + "'"


def diff(advice: Advice) -> tuple[DiffLine, ...]:
    """What to change in the running server; empty when nothing was said of one."""
    if not advice.running:
        return ()
    lines = []
    for flag in advice.flags:
        there = flag.name in advice.running
        now = advice.running.get(flag.name) or None
        same = there and _same(now, flag.value)
        change: Change = "same" if same else "change" if there else "add"
        lines.append(DiffLine(name=flag.name, change=change, running=now, recommended=flag.value))
    return tuple(lines)


def _same(a: str | None, b: str | None) -> bool:
    if a is None or b is None:
        return a == b
    try:
        return float(a) == float(b)
    except ValueError:
        return a == b


def parse_running(text: str) -> dict[str, str]:
    """Flags of a command line (`--max-num-seqs 64 --enforce-eager`) by name; switches have an empty value.

    Raises ValueError when quotes do not close.
    """
    found: dict[str, str] = {}
    name: str | None = None
    for word in shlex.split(text):
        if word.startswith("-") and not _is_number(word):
            name, equals, value = word.lstrip("-").partition("=")
            found[name] = value if equals else ""
        elif name is not None and not found[name]:
            found[name] = word
            name = None
    return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
