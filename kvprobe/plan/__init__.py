"""What fits: budget, engines, length distributions, concurrency, flags.

The package can be called: `kvprobe.plan(model, gpu="80GiB", weights="14GiB", ...)` is
`kvprobe.plan.api.plan`, which says what it takes and gives.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """`kvprobe.plan` is a room of the house and a function of the public API; it has to be both, for
    importing any module of the room puts the room in the place of an attribute of that name."""

    def __call__(self, model: Any, **settings: Any) -> dict[str, Any]:
        """See `kvprobe.plan.api.plan`."""
        from kvprobe.plan.api import plan

        return plan(model, **settings)


sys.modules[__name__].__class__ = _CallablePackage
