"""One module per engine family; `all_readers` collects what they offer.

A reader sees a line only when one of its anchors stands in it. A module that is named here offers
`READERS`, a tuple of `Reader`.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from kvprobe.observe.logs.lines import Reader


@cache
def all_readers() -> tuple[Reader, ...]:
    """Every reader of every module of this package, by module name and then in the module's order."""
    readers: list[Reader] = []
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        found = importlib.import_module(f"{__name__}.{module}")
        readers.extend(getattr(found, "READERS", ()))
    return tuple(readers)
