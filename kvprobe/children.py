"""How this package starts its own programs as child processes.

A child must run the code of this installation whatever lies in the current folder: `python -m`
alone would put that folder first on the import path, and a `random.py` or a `kvprobe/` of the user
would then run instead of ours.
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def module_command(module: str) -> list[str]:
    """The command line that runs `module`; append its arguments."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """The environment for `module_command`: ours, and where this package lies if not installed."""
    values = {**os.environ, "PYTHONUNBUFFERED": "1"}
    # A source checkout is known to this process only, perhaps by the folder it was started in. What
    # lies in site-packages is found anyway and must not come before the standard library.
    if str(_ROOT) not in _site_packages():
        values["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    return values


def _site_packages() -> set[str]:
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return {str(Path(folder).resolve()) for folder in folders}
