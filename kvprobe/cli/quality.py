"""`kvprobe quality`: do two servers, or two KV formats of the bundled one, answer equally well?

The same questions go to both, greedy and with one seed: short sums, a needle at four depths of a long
context, long copies, JSON objects; or your own with --dataset. The verdict is a loss with its size, no
loss with the loss that is excluded, or `n too small`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvprobe.cli.options import add_common, from_environment
from kvprobe.errors import Problem, UsageError

if TYPE_CHECKING:
    from kvprobe.quality.question import Question

MAX_ITEMS = 5_000


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("quality", help="did a cheaper KV cache cost quality?", description=__doc__)
    parser.add_argument("--baseline", metavar="URL", help="the server that is trusted")
    parser.add_argument("--candidate", metavar="URL", help="the server under test")
    parser.add_argument("--kv-dtype", metavar="A,B", help="two KV formats of the bundled server: fp16,int8")
    parser.add_argument("--model", metavar="NAME|DIR", help="model to ask for; with --kv-dtype, to serve")
    parser.add_argument("--dataset", metavar="FILE", type=Path, help="your own questions, JSON lines")
    parser.add_argument("--items", metavar="N", help="questions of each kind, or of the file (default: 50)")
    parser.add_argument("--context", metavar="TOKENS", help="length of the needle's context (default: 2048)")
    parser.add_argument(
        "--pool-pressure", action="store_true", help="ask again while the pools are held at 95 %%"
    )
    parser.add_argument("--margin", metavar="SHARE", help="loss that must be excluded (default: 0.1)")
    parser.add_argument("--at-once", metavar="N", help="questions under way at once (default: 4)")
    parser.add_argument("--endpoint", choices=("chat", "completions"), default="chat", help="default: chat")
    parser.add_argument("--serve-args", metavar="ARGS", help="options for both bundled servers")
    parser.add_argument("--candidate-args", metavar="ARGS", help="further options for the second one alone")
    parser.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the API key")
    parser.add_argument("--insecure", action="store_true", help="do not verify TLS certificates")
    parser.add_argument(
        "--i-own-this-target", action="store_true", help="ask servers that are not this machine"
    )
    add_common(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    values = ("baseline", "candidate", "model", "api_key_env", "items")
    from_environment(args, values, ("insecure", "i_own_this_target", "quiet", "no_color"))
    with tempfile.TemporaryDirectory(prefix="kvprobe-quality-") as folder:
        question = _question(args, Path(folder))
        from kvprobe.cli.logs import log_to_stderr
        from kvprobe.cli.present import show
        from kvprobe.cli.streams import emit
        from kvprobe.quality.conduct import compare_quality
        from kvprobe.report.quality_text import render_quality

        with log_to_stderr(quiet=args.quiet, verbose=args.verbose):
            found, code = compare_quality(question, _progress(quiet=args.quiet))
    if args.json:
        emit(json.dumps(found.to_json(), allow_nan=False) + "\n")
    else:
        show(lambda page: render_quality(found, page), no_color=args.no_color)
    return code


def _question(args: argparse.Namespace, scratch: Path) -> Question:
    from kvprobe.quality.question import Question

    formats = _formats(args)
    served = ("--model", args.model) if formats is not None and args.model is not None else ()
    return Question(
        baseline=args.baseline,
        candidate=args.candidate,
        formats=formats,
        server_args=(*served, *_split(args.serve_args)),
        candidate_args=tuple(_split(args.candidate_args)),
        model=args.model,
        dataset=args.dataset,
        items=_whole(args.items, "--items", 1, MAX_ITEMS) if args.items is not None else 50,
        context_tokens=(_whole(args.context, "--context", 256, 2**20) if args.context is not None else None),
        pool_pressure=args.pool_pressure,
        at_once=_whole(args.at_once, "--at-once", 1, 64) if args.at_once is not None else 4,
        margin=_share(args.margin) if args.margin is not None else 0.1,
        api_key_env=args.api_key_env,
        insecure=args.insecure,
        own_target=args.i_own_this_target,
        endpoint=args.endpoint,
        scratch=scratch,
    )


def _formats(args: argparse.Namespace) -> tuple[str, str] | None:
    """Two formats, or null for two addresses; raises `UsageError` for neither, both, or halves."""
    if args.kv_dtype is not None:
        if args.baseline is not None or args.candidate is not None:
            message = "--kv-dtype starts two bundled servers, which --baseline and --candidate leave out"
            raise UsageError(Problem("conflict", message, "leave out one of the two"))
        names = [name.strip() for name in args.kv_dtype.split(",")]
        if len(names) != 2 or not all(names):
            raise UsageError(Problem("bad_value", "--kv-dtype takes two formats", "--kv-dtype fp16,int8"))
        return names[0], names[1]
    if args.serve_args is not None or args.candidate_args is not None:
        message = "--serve-args and --candidate-args are options of bundled servers, which --kv-dtype starts"
        raise UsageError(Problem("conflict", message, "leave them out, or add --kv-dtype A,B"))
    if args.baseline is None or args.candidate is None:
        message = "quality compares two servers, and at most one was named"
        raise UsageError(
            Problem("missing_target", message, "--baseline URL --candidate URL, or --kv-dtype A,B")
        )
    return None


def _split(text: str | None) -> list[str]:
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise UsageError(
            Problem("bad_value", f"the quotes of `{text}` do not match", "close them")
        ) from error


def _whole(text: str, option: str, low: int, high: int) -> int:
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        fix = f"write a whole number from {low:,} to {high:,}"
        raise UsageError(Problem("bad_value", f"{option}: `{text[:40]}` is no such number", fix))
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise UsageError(Problem("bad_value", f"--margin: `{text[:40]}` is no share", "write it as 0.1"))
    return value


def _progress(*, quiet: bool) -> Callable[[str], None]:
    if quiet or not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
