"""`python -m reference_server`: parse, build, serve.

Prints one line of JSON on stdout when it listens; logs go to stderr. Exit codes: 0 stopped by
SIGTERM or by its parent's end, 2 a configuration that cannot be served (a port in use, too), 130
Ctrl-C, 1 anything else.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from functools import partial
from types import FrameType

from reference_server.config import parse_arguments
from reference_server.errors import ConfigError
from reference_server.listen import listen


def main() -> int:
    for number, code in ((signal.SIGINT, 128 + signal.SIGINT), (signal.SIGTERM, 0)):
        signal.signal(number, partial(_stop_at_once, code))
    try:
        config = parse_arguments(sys.argv[1:], os.environ)
        logging.basicConfig(
            stream=sys.stderr,
            level=config.log_level.upper(),
            format="%(levelname)s %(asctime)s %(name)s: %(message)s",
        )
        if config.nice:
            os.nice(config.nice)  # before any thread starts: on Linux each thread has its own
        listener = listen(config)
        # torch takes a second to import, and --help and errors should not wait for it.
        from reference_server.serve import serve

        return serve(config, listener)
    except ConfigError as error:
        _tell(str(error), as_json="--json" in sys.argv[1:])
        return 2


def _stop_at_once(exit_code: int, number: int, frame: FrameType | None) -> None:
    """Until it listens there is nothing to finish.

    No exception: raised inside an import it may be swallowed there, and the server would go on.
    """
    os._exit(exit_code)


def _tell(message: str, *, as_json: bool) -> None:
    """One line on stderr, or the error document that all commands of kvprobe share."""
    if not as_json:
        print(f"kvprobe serve: {message}", file=sys.stderr)
        return
    error = {"code": "usage", "path": None, "line": None, "column": None, "message": message}
    print(
        json.dumps({"schema": "kvprobe.error/1", "errors": [{**error, "fix": "see `kvprobe serve --help`"}]})
    )


if __name__ == "__main__":
    sys.exit(main())
