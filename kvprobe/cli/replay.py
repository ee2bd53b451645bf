"""`kvprobe replay`: a request trace through an allocator: what fits, what is refused, who held the cache."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvprobe.cli.options import add_common, from_environment
from kvprobe.errors import Exit, Problem, UsageError

if TYPE_CHECKING:
    from kvprobe.plan.simulate.replay import Replay

_EPILOG = """\
  kvprobe replay trace.jsonl --model config.json --pool 40GiB --gpu H100
  kvprobe replay trace.csv --bytes-per-token 131072 --pool 8GiB --fit runs/...
  kvprobe replay trace.jsonl --blocks 28000 --sweep block-size=8,16,32 --sweep max-num-seqs=32,64,128
  kvprobe replay trace.jsonl --model DIR --pool 40GiB --gpu H100 --find-pool 'preempted <= 1%'

--pool is memory for the cache alone (weights lie beside it); --blocks counts as the engine prints it. Without
--fit and --gpu the time of a step is an assumption, and so is how many requests are there at once.
--sweep: pool, blocks, block-size, max-model-len, kv-dtype, max-num-seqs, max-num-batched-tokens, ...
"""
_FORMATS = ("auto", "azure", "mooncake", "burstgpt", "qwen", "vidur", "kvprobe")
_VALUES = (
    ("model", "PATH", "model directory, config.json or FILE.gguf"),
    ("bytes-per-token", "N", "KV bytes of one token, instead of --model"),
    ("pool", "SIZE", "memory of the cache, with a unit"),
    ("blocks", "N", "its blocks, as the engine prints them, instead of --pool"),
    ("block-size", "B", "tokens of a block (default: the engine's)"),
    ("engine", "NAME", "whose admission: vllm (default), sglang or reference"),
    ("allocator", "NAME", "paged (default), paged-reserve or contiguous"),
    ("preemption", "KIND", "recompute (default) or swap"),
    ("swap-space", "SIZE", "host memory for --preemption swap"),
    ("max-num-seqs", "N", "most requests in a step"),
    ("max-num-batched-tokens", "N", "most tokens in a step"),
    ("max-model-len", "N", "context limit: longer requests are refused"),
    ("max-tokens", "N", "what requests ask for, where an allocator reserves by it"),
    ("kv-dtype", "D", "format of the cache: auto, fp8, int8, ..."),
    ("tp", "N", "tensor-parallel GPUs; --pool is that of one"),
    ("watermark", "F", "share of blocks that an admission leaves free"),
    ("gpu", "NAME", "step times by the table of GPUs (a model, not a measurement)"),
)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "replay",
        help="simulate an allocator on a request trace: what fits, who held the cache",
        description=__doc__,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "trace", metavar="TRACE", type=Path, help="Azure, BurstGPT, vidur CSV; Mooncake, Qwen JSONL"
    )
    parser.add_argument("--format", choices=_FORMATS, default="auto", help="default: told by the columns")
    for name, metavar, text in _VALUES:
        parser.add_argument(f"--{name}", metavar=metavar, help=text)
    parser.add_argument("--no-prefix-caching", action="store_true", help="never reuse prefixes")
    parser.add_argument("--fit", metavar="RUN", type=Path, help="step times fitted to a run directory")
    parser.add_argument("--scale-time", metavar="F", type=_factor, default=1.0, help="0.5: twice as fast")
    parser.add_argument("--scale-len", metavar="F", type=_factor, default=1.0, help="prompts and answers")
    parser.add_argument(
        "--sweep", metavar="NAME=A,B,C", action="append", default=[], help="one option over several values"
    )
    parser.add_argument("--find-pool", metavar="LIMIT", help="the smallest pool that keeps a limit")
    parser.add_argument("--beside", metavar="TRACE", type=Path, help="a second trace on the same server")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page that opens offline")
    parser.add_argument("--lang", choices=("en", "zh"), help="language of the page (default: en)")
    add_common(parser)
    parser.set_defaults(func=run)


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"`{text[:40]}` is no factor above 0, such as 0.5")
    return value


def run(args: argparse.Namespace) -> int:
    names = [name.replace("-", "_") for name, _, _ in _VALUES]
    from_environment(args, [*names, "lang"], ("no_color",))
    if not args.trace.is_file():
        fix = "give the path of a trace file"
        raise UsageError(
            Problem("no_trace", f"there is no trace file {args.trace}", fix, path=str(args.trace))
        )
    from kvprobe.cli.replay_progress import choose
    from kvprobe.plan.simulate.answer import Question, answer
    from kvprobe.plan.simulate.ask import Ask

    said = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    question = Question(
        ask=Ask(**said, prefix_caching=not args.no_prefix_caching),
        trace=args.trace,
        format=args.format,
        scale_time=args.scale_time,
        scale_len=args.scale_len,
        fit=args.fit,
        sweeps=tuple(args.sweep),
        find_pool=args.find_pool,
        beside=args.beside,
    )
    progress = choose(quiet=args.quiet)
    try:
        found = answer(question, progress.told, progress.says)
    finally:
        progress.close()
    if args.html is not None:
        from kvprobe.cli.report import write
        from kvprobe.report.html_page import render_page
        from kvprobe.report.replay_page import replay_report

        write(args.html, render_page(replay_report(found, args.lang or "en")))
    _show(found, as_json=args.json, no_color=args.no_color)
    return Exit.OK


def _show(found: Replay, *, as_json: bool, no_color: bool) -> None:
    if as_json:
        import json

        from kvprobe.cli.streams import emit
        from kvprobe.summary.jsonable import jsonable

        emit(json.dumps(jsonable(found), allow_nan=False) + "\n")
        return
    from kvprobe.cli.present import show
    from kvprobe.report.replay_text import render_replay

    show(lambda page: render_replay(found, page), no_color=no_color)
