"""`kvprobe plan`: before launch, what a token costs and what fits. Reads files only."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvprobe.cli.options import add_common, from_environment
from kvprobe.cli.report import add_page_options, page_demands, write
from kvprobe.errors import Exit, Problem, UsageError

if TYPE_CHECKING:
    from kvprobe.plan.document import PlanDocument

_EPILOG = """\
Sizes have a unit: GiB is 2^30 bytes (what engines and nvidia-smi mean), GB is 10^9. A size with decimals is
taken as rounded: 5.29GiB stands for 5.285 to 5.295, and the answer shows what that leaves open.

  kvprobe plan --model config.json --gpu 80GiB --weights 14GiB --overhead 6GiB --margin 4GiB
  kvprobe plan --model DIR --gpu H100 --engine vllm --lengths p50=1000,p95=8000,max=32000
  kvprobe plan --model config.json --engine vllm --available-kv 5.29GiB --max-model-len 2048

--lengths: fixed:4096 | p50=1000,p95=8000,max=32000 | lognormal:median=1000,p95=8000 | uniform:100-4000 |
a trace (Azure, BurstGPT, vidur CSV; Mooncake, Qwen JSONL) | a run directory of kvprobe
"""
_MEMORY = (
    ("gpu", "SIZE|NAME", "memory of one GPU, or its name (H100, A100-80GB, RTX 4090, ...)"),
    ("weights", "SIZE", "weights on one GPU; default: from the model's files"),
    ("overhead", "SIZE", "fixed runtime besides weights: context, buffers, activations"),
    ("margin", "SIZE", "safety margin to leave free (without --engine)"),
    ("available-kv", "SIZE", "what is left for the cache, from a log; overrides the budget"),
    ("gpu-memory-utilization", "U", "vLLM: share of the TOTAL memory (default 0.92, before 0.20: 0.9)"),
    ("non-torch", "SIZE", "memory outside torch, from a log"),
    ("activation-peak", "SIZE", "activation peak, from a log"),
    ("graphs", "SIZE", "CUDA-graph estimate, from a log (vLLM from 0.20)"),
    ("free-memory", "SIZE", "free after the model is loaded (vLLM: free at start)"),
    ("kv-fraction", "F", "TensorRT-LLM, LMDeploy: share of the memory free after load"),
    ("mem-fraction-static", "F", "SGLang: share for weights and cache"),
)
_ENGINE = (
    ("engine", "NAME", "vllm, sglang, llama.cpp, trtllm, lmdeploy, transformers or reference"),
    ("engine-version", "V", "its version (0.11.0, b6500, 2026-04); default: the newest"),
    ("tp", "N", "tensor-parallel GPUs"),
    ("pp", "N", "pipeline stages"),
    ("kv-dtype", "D", "format of the cache: auto, bf16, fp8, int8, nvfp4, q8_0, ..."),
    ("kv-dtype-k", "D", "format of K alone"),
    ("kv-dtype-v", "D", "format of V alone"),
    ("block-size", "B", "tokens of a block"),
    ("max-model-len", "N", "context limit in tokens"),
    ("max-num-batched-tokens", "N", "tokens of one step"),
    ("max-num-seqs", "N", "most requests at once"),
    ("max-running-requests", "N", "SGLang: most requests at once"),
    ("prefix-caching", "on|off", "reuse of equal prefixes"),
    ("mamba-cache-mode", "MODE", "vLLM: none, align or all"),
    ("speculative-tokens", "N", "tokens guessed ahead"),
    ("draft-layers", "N", "layers of a draft head (EAGLE, MTP)"),
    ("swa-full-tokens-ratio", "F", "SGLang: sliding-window tokens for each full one"),
    ("mamba-full-memory-ratio", "F", "SGLang: state memory for each KV memory"),
    ("swap-space", "SIZE", "vLLM V0: CPU memory for swapping"),
    ("ctx", "N", "llama.cpp: cells of the cache, over all slots"),
    ("parallel", "N", "llama.cpp: slots"),
    ("ubatch", "N", "llama.cpp: tokens of a micro-batch"),
)
_TRAFFIC = (
    ("tokens", "N", "also give the bytes of so many tokens"),
    ("lengths", "SPEC", "lengths of requests, prompt and answer together; see below"),
    ("shared-prefix", "N", "tokens at the start that all requests share"),
    ("preemption-probability", "P", "chance of a preemption that is accepted (default 0.01)"),
    ("price-per-hour", "P", "price of one GPU"),
    ("output-tokens-per-s", "X", "measured output speed, for the price of a million tokens"),
    ("running", "'ARGS'", "flags of the server that runs now: shows what to change"),
    ("claim", "SIZE", "a size you were told, per token or for --tokens: which mistake explains it?"),
)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "plan", help="before launch: what a token costs and what fits", description=__doc__, epilog=_EPILOG
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="PATH",
        help="model directory, config.json or FILE.gguf; several are set side by side",
    )
    for title, options in (("memory", _MEMORY), ("engine", _ENGINE), ("traffic", _TRAFFIC)):
        group = parser.add_argument_group(title)
        for name, metavar, text in options:
            group.add_argument(f"--{name}", metavar=metavar, help=text.replace("%", "%%"))
        if title == "engine":
            unified = group.add_mutually_exclusive_group()
            unified.add_argument(
                "--kv-unified", action="store_true", default=None, help="llama.cpp: one cache for all slots"
            )
            unified.add_argument(
                "--no-kv-unified", dest="kv_unified", action="store_false", help="llama.cpp: one cache a slot"
            )
            group.add_argument(
                "--swa-full", action="store_true", help="llama.cpp: sliding layers keep all tokens"
            )
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="also write the pre-launch report as a page"
    )
    parser.add_argument("--md", metavar="FILE", type=Path, help="also write it as Markdown")
    add_page_options(parser)
    add_common(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    names = [name.replace("-", "_") for options in (_MEMORY, _ENGINE, _TRAFFIC) for name, _, _ in options]
    switches = ("swa_full", "no_color", *(("kv_unified",) if args.kv_unified is None else ()))
    from_environment(args, names, switches)
    if not args.model and (model := os.environ.get("KVPROBE_MODEL")):
        args.model = [model]
    if not args.model:
        fix = "give --model DIR, config.json or FILE.gguf"
        raise UsageError(Problem("no_model", "no --model was given", fix))
    demands = page_demands(args)
    from kvprobe.plan.api import plan_models
    from kvprobe.plan.settings import Settings

    settings = Settings(**{f.name: getattr(args, f.name) for f in fields(Settings)})
    document = plan_models(args.model, settings)
    if args.html is not None or args.md is not None:
        _write_pages(args, document, demands)
    _show(document, as_json=args.json, no_color=args.no_color)
    return Exit.OK


def _show(document: PlanDocument, *, as_json: bool, no_color: bool) -> None:
    from kvprobe.cli.streams import emit

    if as_json:
        import json

        from kvprobe.plan.document import to_json

        emit(json.dumps(to_json(document), allow_nan=False) + "\n")
        return
    from kvprobe.cli.present import Page, console
    from kvprobe.report.plan_terminal import render_plan

    page = Page()
    render_plan(document, console(page, no_color=no_color))
    emit("\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n")


def _write_pages(args: argparse.Namespace, document: PlanDocument, demands: dict[str, float | None]) -> None:
    """A plan knows no rate: --demand counts only beside a measured run (`kvprobe report RUN --plan`)."""
    from kvprobe.plan.document import to_json
    from kvprobe.report.html_page import render_page
    from kvprobe.report.markdown_page import render_markdown
    from kvprobe.report.prelaunch.page import plan_reports

    report = plan_reports(
        to_json(document),
        args.lang or "en",
        demand_at_once=demands["demand_at_once"],
        growth=demands["growth"],
    )
    if args.html is not None:
        write(args.html, render_page(report))
    if args.md is not None:
        write(args.md, render_markdown(report))
