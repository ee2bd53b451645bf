"""`kvprobe run WORKLOAD.yaml`: load a target, sample it, say what happened and what it means.

With no --target it starts the bundled reference server on a free loopback port, runs against it
and stops it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kvprobe.cli.options import add_common, from_environment

DEFAULT_OUT = Path("runs")
_SHORT_FORMS = {"users": "arrival.closed.users", "rate": "arrival.open.rate", "duration": "duration"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("run", help="load a target, sample it, diagnose", description=__doc__)
    parser.add_argument(
        "workload", metavar="WORKLOAD", help="a workload file, or the name of a bundled one: shared_prefix"
    )
    target = parser.add_argument_group("target")
    target.add_argument(
        "--target", metavar="URL", help="base URL of an OpenAI-compatible server (default: the bundled one)"
    )
    target.add_argument(
        "--model", metavar="NAME", help="model to ask for (default: the only one that is served)"
    )
    target.add_argument("--metrics", metavar="URL", help="Prometheus page (default: TARGET/metrics)")
    target.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the API key")
    target.add_argument(
        "--insecure", action="store_true", help="do not verify TLS certificates (recorded in the report)"
    )
    target.add_argument(
        "--i-own-this-target", action="store_true", help="load a target that is not this machine"
    )
    target.add_argument("--serve-args", metavar="ARGS", help="options for the bundled server, as one string")
    load = parser.add_argument_group("load")
    load.add_argument(
        "--set",
        metavar="a.b=c",
        action="append",
        default=[],
        type=_assignment,
        help="override one key of the workload (repeatable)",
    )
    arrival = load.add_mutually_exclusive_group()
    arrival.add_argument("--users", metavar="N", help="closed loop with N users")
    arrival.add_argument("--rate", metavar="R", help="open loop with R requests a second, e.g. 4/s")
    load.add_argument("--duration", metavar="60s", help="stop issuing requests after this time")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help=f"parent folder of the run directory (default: {DEFAULT_OUT})"
    )
    add_common(parser)
    parser.set_defaults(func=run)


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"`{text}` is no assignment: write it as prompt.families=30")
    return key.strip(), value


def _sets(args: argparse.Namespace) -> list[tuple[str, str]]:
    """--users, --rate and --duration are short forms of --set."""
    sets: list[tuple[str, str]] = list(args.set)
    for option, key in _SHORT_FORMS.items():
        if (value := getattr(args, option)) is not None:
            sets.append((key, value))
    return sets


def run(args: argparse.Namespace) -> int:
    names = ("target", "model", "metrics", "api_key_env", "serve_args", "users", "rate", "duration")
    from_environment(args, {**dict.fromkeys(names, str), "out": Path})
    from kvprobe.cli.present import present
    from kvprobe.run.options import RunOptions
    from kvprobe.run.progress import choose
    from kvprobe.run.session import conduct

    options = RunOptions(
        workload=args.workload,
        sets=tuple(_sets(args)),
        target=args.target,
        model=args.model,
        metrics_url=args.metrics,
        api_key_env=args.api_key_env,
        out=args.out or DEFAULT_OUT,
        serve_args=args.serve_args,
        insecure=args.insecure,
        own_target=args.i_own_this_target,
    )
    outcome = conduct(options, choose(quiet=args.quiet))
    if outcome.data is not None and outcome.summary is not None and outcome.diagnosis is not None:
        present(outcome.data, outcome.summary, outcome.diagnosis, as_json=args.json, no_color=args.no_color)
    for problem in outcome.problems:
        _say_problem(problem, as_json=args.json)
    return outcome.exit_code


def _say_problem(problem: Any, *, as_json: bool) -> None:
    """Beside a result, a problem goes to stderr in either form: stdout holds one document."""
    import json
    import sys

    from kvprobe.cli import errors_out

    if as_json:
        sys.stderr.write(json.dumps(errors_out.document([problem])) + "\n")
    else:
        errors_out.report([problem], as_json=False)
