"""`kvprobe serve`: start the bundled reference server.

The server is a separate program (`python -m reference_server`) and the only one that imports
torch; this command checks that it can run and becomes it.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="start the bundled reference server",
        description=__doc__,
        add_help=False,
        prefix_chars="\0",  # every option belongs to the server's own parser
    )
    parser.add_argument("server_args", nargs=argparse.REMAINDER)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    from kvprobe import children
    from kvprobe.run.embedded import require_server_extra

    require_server_extra()
    sys.stdout.flush()
    sys.stderr.flush()
    command = [*children.module_command("reference_server"), *args.server_args]
    os.execve(sys.executable, command, children.environment())
