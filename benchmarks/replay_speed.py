#!/usr/bin/env python3
"""How fast is `kvprobe replay`'s simulator, beside public ones?

    python benchmarks/replay_speed.py [--requests 1000000] [--peers DIR/bin/python] [--json FILE]

A trace like Mooncake's conversation trace is made from a seed (`mooncake_like.py`), and served by a pool of
3.2 M tokens in blocks of 16. Only simulating is timed; making the trace and compiling (once) are not.
First 2,000 requests are served compiled and as plain Python: the results must be equal, to the last float.

`--peers` is a Python with `vidur` and `kvcache-simulator` installed (`python -m venv V; V/bin/pip install
kvcache-simulator vidur`). What cannot be driven is named with its reason. They do different things: vidur
simulates each step with measured kernels, kvcache-simulator replays block hits without time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

BLOCKS, RATE = 200_000, 5.0
PEER_REQUESTS = 5_000
CHECKED_REQUESTS = 2_000


def ours(count: int) -> dict[str, Any]:
    """Requests a second, peak memory, and a digest of the results; in this process."""
    from kvprobe.plan.simulate import compiled

    compiled.choose(None)
    from hashlib import sha256

    from mooncake_like import rows

    from kvprobe.plan.simulate.cost import StepCost
    from kvprobe.plan.simulate.server import Server
    from kvprobe.plan.simulate.settings import SimSettings

    def serve(size: int) -> tuple[float, float, Server]:
        settings = SimSettings(
            usable_blocks=BLOCKS, engine="reference", max_num_seqs=256, max_num_batched_tokens=8192
        )
        server = Server(settings, StepCost(fixed_s=0.008, token_s=1e-5, kv_token_s=2e-8))
        wall, cpu, fed = 0.0, 0.0, 0
        for chunk in rows(size, rate=RATE):
            fed += len(chunk)
            begin = time.perf_counter(), time.process_time()
            server.feed(chunk, last=fed == size)
            wall += time.perf_counter() - begin[0]
            cpu += time.process_time() - begin[1]
        return wall, cpu, server

    serve(10)
    wall, cpu, server = serve(count)
    return {
        "compiled": compiled.is_compiled(),
        "requests": count,
        "wall_s": wall,
        "cpu_s": cpu,
        "steps": server.steps,
        "events": server.events,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "digest": sha256(server.sim.out[:count].tobytes()).hexdigest(),
    }


def in_own_process(count: int, compile_it: bool) -> dict[str, Any]:
    environment = {**os.environ, "KVPROBE_COMPILE": "1" if compile_it else "0"}
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(count)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


_KVCACHE = """
import importlib.metadata as m, json, sys
name = sys.argv[1]
try:
    dist = m.distribution(name)
except m.PackageNotFoundError:
    print(json.dumps({"why": "not installed"})); raise SystemExit
tops = sorted({str(f).split("/")[0] for f in dist.files or () if str(f).endswith(".py")})
print(json.dumps({"version": dist.version, "modules": tops}))
"""


def peer(python: str | None, name: str) -> dict[str, Any]:
    """What is there of a peer; `why` where it cannot be driven."""
    if python is None:
        return {"name": name, "why": "no --peers given"}
    done = subprocess.run([python, "-c", _KVCACHE, name], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"name": name, "why": done.stderr.strip().splitlines()[-1][:200]}
    found: dict[str, Any] = {"name": name, **json.loads(done.stdout)}
    if "why" not in found:
        from replay_peers import drive

        found |= drive(python, name, PEER_REQUESTS)
    return found


def report(found: dict[str, Any]) -> str:
    main, checked = found["kvprobe"], found["equal"]
    lines = [
        "# How fast `kvprobe replay` simulates",
        "",
        f"`python benchmarks/replay_speed.py --requests {main['requests']}`, Python "
        f"{platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}. On a busy machine CPU seconds are the figure to trust.",
        "",
        "| simulator | requests | wall s | CPU s | requests a CPU second | peak memory |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        _row("kvprobe, compiled" if main["compiled"] else "kvprobe, plain Python", main),
    ]
    plain = found["plain"]
    lines.append(_row("kvprobe, plain Python", plain))
    lines += [_peer_row(one) for one in found["peers"]]
    lines += [
        "",
        f"{main['steps']:,} scheduler steps were simulated in {main['events']:,} events. Compiled and plain "
        f"results of {CHECKED_REQUESTS:,} requests are {'equal' if checked else 'NOT EQUAL'}.",
        "",
    ]
    lines += [f"- {one['name']}: {one['note']}" for one in found["peers"] if "note" in one]
    return "\n".join(lines) + "\n"


def _row(name: str, one: dict[str, Any]) -> str:
    memory = f"{one['peak_memory_bytes'] / 2**30:.2f} GiB" if one.get("peak_memory_bytes") else "-"
    return (
        f"| {name} | {one['requests']:,} | {one['wall_s']:.1f} | {one['cpu_s']:.1f} "
        f"| {one['requests'] / max(one['cpu_s'], 1e-9):,.0f} | {memory} |"
    )


def _peer_row(one: dict[str, Any]) -> str:
    if "cpu_s" in one:
        return _row(f"{one['name']} {one['version']}", one)
    return f"| {one['name']} | not driven: {one['why']} | | | | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--write", action="store_true", help="to reports/replay_speed.md")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(ours(options.child)))
        return
    plain = in_own_process(CHECKED_REQUESTS, False)
    checked = in_own_process(CHECKED_REQUESTS, True)
    found = {
        "kvprobe": in_own_process(options.requests, True),
        "plain": plain,
        "equal": plain["digest"] == checked["digest"],
        "peers": [peer(options.peers, name) for name in ("kvcache-simulator", "vidur")],
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
