#!/usr/bin/env python3
"""How true is the client, and what does it cost? Judged by a server that knows when chunks left.

Runs our real load workers, a bare aiohttp client and other load generators in turn against
`truth_server.py`, matches requests by id, and prints errors against the server's own stamps and CPU per
request. Figures pass or fail nothing: timing on a busy machine says more about the machine. A trap
that does not give its defined value does fail (exit code 1): that is no matter of speed.

    python benchmarks/client_truth.py [--quick] [--peers FOLDER] [--minutes 12]

writes reports/client_truth.json and reports/client_truth.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from truth_clients import run_aiohttp, run_ours, run_peer
from truth_peers import TOKENIZER, Peer, peers_in
from truth_rig import ITL_MS, ROOT, TOKENS, TTFT_MS, truth_server
from truth_table import P99_NEEDS, Run, table
from truth_traps import meet_all, trap_table

NOTES = """\
- `error` compares the client's percentile with the same percentile of the server's own stamps.
- `sent` is stamped just before the bytes go to the socket; aiohttp's is stamped when the connection is in
  hand, a little earlier, so a part of its TTFT error is that earlier stamp.
- Processes 0: a peer chooses its own. Its CPU holds all of them and their start; TTFT is its own figure.
- `start in` counts the CPU of the process from its birth (imports and all), `start out` from the start
  signal on.
"""
AIMS = (
    "TTFT p50 error <= 1 % at 32 and 128; p99 within 5 % of the truth at 128; at 512 on two processes "
    "<= 20 %, or the run says INVALID; CPU at 128 <= 1.2 x aiohttp"
)
MAX_REQUESTS = 2_048
"""Of one client at one number of streams: some peers need 60 CPU-ms for each."""
PEER_TIMEOUT_S = 180.0


@dataclass
class Bench:
    """What has been measured, and what has not and why."""

    ends_at_s: float
    runs: list[Run] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        return self.ends_at_s - time.monotonic()

    def take(self, what: str, measure: Callable[[], Run]) -> None:
        """A client that fails, or for which no time is left, is named and not the end of the others."""
        try:
            if self.left_s <= 0:
                raise RuntimeError("the time of --minutes was up")
            self.runs.append(measure())
            print(f"{what}: done", file=sys.stderr)
        except RuntimeError as error:
            self.missed.append(f"{what}: {' '.join(str(error).split())[:300]}")
            print(self.missed[-1], file=sys.stderr)


def rounds_for(streams: int, rounds: int) -> int:
    """Enough requests that a p99 can be told, where several streams bring them quickly, and not too
    many for the costlier clients."""
    if streams == 1:
        return rounds
    return max(-(-P99_NEEDS // streams), min(rounds, MAX_REQUESTS // streams))


def plans(
    options: argparse.Namespace, bench: Bench, url: str, folder: Path
) -> Iterator[tuple[str, Callable[[], Run]]]:
    """All runs of one pass interleaved, so that a change of the machine's mood hits all clients."""
    peers = peers_in(options.peers)
    for streams in options.streams:
        each = rounds_for(streams, options.rounds)
        yield f"{streams} streams, aiohttp", partial(run_aiohttp, url, streams, each)
        for processes in (1, 2) if streams > 1 else (1,):
            what = f"{streams} streams, kvprobe with {processes} process(es)"
            yield what, partial(run_ours, url, streams, processes, each, folder)
        for peer in peers:

            def measure(peer: Peer = peer, s: int = streams, e: int = each) -> Run:
                return run_peer(peer, url, s, e, folder, min(PEER_TIMEOUT_S, bench.left_s))

            yield f"{streams} streams, {peer.name}", measure


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def page(document: dict[str, Any], runs: list[Run], traps: dict[str, str]) -> str:
    """The report in Markdown."""
    told = ", ".join(f"{name} {value}" for name, value in document["machine"].items())
    text = (
        f"# Client truth\n\n`{document['command']}`: {document['plan']}.\n\n"
        f"Machine: {told}. Client and server share its cores.\n\n"
        f"{table(runs)}\n\n{trap_table(traps)}\n\nAims on a quiet machine: {AIMS}.\n\n{NOTES}"
    )
    if missed := document["not_measured"]:
        text += "\nNot measured:\n\n" + "".join(f"- {line}\n" for line in missed)
    return text


def options_of() -> argparse.Namespace:
    """The command line; `--quick` sets what it was not told."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="1 and 32 streams, 2 requests a stream, 3 min")
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--rounds", type=int, help="requests of each stream, one after the other (8)")
    parser.add_argument("--streams", type=int, nargs="+", help="(1 32 128 512)")
    parser.add_argument("--minutes", type=float, help="begin nothing after so long (12)")
    parser.add_argument("--peers", type=Path, help="folder of virtual environments of guidellm and aiperf")
    parser.add_argument("--reports", type=Path, default=ROOT / "reports")
    options = parser.parse_args()
    quick = options.quick
    options.rounds = options.rounds or (2 if quick else 8)
    options.streams = options.streams or ([1, 32] if quick else [1, 32, 128, 512])
    options.minutes = options.minutes or (3.0 if quick else 12.0)
    return options


def command_line() -> str:
    """As it was given, with the variable that it depends on."""
    variable = f"{TOKENIZER}=FOLDER " if os.environ.get(TOKENIZER) else ""
    return f"{variable}python benchmarks/client_truth.py {' '.join(sys.argv[1:])}".strip()


def main() -> int:
    """The traps first, then the clients in turn until all were met or the time is up."""
    options = options_of()
    bench = Bench(time.monotonic() + options.minutes * 60)
    before = machine()
    traps = meet_all()
    with tempfile.TemporaryDirectory() as folder, truth_server() as url:
        for _ in range(options.passes):
            for what, measure in plans(options, bench, url, Path(folder)):
                bench.take(what, measure)
    document = {
        "command": command_line(),
        "machine": before,
        "plan": f"{TTFT_MS:g} ms to the first token, then {ITL_MS:g} ms, {TOKENS} tokens, "
        f"{options.passes} pass(es), {MAX_REQUESTS:,} requests a client at most",
        "runs": [asdict(r) for r in bench.runs],
        "traps": traps,
        "not_measured": bench.missed,
    }
    text = page(document, bench.runs, traps)
    print(text)
    options.reports.mkdir(parents=True, exist_ok=True)
    (options.reports / "client_truth.md").write_text(text, encoding="utf-8")
    written = json.dumps(document, indent=1) + "\n"
    (options.reports / "client_truth.json").write_text(written, encoding="utf-8")
    return 0 if all(said == "ok" for said in traps.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
