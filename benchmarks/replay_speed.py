#!/usr/bin/env python3
"""How fast is `kvprobe replay`'s simulator, beside public ones?

    python benchmarks/replay_speed.py [--requests 1000000] [--json FILE]
        [--peers kvcache-simulator=DIR/bin/python vidur=DIR/bin/python]

A trace like Mooncake's conversation trace is made from a seed (`mooncake_like.py`), and served by a pool of
3.2 M tokens in blocks of 16. Only simulating is timed; making the trace and compiling (once) are not.
First 2,000 requests are served compiled and as plain Python: the results must be equal, to the last float.

Each peer is given as the Python that it is installed in:

    python -m venv A; A/bin/pip install kvcache-simulator==0.1.3
    python -m venv B; B/bin/pip install --no-deps vidur==0.0.26
    B/bin/pip install numpy pandas scikit-learn ddsketch fasteners huggingface_hub plotly_express wandb

(vidur's other requirements are for its dashboards). They do different things, so each is compared twice: with
the whole simulation, and with kvprobe at a task as near to the peer's as there is. What cannot be driven is
named with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from replay_peers import (  # noqa: E402
    KVCACHE,
    NOTES,
    POOL,
    RATE,
    STEP,
    VIDUR,
    drive_kvcache,
    drive_vidur,
    metered,
    write_trace,
)

if TYPE_CHECKING:
    from kvprobe.plan.simulate.rows import Chunk
    from kvprobe.plan.simulate.server import Server

PEER_REQUESTS = 10_000
"""For vidur: its speed a request is compared, and hangs on the count but little."""
PEER_RATES = (RATE, 2.0)
"""Without reuse the server is overloaded at the one and keeps up at the other."""
REPEATS = 5
CHECKED_REQUESTS = 2_000


def ours(
    count: int, rate: float = RATE, *, reuse: bool = True, repeats: int = 1, trace: str | None = None
) -> dict[str, Any]:
    """Requests a second, peak memory, and a digest of the results; in this process.

    With `trace` the rows are read from that file, and nothing is served before.
    """
    from kvprobe.plan.simulate import compiled

    compiled.choose(None)
    from hashlib import sha256

    if trace is None:
        serve(made(10, rate), 10, reuse)
    runs = [serve(made(count, rate) if trace is None else read(trace), count, reuse) for _ in range(repeats)]
    server = runs[-1][2]
    return {
        "compiled": compiled.is_compiled(),
        "requests": server.rows,
        "wall_s": sum(run[0] for run in runs) / repeats,
        "cpu_s": sum(run[1] for run in runs) / repeats,
        "steps": server.steps,
        "events": server.events,
        "simulated_s": server.now_s,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "digest": sha256(server.sim.out[:count].tobytes()).hexdigest(),
    }


def made(count: int, rate: float) -> Iterator[Chunk]:
    from mooncake_like import rows

    return rows(count, rate=rate)


def read(trace: str) -> Iterator[Chunk]:
    from kvprobe.plan.simulate.rows import chunks
    from kvprobe.traces.read import open_trace

    return chunks(open_trace(Path(trace)).rows())


def serve(parts: Iterable[Chunk], count: int, reuse: bool) -> tuple[float, float, Server]:
    """Wall and CPU seconds of serving alone."""
    from kvprobe.plan.simulate.cost import StepCost
    from kvprobe.plan.simulate.server import Server
    from kvprobe.plan.simulate.settings import SimSettings

    pool: dict[str, Any] = {**POOL, "engine": "reference", "prefix_caching": reuse}
    cost: dict[str, Any] = {**STEP}
    server = Server(SimSettings(**pool), StepCost(**cost))
    wall, cpu, fed = 0.0, 0.0, 0
    for chunk in parts:
        fed += len(chunk)
        begin = time.perf_counter(), time.process_time()
        server.feed(chunk, last=fed == count)
        wall += time.perf_counter() - begin[0]
        cpu += time.process_time() - begin[1]
    return wall, cpu, server


def in_own_process(compile_it: bool, **asked: Any) -> dict[str, Any]:
    """`ours`, in a fresh process; that of a trace file is measured as a whole."""
    os.environ["KVPROBE_COMPILE"] = "1" if compile_it else "0"
    done = metered([sys.executable, __file__, "--child", json.dumps(asked)], limit_s=3600)
    if "why" in done:
        raise SystemExit(f"kvprobe itself failed: {done}")
    found: dict[str, Any] = json.loads(done["out"].splitlines()[-1])
    if "trace" in asked:
        found |= {name: done[name] for name in ("wall_s", "cpu_s", "peak_memory_bytes")}
    return found


_VERSION = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"


def peers(pythons: dict[str, str], count: int, peer_count: int) -> list[dict[str, Any]]:
    """Each peer at each of its tasks, with kvprobe at the same in `ours`; `why` where it is not driven."""
    found: list[dict[str, Any]] = []
    for name in (KVCACHE, VIDUR):
        if name not in pythons:
            found.append({"name": name, "why": f"no --peers {name}=PYTHON given"})
            continue
        argv = [pythons[name], "-c", _VERSION, name]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            found.append({"name": name, "why": "not installed there"})
            continue
        tasks = _kvcache(pythons[name], count) if name == KVCACHE else _vidur(pythons[name], peer_count)
        found += [{"name": name, "version": done.stdout.strip(), **task} for task in tasks]
    return found


def _kvcache(python: str, count: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        write_trace(trace, count)
        done = drive_kvcache(Path(python).parent / KVCACHE, trace)
        beside = in_own_process(True, count=count, trace=str(trace))
    return [{"task": "a trace file, whole process", **done, "requests": count, "ours": beside}]


def _vidur(python: str, count: int) -> list[dict[str, Any]]:
    found = []
    for rate in PEER_RATES:
        beside = in_own_process(True, count=count, rate=rate, reuse=False, repeats=REPEATS)
        task = f"{rate:g} requests a second, no reuse"
        found.append({"task": task, **drive_vidur(python, count, rate), "ours": beside})
    return found


def report(found: dict[str, Any]) -> str:
    main, plain = found["kvprobe"], found["plain"]
    driven = dict.fromkeys(one["name"] for one in found["peers"] if "why" not in one)
    given = f" --peers {' '.join(f'{name}=PYTHON' for name in driven)}" if driven else ""
    lines = [
        "# How fast `kvprobe replay` simulates",
        "",
        f"`python benchmarks/replay_speed.py --requests {main['requests']}{given}`, Python "
        f"{platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}. On a busy machine CPU seconds are the figure to trust.",
        "",
        "| simulator | requests | wall s | CPU s | requests a CPU second | peak memory |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        _row("kvprobe, compiled" if main["compiled"] else "kvprobe, plain Python", main),
        _row("kvprobe, plain Python", plain),
        "",
        f"{main['steps']:,} scheduler steps were simulated in {main['events']:,} events. Compiled and plain "
        f"results of {CHECKED_REQUESTS:,} requests are {'equal' if found['equal'] else 'NOT EQUAL'}.",
        "",
        *beside_peers(found["peers"], main),
    ]
    return "\n".join(lines) + "\n"


def beside_peers(found: list[dict[str, Any]], main: dict[str, Any]) -> list[str]:
    """Two ratios for each: on the same input, and of the simulation above."""
    driven = [one for one in found if "why" not in one]
    lines = ["## Beside public simulators", ""]
    if driven:
        lines += [
            "Requests a CPU second, all in one run. Above 1 kvprobe is the faster one, below 1 the peer.",
            "",
            "| peer | task | requests | CPU s | peak memory | peer: requests a CPU s | kvprobe, same input "
            "| ratio | kvprobe, first table | ratio |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
            *(_peer_row(one, main) for one in driven),
            "",
            *(f"- {name}: {NOTES[name]}" for name in dict.fromkeys(one["name"] for one in driven)),
        ]
    lines += [_work(one) for one in driven if "steps" in one]
    lines += [f"- {one['name']}: not driven: {_shown(one['why'])}" for one in found if "why" in one]
    return lines


def _peer_row(one: dict[str, Any], main: dict[str, Any]) -> str:
    rate, same, whole = _rate(one), _rate(one["ours"]), _rate(main)
    return (
        f"| {one['name']} {_shown(one['version'])} | {one['task']} | {one['requests']:,} "
        f"| {one['cpu_s']:.1f} | {_gib(one)} | {rate:,.0f} | {same:,.0f} | {same / rate:,.2f} "
        f"| {whole:,.0f} | {whole / rate:,.2f} |"
    )


def _work(one: dict[str, Any]) -> str:
    """Whether both did the same: steps, and the second at which the last request was done."""
    beside = one["ours"]
    return (
        f"- {one['name']}, {one['task']}: {one['steps']:,} steps up to second {one['simulated_s']:,.0f}; "
        f"kvprobe {beside['steps']:,} up to second {beside['simulated_s']:,.0f}, "
        f"in {beside['cpu_s']:.2f} CPU s (the mean of {REPEATS})."
    )


def _rate(one: dict[str, Any]) -> float:
    return float(one["requests"] / max(one["cpu_s"], 1e-9))


def _gib(one: dict[str, Any]) -> str:
    return f"{one['peak_memory_bytes'] / 2**30:.2f} GiB" if one.get("peak_memory_bytes") else "-"


def _shown(text: str) -> str:
    from kvprobe.report.sanitize import clean

    return clean(text, limit=200).replace("|", "\\|")


def _row(name: str, one: dict[str, Any]) -> str:
    return (
        f"| {name} | {one['requests']:,} | {one['wall_s']:.1f} | {one['cpu_s']:.1f} | {_rate(one):,.0f} "
        f"| {_gib(one)} |"
    )


def _named(text: str) -> tuple[str, str]:
    name, sign, python = text.partition("=")
    if not sign or name not in NOTES or not Path(python).is_file():
        raise argparse.ArgumentTypeError(f"give {KVCACHE}=PYTHON or {VIDUR}=PYTHON, each an existing file")
    return name, python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--peer-requests", type=int, default=PEER_REQUESTS, help=f"for {VIDUR}")
    parser.add_argument("--peers", metavar="NAME=PYTHON", nargs="+", type=_named, default=[])
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--write", action="store_true", help="to reports/replay_speed.md")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(ours(**options.child)))
        return
    plain = in_own_process(False, count=CHECKED_REQUESTS)
    checked = in_own_process(True, count=CHECKED_REQUESTS)
    found = {
        "kvprobe": in_own_process(True, count=options.requests),
        "plain": plain,
        "equal": plain["digest"] == checked["digest"],
        "peers": peers(dict(options.peers), options.requests, options.peer_requests),
    }
    text = report(found)
    print(text)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.write:
        (ROOT / "reports" / "replay_speed.md").write_text(text)
    sys.exit(0 if found["equal"] else 1)


if __name__ == "__main__":
    main()
