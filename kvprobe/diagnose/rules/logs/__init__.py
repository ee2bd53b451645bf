"""Causes that logs can prove; one module per family, each lists its `RULES`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from kvprobe.diagnose.rules.logs.base import LogRule


@cache
def all_rules() -> tuple[LogRule, ...]:
    """Every rule of every family, collected at the first call so that `--help` imports none."""
    rules: list[LogRule] = []
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        found = importlib.import_module(f"{__name__}.{module}")
        rules.extend(getattr(found, "RULES", ()))
    return tuple(rules)
