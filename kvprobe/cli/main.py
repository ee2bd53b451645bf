"""`kvprobe`: dispatch to a command, and the one place where errors become text and exit codes.

Nothing heavy is imported here: `kvprobe --help` must answer at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from kvprobe import __version__
from kvprobe.cli import errors_out
from kvprobe.cli.options import Parser
from kvprobe.errors import Exit, KvprobeError

_DESCRIPTION = """\
What the KV cache of an LLM server costs, how it behaves under load, and why it ran out.

  kvprobe run shared_prefix             load the bundled reference server and say what happened
  kvprobe run shared_prefix --target http://127.0.0.1:8000     the same against your server
"""


def build_parser() -> Parser:
    """The whole command line; each command adds its own part and stays import-light."""
    from kvprobe.cli import report, run, schema, serve

    parser = Parser(prog="kvprobe", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"kvprobe {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for command in (run, serve, report, schema):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code. Never raises, never prints a traceback unasked."""
    as_json = "--json" in argv
    verbose = "-v" in argv or "--verbose" in argv
    try:
        parser = build_parser()
        args = parser.parse_args(list(argv))
        if args.command is None:
            parser.print_help()
            return Exit.OK
        code: int = args.func(args)
        sys.stdout.flush()
        return code
    except KvprobeError as error:
        errors_out.report(error.problems, as_json=as_json)
        return error.exit_code
    except BrokenPipeError:
        _silence_stdout()
        return Exit.STDOUT_CLOSED
    except KeyboardInterrupt:
        return Exit.SIGINT
    except SystemExit as leaving:  # argparse: --help and --version
        return int(leaving.code or 0)
    except Exception as error:
        errors_out.report_defect(error, as_json=as_json, verbose=verbose)
        return Exit.INTERNAL


def _silence_stdout() -> None:
    """Whoever read our stdout has gone; keep the interpreter from complaining about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def entry() -> None:
    """Console script."""
    code = main(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
        code = Exit.STDOUT_CLOSED
    sys.exit(code)
