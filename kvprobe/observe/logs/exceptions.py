"""The last line of a traceback that no family's reader owns: not a cause, but where to look."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader

_LAST = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Exit|Failure|Timeout))"
    r"(?:: (?P<message>.*))?$"
)
_FRAME = re.compile(
    r"File \"[^\"\n]{1,500}\", line \d{1,7}|^[^\"\n]{1,300}\", line \d{1,7}, in \w|"
    r"Traceback \(most recent call last\)"
)
_BEFORE = 8
_MESSAGE_CHARS = 300


def read(line: Line, around: Around) -> Iterable[Event]:
    """An event for a line of the form `some.Error: message` that follows frames."""
    found = _LAST.match(line.text)
    if found is None or not any(_FRAME.search(above.text) for above in around.before(_BEFORE)):
        return ()
    message = (found["message"] or "")[:_MESSAGE_CHARS]
    values = {"type": Value(found["type"]), "message": Value(message)}
    return (Event(name="exception", source=line.source, line=line.number, text=line.text, values=values),)


READER = Reader(
    name="exception",
    engine=None,
    anchors=(
        "Error: ",
        "Exception: ",
        "Exit: ",
        "Failure: ",
        "Timeout: ",
        "AssertionError",
        "NotImplementedError",
    ),
    read=read,
)


def unowned(events: Sequence[Event]) -> list[Event]:
    """Without the general exceptions whose line another reader has read as well."""
    owned = {(e.source, e.line) for e in events if e.name not in ("exception", "frame")}
    return [e for e in events if e.name != "exception" or (e.source, e.line) not in owned]
