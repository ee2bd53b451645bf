"""`kvprobe run WORKLOAD.yaml`: load a target, sample it, say what happened and what it means.

With no --target it starts the bundled reference server on a free loopback port, runs against it
and stops it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvprobe.cli import errors_out, junit_out, streams, suite
from kvprobe.cli.options import add_common, from_environment
from kvprobe.cli.run_options import DEFAULT_OUT, add_options
from kvprobe.errors import Exit, Problem, StorageError, UsageError, gravest

if TYPE_CHECKING:
    from kvprobe.load.workload_sets import Setting
    from kvprobe.run.options import RunOptions, RunOutcome

_SHORT_FORMS = {"users": "arrival.closed.users", "rate": "arrival.open.rate", "duration": "duration"}
_VALUES = ("target", "model", "metrics", "api_key_env", "serve_args", "users", "rate", "duration", "out")
_FLAGS = ("insecure", "i_own_this_target", "quiet", "no_color")
_ENVIRONMENT = """\
Each option can also come from the environment, where an option given here beats it: KVPROBE_TARGET,
KVPROBE_MODEL, KVPROBE_METRICS, KVPROBE_API_KEY_ENV, KVPROBE_SERVE_ARGS, KVPROBE_USERS, KVPROBE_RATE,
KVPROBE_DURATION, KVPROBE_OUT; 1 or 0 in KVPROBE_INSECURE, KVPROBE_I_OWN_THIS_TARGET, KVPROBE_QUIET,
KVPROBE_NO_COLOR. KVPROBE_OWN_TARGETS lists hosts, .domains and networks that you may load.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "run", help="load a target, sample it, diagnose", description=__doc__, epilog=_ENVIRONMENT
    )
    add_options(parser)
    add_common(parser)
    parser.set_defaults(func=run)


def _sets(args: argparse.Namespace, origins: dict[str, str]) -> list[tuple[str, str] | Setting]:
    """--users, --rate and --duration are short forms of --set that keep their name in messages."""
    from kvprobe.load.workload_sets import Setting

    sets: list[tuple[str, str] | Setting] = list(args.set)
    for option, key in _SHORT_FORMS.items():
        if (value := getattr(args, option)) is not None:
            text = value.removesuffix("/s") if option == "rate" else value
            sets.append(Setting(key, text, origins.get(option, f"--{option}")))
    return sets


def _options(args: argparse.Namespace, origins: dict[str, str]) -> RunOptions:
    """What the command line asks for."""
    from kvprobe.run.options import RunOptions

    return RunOptions(
        workload=args.workload,
        sets=tuple(_sets(args, origins)),
        target=args.target,
        model=args.model,
        metrics_url=args.metrics,
        api_key_env=args.api_key_env,
        out=Path(args.out) if args.out else DEFAULT_OUT,
        serve_args=args.serve_args,
        insecure=args.insecure,
        own_target=args.i_own_this_target,
        yes=args.yes,
        processes=args.processes,
        master=args.master,
        worker_of=args.worker,
        bind=args.bind,
        expect_workers=args.expect_workers,
        web=args.web,
        thresholds=tuple(args.threshold),
        aborts=tuple(args.abort),
        junit=Path(args.junit) if args.junit else None,
        logs=tuple(Path(p) for p in args.log),
        investigate=args.investigate,
        serve_metrics_port=args.serve_metrics,
    )


def run(args: argparse.Namespace) -> int:
    origins = from_environment(args, _VALUES, _FLAGS, exclusive=("users", "rate"))
    if args.target is not None and args.serve_args is not None and "serve_args" not in origins:
        message = "--serve-args are options of the bundled server, which --target leaves out"
        raise UsageError(Problem("conflict", message, "leave out one of the two"))
    from kvprobe.cli.logs import log_to_stderr
    from kvprobe.run.progress import choose
    from kvprobe.run.session import conduct
    from kvprobe.run.suite import is_suite

    options = _options(args, origins)
    junit_out.check_writable(options.junit)
    if options.worker_of is not None:
        return _serve_master(options, args)
    with log_to_stderr(quiet=args.quiet, verbose=args.verbose):
        if is_suite(options):
            return suite.run(options, choose(quiet=args.quiet), args)
        return _show(conduct(options, choose(quiet=args.quiet)), args)


def _serve_master(options: RunOptions, args: argparse.Namespace) -> int:
    """--worker: what was sent goes to stdout, the rows go to the master."""
    from kvprobe.cli.logs import log_to_stderr
    from kvprobe.run.progress import choose
    from kvprobe.run.worker_side import conduct_worker

    with log_to_stderr(quiet=args.quiet, verbose=args.verbose):
        outcome = conduct_worker(options, choose(quiet=args.quiet))
    document = outcome.document()
    requests = document["requests"]
    text = f"sent {requests['sent']} requests for the master on {outcome.master}: {requests['ok']} ok, "
    text += f"{requests['failed']} failed; the load ended: {outcome.last.reason}\n"
    streams.emit(json.dumps(document) + "\n" if args.json else text)
    if outcome.problems:
        with streams.tolerant():
            for problem in outcome.problems:
                _say_problem(problem, as_json=args.json)
    return outcome.exit_code


def _show(outcome: RunOutcome, args: argparse.Namespace) -> int:
    """Result to stdout, problems to stderr; where there is no result, the problems are it."""
    from kvprobe.cli.present import present

    code = outcome.exit_code
    if outcome.data is None or outcome.summary is None or outcome.diagnosis is None:
        with streams.tolerant():
            errors_out.report(outcome.problems, as_json=args.json)
        return code
    try:
        junit_out.write(Path(args.junit) if args.junit else None, outcome)
    except StorageError as error:
        code = gravest(code, Exit.STORAGE)
        outcome.problems.extend(error.problems)
    try:
        present(outcome.data, outcome.summary, outcome.diagnosis, as_json=args.json, no_color=args.no_color)
    except BrokenPipeError:
        code = gravest(code, Exit.STDOUT_CLOSED)
    except StorageError as error:
        code = gravest(code, Exit.STORAGE)
        outcome.problems.extend(error.problems)
    for problem in outcome.problems:
        with streams.tolerant():
            _say_problem(problem, as_json=args.json)
    return code


def _say_problem(problem: Problem, *, as_json: bool) -> None:
    """Beside a result, a problem goes to stderr in either form: stdout holds one document."""
    if as_json:
        sys.stderr.write(json.dumps(errors_out.document([problem])) + "\n")
    else:
        errors_out.report([problem], as_json=False)
