"""The model's configuration, for the prediction beside the measurement: told by the server, or read from
the directory that the server names, where that lies on this machine too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from kvprobe.evidence.facts import Fact
from kvprobe.evidence.spool import open_regular
from kvprobe.run.target import Target

_MOST_BYTES: Final = 1 << 20
CONFIG: Final = "config.json"


def model_facts(target: Target) -> list[Fact]:
    """One fact, or none where nobody tells."""
    if target.model_config is not None:
        return [Fact(name="model_config", value=target.model_config, source="/v1/models")]
    for name in (target.root, target.model):
        if name and Path(name).is_absolute() and (config := _read(Path(name) / CONFIG)) is not None:
            return [Fact(name="model_config", value=config, source=str(Path(name) / CONFIG))]
    return []


def _read(path: Path) -> dict[str, Any] | None:
    """A configuration of this machine; null for anything that is none. The name came from a server: only
    a regular file of that one name is opened, and nothing of it is shown but what the planner reads."""
    try:
        with open_regular(path) as file:
            data = file.read(_MOST_BYTES + 1)
        found = json.loads(data) if len(data) <= _MOST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
