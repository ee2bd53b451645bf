"""A small run directory as kvprobe 0.1.0 wrote it (layout 1): newer versions must read it for good.

Made once, by the command in `old_run_directory/README.md`; never to be made again with a newer version.
"""

from __future__ import annotations

from pathlib import Path

from kvprobe.evidence.rundata import RunData
from kvprobe.evidence.rundir import RunDir

OLD_RUN = Path(__file__).parent / "old_run_directory"


def old_run() -> RunData:
    return RunDir.open(OLD_RUN).load()
