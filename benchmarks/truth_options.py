"""The switches of truth_server.py."""

from __future__ import annotations

import argparse
from pathlib import Path


def positive(text: str) -> int:
    """An integer of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def parse_options(description: str | None, argv: list[str] | None = None) -> argparse.Namespace:
    """The switches. Times are in milliseconds."""
    formatter = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(description=description, formatter_class=formatter)
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=0, help="0: any free port")
    p.add_argument("--model", default="truth")
    p.add_argument("--ttft", type=float, default=200.0, help="ms from request to first content chunk")
    p.add_argument("--itl", type=float, default=20.0, help="ms between content chunks")
    p.add_argument("--tokens", type=positive, default=32, help="when the request names none")
    p.add_argument("--cap", action="store_true", help="never more than --tokens, whatever is asked")
    p.add_argument("--tokens-per-chunk", type=positive, default=1)
    p.add_argument("--role-chunk", choices=("none", "immediate", "with-first"), default="with-first")
    p.add_argument("--reasoning", type=int, default=0, help="so many first chunks are reasoning")
    p.add_argument("--reasoning-key", choices=("reasoning_content", "reasoning"), default="reasoning_content")
    p.add_argument("--no-usage", action="store_true")
    p.add_argument("--error-after", type=int, help="an error object in the stream after so many chunks")
    p.add_argument("--error-done", action="store_true", help="finish in good order after that error")
    p.add_argument("--drop-after", type=int, help="close the connection after so many chunks")
    p.add_argument("--status", type=int, default=0, help="answer with this status instead")
    p.add_argument("--status-every", type=positive, default=1, help="only every so many requests")
    p.add_argument("--split", action="store_true", help="each write in two")
    p.add_argument("--coalesce", type=positive, default=1, help="so many chunks in one write")
    p.add_argument("--comment", action="store_true", help="an SSE comment at once")
    p.add_argument("--jitter", type=float, default=0.0, help="each gap times 1 +- this")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--stall-at", type=int, default=10, help="the chunk that comes late")
    p.add_argument("--stall-ms", type=float, default=0.0)
    p.add_argument("--stall-every", type=positive, default=1, help="only every so many requests")
    p.add_argument("--kv-slots", type=positive, default=128, help="open requests that count as a full cache")
    p.add_argument("--truth", type=Path, help="append rows to this JSONL file at reset and at the end")
    p.add_argument("--max-seconds", type=float, default=3600.0, help="end by itself")
    return p.parse_args(argv)
