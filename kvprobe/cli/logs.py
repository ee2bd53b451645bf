"""The log of the toolkit's own modules on stderr: warnings, with -v everything, with -q errors."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

from kvprobe.cli.streams import tolerant
from kvprobe.report.sanitize import clean


class _ToStderr(logging.Handler):
    """One clean line a record; a stderr that refuses disturbs nobody."""

    def emit(self, record: logging.LogRecord) -> None:
        with tolerant():
            sys.stderr.write(f"{record.levelname.lower()}: {clean(record.getMessage())}\n")


@contextlib.contextmanager
def log_to_stderr(*, quiet: bool, verbose: bool) -> Iterator[None]:
    logger = logging.getLogger("kvprobe")
    handler, before = _ToStderr(), (logger.level, logger.propagate)
    handler.setLevel(logging.DEBUG if verbose else logging.ERROR if quiet else logging.WARNING)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)  # a run's own log.txt keeps more than stderr shows
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
