"""FlashInfer's workspace: what a kernel asked of its fixed buffer, and what the buffer had left.

The message is one long line, or several short ones where a report was wrapped by hand.
"""

from __future__ import annotations

import re
from typing import Final

from kvprobe.evidence.events import Event
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of, values_of

_BUFFER: Final = re.compile(r"memory for (?P<buffer>batch_\w{1,80})")
_NEEDED: Final = re.compile(r"with size (?P<needed__B>\d{1,15})")
_AVAILABLE: Final = re.compile(r"only (?P<available__B>\d{1,15}) bytes available")
_JOINED = 3


def _read(line: Line, around: Around) -> list[Event]:
    text = line.text
    if "bytes available" not in text:
        text = " ".join([text, *[following.text.strip() for following in around.after(_JOINED)]])
    values = {}
    for pattern in (_BUFFER, _NEEDED, _AVAILABLE):
        found = pattern.search(text)
        if found is not None:
            values.update(values_of(found))
    if "buffer" not in values and not any(word in line.text for word in ("orkspace", "AlignedAllocator")):
        return []
    return [event_of(line, "workspace_overflow", values)]


READERS: Final = (
    Reader(
        name="torch_workspace",
        engine=None,
        anchors=(
            "Buffer overflow when allocating memory for",
            "ailed to allocate memory for batch_",
            "bytes available in AlignedAllocator",
            "Out of workspace memory",
            "orkspace buffer is too small",
            "orkspace size is not large enough",
        ),
        read=_read,
    ),
)
