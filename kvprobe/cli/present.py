"""A run's result on stdout: one JSON document, or text for a person."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvprobe.cli.streams import emit

if TYPE_CHECKING:
    from rich.console import Console

    from kvprobe.diagnose.model import Diagnosis
    from kvprobe.evidence.rundata import RunData
    from kvprobe.summary.build import Summary

PLAIN_WIDTH = 100
"""Columns when stdout is no terminal: files and pipes are read later on an unknown screen."""
MIN_WIDTH = 80


def present(data: RunData, summary: Summary, diagnosis: Diagnosis, *, as_json: bool, no_color: bool) -> None:
    """Print the result; a closed stdout raises BrokenPipeError for the caller of `main`."""
    if as_json:
        from kvprobe.report.document import run_document

        emit(json.dumps(run_document(data, summary, diagnosis), allow_nan=False) + "\n")
        return
    from kvprobe.gates.judge import judged
    from kvprobe.report.terminal import banner, render_run

    thresholds = judged(data, summary)
    show(
        lambda page: render_run(summary, diagnosis, page, banner=banner(data), thresholds=thresholds),
        no_color=no_color,
    )


def show(render: Callable[[Console], None], *, no_color: bool) -> None:
    """Draw a whole page, then print it; a closed stdout raises BrokenPipeError."""
    page = Page()
    render(console(page, no_color=no_color))
    # Tables are padded to their width; what is pasted into a ticket should not be.
    emit("\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n")


class Page(io.StringIO):
    """Text for stdout, held back until it is whole: rich may ask it what stdout is like, but only
    `emit` writes there, which knows what to do when it refuses."""

    encoding = property(lambda self: sys.stdout.encoding)

    def isatty(self) -> bool:
        return sys.stdout.isatty()


def console(page: io.StringIO, *, no_color: bool) -> Console:
    """A rich console that never sends an escape code where none was asked for."""
    from rich.console import Console

    plain = (
        no_color
        or bool(os.environ.get("NO_COLOR"))
        or os.environ.get("TERM") == "dumb"
        or not sys.stdout.isatty()
    )
    return Console(
        file=page,
        no_color=plain,
        force_terminal=False if plain else None,
        color_system=None if plain else "auto",
        width=_width(),
        highlight=False,
        markup=False,
        emoji=False,
    )


def _width() -> int:
    """What the terminal or COLUMNS says. Below `MIN_WIDTH` a table would cut its numbers off; a
    narrow screen wraps whole lines itself."""
    found = shutil.get_terminal_size(fallback=(PLAIN_WIDTH, 24)).columns
    return max(found, MIN_WIDTH)
