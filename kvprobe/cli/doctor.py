"""`kvprobe doctor [TARGET]`: before a load test, is everything in place? Each check has a one-line fix.

It sends a handful of small requests to the target and, on this machine, loads a server that
computes nothing for a few seconds. Exit code 99 when a check failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from kvprobe.cli.options import add_common, from_environment
from kvprobe.errors import Exit, Problem, UsageError

MAX_STREAMS = 5_000


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor", help="is everything in place for a load test?", description=__doc__
    )
    parser.add_argument("target", metavar="TARGET", nargs="?", help="base URL of an OpenAI-compatible server")
    parser.add_argument("--metrics", metavar="URL", help="Prometheus page (default: TARGET/metrics)")
    parser.add_argument("--streams", metavar="N", help="streams that are planned (default: 64)")
    parser.add_argument("--model", metavar="NAME", help="model to ask for (default: the only one served)")
    parser.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the API key")
    parser.add_argument("--out", metavar="DIR", help="parent folder of run directories (default: runs)")
    parser.add_argument("--insecure", action="store_true", help="do not verify TLS certificates")
    parser.add_argument("--no-self-test", action="store_true", help="do not measure this machine's client")
    add_common(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    from_environment(
        args, ("target", "model", "metrics", "api_key_env", "out"), ("insecure", "quiet", "no_color")
    )
    if args.metrics is not None and args.target is None:
        message = "--metrics is the page of a target, and no TARGET was named"
        raise UsageError(
            Problem("missing_target", message, "kvprobe doctor http://127.0.0.1:8000 --metrics …")
        )
    from kvprobe.cli.logs import log_to_stderr
    from kvprobe.cli.present import show
    from kvprobe.cli.streams import emit
    from kvprobe.doctor.examine import DEFAULT_STREAMS, Question, examine
    from kvprobe.report.doctor_text import render_examination

    question = Question(
        target=args.target,
        model=args.model,
        metrics_url=args.metrics,
        api_key_env=args.api_key_env,
        streams=_streams(args.streams) if args.streams is not None else DEFAULT_STREAMS,
        out=Path(args.out) if args.out else Path("runs"),
        insecure=args.insecure,
        self_test=not args.no_self_test,
    )
    with log_to_stderr(quiet=not args.verbose, verbose=args.verbose):
        found = examine(question, _progress(quiet=args.quiet))
    if args.json:
        emit(json.dumps(found.to_json(), allow_nan=False) + "\n")
    else:
        show(lambda page: render_examination(found, page), no_color=args.no_color)
    return Exit.OK if found.ok else Exit.CHECK_FAILED


def _streams(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_STREAMS:
        problem = f"`{text[:40]}` is no number of streams"
        raise UsageError(Problem("bad_value", problem, f"write a whole number from 1 to {MAX_STREAMS:,}"))
    return int(text)


def _progress(*, quiet: bool) -> Any:
    shown = not quiet and sys.stderr.isatty()
    return (lambda text: print(text, file=sys.stderr)) if shown else (lambda text: None)
