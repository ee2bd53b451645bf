"""log.txt of a run directory: what the toolkit did and when, for whoever asks later."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from kvprobe.evidence.secrets import masked
from kvprobe.report.sanitize import clean


class _RunLog(logging.Handler):
    """Appends one clean line a record, in UTC. A disk that refuses costs lines, never the run: the
    records' own writer reports it."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def emit(self, record: logging.LogRecord) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        line = f"{stamp} {record.levelname} {record.name}: {clean(masked(record.getMessage()))}\n"
        with contextlib.suppress(OSError):
            os.write(self._fd, line.encode("utf-8", "replace"))

    def close(self) -> None:
        os.close(self._fd)
        super().close()


@contextlib.contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Keep the toolkit's log in `path` (the worker's stderr goes to the same file)."""
    logger = logging.getLogger("kvprobe")
    try:
        handler = _RunLog(path)
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error)
        yield
        return
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
