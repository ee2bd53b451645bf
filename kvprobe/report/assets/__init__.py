"""The style sheet and the script of a report, each a file of its own."""

from __future__ import annotations

from importlib.resources import files


def asset(name: str) -> str:
    """The text of `page.css` or `page.js`."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
