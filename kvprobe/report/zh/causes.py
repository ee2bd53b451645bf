"""Causes in Chinese."""

from __future__ import annotations

from typing import Final

CAUSES: Final[dict[str, str]] = {}
ADVICE: Final[dict[str, str]] = {}
