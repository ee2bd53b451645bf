"""`kvprobe`: dispatch to a command, and the one place where errors become text and exit codes.

Nothing heavy is imported here: `kvprobe --help` must answer at once.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType

from kvprobe import __version__
from kvprobe.cli import errors_out, streams
from kvprobe.cli.options import Parser
from kvprobe.errors import Exit, Interrupted, KvprobeError, Problem, gravest

_DESCRIPTION = """\
What the KV cache of an LLM server costs, how it behaves under load, and why it ran out.

  kvprobe run shared_prefix             load the bundled reference server and say what happened
  kvprobe run shared_prefix --target http://127.0.0.1:8000     the same against your server
  kvprobe plan --model config.json --gpu 80GiB --weights 14GiB     what a token costs and what fits
  kvprobe diagnose server.log           why the server died or is slow, from its log
"""


def build_parser() -> Parser:
    """The whole command line; each command adds its own part and stays import-light."""
    from kvprobe.cli import (
        compare,
        diagnose,
        doctor,
        plan,
        quality,
        replay,
        report,
        run,
        schema,
        serve,
        watch,
    )

    parser = Parser(prog="kvprobe", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"kvprobe {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for command in (run, plan, diagnose, replay, quality, compare, serve, doctor, report, watch, schema):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code. Never raises, never prints a traceback unasked."""
    as_json = "--json" in argv
    verbose = "-v" in argv or "--verbose" in argv
    try:
        return _dispatch(argv)
    except KvprobeError as error:
        with streams.tolerant():
            errors_out.report(error.problems, as_json=as_json)
        return error.exit_code
    except BrokenPipeError:
        streams.silence_stdout()
        return Exit.STDOUT_CLOSED
    except KeyboardInterrupt as interrupt:
        with streams.tolerant():
            errors_out.report([Problem("interrupted", "stopped by a signal")], as_json=as_json)
        return getattr(interrupt, "exit_code", Exit.SIGINT)
    except Exception as error:
        with streams.tolerant():
            errors_out.report_defect(error, as_json=as_json, verbose=verbose)
        return Exit.INTERNAL


def _dispatch(argv: Sequence[str]) -> int:
    try:
        parser = build_parser()
        args = parser.parse_args(list(argv))
        if args.command is None:
            parser.print_help()
            code: int = Exit.OK
        else:
            code = args.func(args)
    except SystemExit as leaving:  # argparse: --help and --version
        code = int(leaving.code or 0)
    streams.emit("")  # what is still buffered
    return code


def _terminated(number: int, frame: FrameType | None) -> None:
    raise Interrupted(Exit.SIGTERM)


def entry() -> None:
    """Console script."""
    missing = streams.occupy_missing()
    signal.signal(signal.SIGTERM, _terminated)
    code = main(sys.argv[1:])
    # All is said and done: a signal while the interpreter goes down must not change the exit code.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if 1 in missing:
        code = gravest(Exit.STDOUT_CLOSED, Exit(code))
    sys.exit(code)
