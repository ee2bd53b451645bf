"""`python -m reference_server`: parse, build, serve.

Prints one line of JSON on stdout when it listens; logs go to stderr. Exit codes: 0 stopped by
SIGTERM or by its parent's end, 2 a configuration that cannot be served (a port in use, too), 130
Ctrl-C, 1 anything else.
"""

from __future__ import annotations

import logging
import os
import sys

from reference_server.config import parse_arguments
from reference_server.errors import ConfigError


def main() -> int:
    try:
        config = parse_arguments(sys.argv[1:], os.environ)
        logging.basicConfig(
            stream=sys.stderr,
            level=config.log_level.upper(),
            format="%(levelname)s %(asctime)s %(name)s: %(message)s",
        )
        # torch takes a second to import, and --help and errors should not wait for it.
        from reference_server.serve import serve

        return serve(config)
    except ConfigError as error:
        print(f"kvprobe serve: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
