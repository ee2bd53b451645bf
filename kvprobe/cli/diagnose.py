"""`kvprobe diagnose PATH...`: why a server died or is slow, from its logs, with evidence; or `unknown`.

PATHs are logs of any packing (gz, xz, bz2, zst; rotated pieces in any order), `-` for stdin, a saved
/metrics page, one run directory (with the server's logs beside it, if you like), or the folder of a suite
or sweep. Several logs give one diagnosis.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from kvprobe.cli.options import add_common, from_environment
from kvprobe.cli.streams import emit
from kvprobe.errors import Exit, Problem, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from kvprobe.diagnose.model import Diagnosis

_EPILOG = """\
--fail-on CAUSE leaves with 99 when CAUSE is a finding, primary or secondary; `any` when the primary finding
is a fault, so neither `unknown` nor `healthy_baseline` nor an effect that is no fault (`kv_pool_idle`,
`reservation_by_design`, `kv_quant_warning_harmless`).

Each option can also come from the environment, where an option given here beats it: KVPROBE_METRICS,
KVPROBE_MODEL_CONFIG, KVPROBE_TAIL; 1 or 0 in KVPROBE_I_OWN_THIS_TARGET, KVPROBE_INSECURE, KVPROBE_QUIET,
KVPROBE_NO_COLOR.
"""
_OF_REQUESTS = (
    ("--block-size", "request logs: tokens of one block of the prefix cache"),
    ("--pool-tokens", "request logs: tokens that the KV pool holds"),
    ("--replicas", "request logs: replicas that the requests were spread over in turn"),
)
_NO_FAULT = (
    "unknown",
    "healthy_baseline",
    "kv_pool_idle",
    "reservation_by_design",
    "kv_quant_warning_harmless",
)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "diagnose", help="why a server died or is slow, from its logs", description=__doc__, epilog=_EPILOG
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", help="logs, `-` for stdin, or one run directory")
    parser.add_argument(
        "--metrics", metavar="URL|FILE", help="also read a /metrics page (of a live server, or saved)"
    )
    parser.add_argument(
        "--model",
        metavar="config.json",
        dest="model_config",
        help="the model's config.json, .gguf or directory: what a token costs is then known",
    )
    for option, text in _OF_REQUESTS:
        parser.add_argument(option, metavar="N", help=text)
    parser.add_argument("--tail", metavar="SIZE", help="read only the last part of each log, e.g. 512MiB")
    parser.add_argument(
        "--fail-on",
        metavar="CAUSE|any",
        action="append",
        default=[],
        help="exit 99 when it is found (repeatable)",
    )
    parser.add_argument(
        "--md",
        metavar="FILE",
        help="also write the diagnosis as Markdown, for a ticket (`-`: to stdout, in place of the page)",
    )
    parser.add_argument(
        "--i-own-this-target",
        action="store_true",
        help="read the metrics of a server that is not this machine",
    )
    parser.add_argument("--insecure", action="store_true", help="do not verify TLS certificates of --metrics")
    add_common(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    from_environment(
        args, ("metrics", "model_config", "tail"), ("i_own_this_target", "insecure", "quiet", "no_color")
    )
    wanted = _causes(args.fail_on)
    tail_bytes = _tail(args.tail)
    if not args.paths and args.metrics is None:
        message = "there is nothing to diagnose: no PATH and no --metrics"
        raise UsageError(Problem("usage", message, "kvprobe diagnose server.log, or `-` to read stdin"))
    from kvprobe.cli.diagnose_markdown import check
    from kvprobe.cli.logs import log_to_stderr

    check(args.md, [*args.paths, args.metrics, args.model_config], json=args.json)
    with log_to_stderr(quiet=args.quiet, verbose=args.verbose):
        diagnosis, stopped = _diagnose(args, tail_bytes)
    _show(diagnosis, args)
    if stopped is not None:
        code: int = getattr(stopped, "exit_code", Exit.SIGINT)
        return code
    return Exit.CHECK_FAILED if _fails(diagnosis, wanted) else Exit.OK


def _causes(given: list[str]) -> list[str]:
    """The causes of --fail-on; raises `UsageError` for a name that no diagnosis can have."""
    from kvprobe.cli.options import meant
    from kvprobe.diagnose.causes import CAUSES

    names = [name.strip() for text in given for name in text.split(",")]
    problems = [
        Problem(
            "unknown_cause",
            f"`{name}` is no cause that a diagnosis can name",
            meant(name, ["any", *CAUSES]) or "see the causes in docs/diagnose.md, or use `any`",
        )
        for name in names
        if name != "any" and name not in CAUSES
    ]
    if problems:
        raise UsageError(*problems)
    return names


def _tail(text: str | None) -> int | None:
    if text is None:
        return None
    from kvprobe.plan.sizes import parse_size

    size = parse_size(text, "--tail")
    if size.hi < 1:
        raise UsageError(Problem("bad_value", f"--tail {text} reads nothing", "give a size such as 512MiB"))
    return int(size.hi)


def _diagnose(args: argparse.Namespace, tail_bytes: int | None) -> tuple[Diagnosis, KeyboardInterrupt | None]:
    """The answer, and the signal that ended the reading before its end."""
    from kvprobe.cli import diagnose_inputs as inputs

    if (suite := inputs.suite_folder(args.paths, args)) is not None:
        return inputs.diagnose_suite(suite), None
    if (found := inputs.run_directory(args.paths)) is not None:
        return inputs.diagnose_directory(*found, args), None
    if (log := inputs.request_log(args.paths)) is not None:
        return inputs.diagnose_request_log(log, args), None
    from kvprobe.cli.log_progress import choose
    from kvprobe.observe.logs.intake import read_logs

    spec = inputs.model(args.model_config)
    progress = choose(quiet=args.quiet)
    try:
        read = read_logs(args.paths, tail_bytes=tail_bytes, progress=progress.told)
    finally:
        progress.close()
    return inputs.diagnose_read(read, args, spec), read.stopped


def _show(diagnosis: Diagnosis, args: argparse.Namespace) -> None:
    if args.md is not None:
        from kvprobe.cli.diagnose_markdown import STDOUT, write

        write(args.md, diagnosis)
        if args.md == STDOUT:
            return
    if args.json:
        from kvprobe.report.document import diagnosis_document

        emit(json.dumps(diagnosis_document(diagnosis), allow_nan=False) + "\n")
        return
    from kvprobe.cli.present import show
    from kvprobe.report.diagnosis_text import render_diagnosis
    from kvprobe.report.prefix_text import render_prefixes

    analysis = diagnosis.facts.get("prefix_analysis")

    def page(console: Console) -> None:
        render_diagnosis(diagnosis, console, title=_title(args))
        if isinstance(analysis, dict):
            render_prefixes(analysis, console)

    show(page, no_color=args.no_color)


def _title(args: argparse.Namespace) -> str:
    named = [*args.paths, *([args.metrics.partition("?")[0]] if args.metrics else [])]
    return " ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")


def _fails(diagnosis: Diagnosis, wanted: list[str]) -> bool:
    found = {f.cause for f in diagnosis.findings if f.role != "ruled_out"} | {diagnosis.primary}
    return any(name in found if name != "any" else diagnosis.primary not in _NO_FAULT for name in wanted)
