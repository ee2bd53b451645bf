"""`python -m kvprobe.traces IN [-o OUT]`: any known trace as our own JSONL; what was dropped is counted."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from kvprobe.cli.errors_out import report
from kvprobe.errors import Exit, KvprobeError, Problem, StorageError, UsageError
from kvprobe.report.sanitize import clean
from kvprobe.traces.formats import FORMATS
from kvprobe.traces.read import Trace, open_trace
from kvprobe.traces.write import write_rows


def main(argv: Sequence[str]) -> int:
    """Converts one trace; returns the exit code."""
    args = _parser().parse_args(argv)
    try:
        trace = open_trace(
            Path(args.trace), args.format, scale_time=args.scale_time, scale_len=args.scale_len
        )
        with _output(args.output, Path(args.trace)) as out:
            written = write_rows(trace.rows(), out)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.STDOUT_CLOSED
    except KvprobeError as error:
        report(error.problems, as_json=False)
        return error.exit_code
    print(_counts(trace, written), file=sys.stderr)
    return Exit.OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kvprobe.traces", description=__doc__)
    parser.add_argument("trace", metavar="IN", help="a trace of a known format")
    parser.add_argument("-o", "--output", metavar="OUT", help="file to write (default: stdout)")
    parser.add_argument(
        "--format", choices=["auto", *FORMATS], default="auto", help="default: told by columns"
    )
    parser.add_argument("--scale-time", type=float, default=1.0, metavar="X", help="0.5 is twice as fast")
    parser.add_argument(
        "--scale-len", type=float, default=1.0, metavar="X", help="factor on prompts and answers"
    )
    return parser


@contextlib.contextmanager
def _output(path: str | None, trace: Path) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    if os.path.exists(path) and os.path.samefile(path, trace):
        problem = Problem("same_file", "IN and OUT are the same file", "write to another file")
        raise UsageError(problem)
    target = Path(os.path.realpath(path))
    if path.startswith("/dev/") or (target.exists() and not target.is_file()):
        # A pipe, a device, or another name of what is open already: there is nothing to put in place.
        with _writing(path), open(path, "w", encoding="utf-8") as file:
            yield file
        return
    # A trace that turns out bad in its last line leaves OUT as it was.
    temporary = target.with_name(f".{target.name[:200]}.{os.getpid()}.tmp")
    try:
        with _writing(path), open(temporary, "x", encoding="utf-8") as file:
            yield file
        with _writing(path):
            os.replace(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = Problem("not_written", f"{path} cannot be written: {error.strerror}", "choose another file")
        raise StorageError(problem) from error


def _counts(trace: Trace, written: int) -> str:
    dropped = ", ".join(f"{n:,} {why}" for why, n in trace.dropped.items()) or "none"
    orphans = f"; {trace.orphans:,} rows whose parent chat is not in the file" if trace.orphans else ""
    return clean(f"{trace.format}: {written:,} rows written; dropped: {dropped}{orphans}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
