"""How fast `kvprobe diagnose` reads logs, as a ratio to `grep -cF -f` with the same anchors.

    python benchmarks/log_speed.py [--size 1GiB] [--stdin SIZE] [--keep FILE] [--report FILE]

The log is made here: access lines, request lines with prompts, statistics every few hundred lines, a
start-up, progress bars, kernel lines, and an out-of-memory at the end; several prefixes are mixed. grep
counts lines with any of the byte strings that the intake searches blocks for. `--stdin` feeds a larger log
from a generator through a pipe and reports the memory of the reading process.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kvprobe.observe.logs.intake import LogRead, read_logs
from kvprobe.observe.logs.prefilter import needles
from kvprobe.observe.logs.readers import all_readers
from kvprobe.plan.sizes import parse_size

MIB = 2**20
RUNS = 3
BUSY_LOAD = 1.5
"""Our own process makes about 1."""
_WORDS = [
    "the",
    "model",
    "answer",
    "cache",
    "token",
    "request",
    "memory",
    "server",
    "with",
    "and",
    "for",
    "this",
]
_DAY_S = 86_400


def lines(rng: random.Random) -> Iterator[str]:
    """An endless month of a busy vLLM server behind docker compose, and of what logs beside it."""
    yield from _start()
    second = 0
    while True:
        second += 1
        day, hour, minute = second // _DAY_S % 28 + 1, second // 3600 % 24, second // 60 % 60
        clock = f"11-{day:02d} {hour:02d}:{minute:02d}:{second % 60:02d}"
        for _ in range(rng.randint(20, 60)):
            yield _request(rng, clock)
        if second % 10 == 0:
            yield _stats(rng, clock)
        if second % 7 == 0:
            yield f"Jan 26 17:48:{second % 60:02d} host systemd[1]: Started session {second} of user ops.\n"


def _start() -> Iterator[str]:
    engine = "Initializing a V1 LLM engine (v0.11.0) with config: model='m', max_seq_len=8192"
    yield f"INFO 11-01 00:00:00 [core.py:61] {engine}\n"
    for i in range(101):
        yield f"Loading safetensors checkpoint shards: {i:3d}% Completed | {i}/100 [00:12<00:10,  1.2it/s]\n"
    yield "INFO 11-01 00:02:00 [gpu_worker.py:298] Available KV cache memory: 51.20 GiB\n"
    yield "INFO 11-01 00:02:01 [kv_cache_utils.py:1087] GPU KV cache size: 419,424 tokens\n"


def _request(rng: random.Random, clock: str) -> str:
    kind = rng.random()
    host = f"10.0.{rng.randint(0, 255)}.{rng.randint(0, 255)}:{rng.randint(1024, 65535)}"
    if kind < 0.6:
        return f'vllm-1  | (APIServer pid=1) INFO:     {host} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    if kind < 0.85:
        words = " ".join(rng.choices(_WORDS, k=rng.randint(10, 80)))
        return (
            f"(APIServer pid=1) INFO {clock} [logger.py:40] Received request cmpl-{rng.getrandbits(64):x}: "
            f"prompt: '{words}', params: SamplingParams(n=1, temperature=0.7), lora_request: None.\n"
        )
    if kind < 0.95:
        return f'[2026-{clock}] INFO:     {host} - "POST /generate HTTP/1.1" 200 OK\n'
    stamp, took = 1.78e9 + rng.random() * 1e6, rng.randint(1, 900)
    return f'{{"level":"info","ts":{stamp:.3f},"msg":"proxied","upstream":"{host}","ms":{took}}}\n'


def _stats(rng: random.Random, clock: str) -> str:
    prompt, generated, usage = rng.uniform(0, 5000), rng.uniform(0, 2000), rng.uniform(5, 95)
    running = rng.randint(0, 200)
    return (
        f"(APIServer pid=1) INFO {clock} [loggers.py:127] Engine 000: Avg prompt throughput: "
        f"{prompt:.1f} tokens/s, Avg generation throughput: {generated:.1f} tokens/s, "
        f"Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: {usage:.1f}%, "
        "Prefix cache hit rate: 12.5%\n"
    )


OOM = (
    "(EngineCore_DP0 pid=7) ERROR 11-28 00:00:00 [core.py:710] torch.OutOfMemoryError: CUDA out of memory. "
    "Tried to allocate 1.25 GiB. GPU 0 has a total capacity of 79.15 GiB of which 602.00 MiB is free. "
    "Process 7 has 78.55 GiB memory in use. Of the allocated memory 76.00 GiB is allocated by PyTorch, "
    "and 512.00 MiB is reserved by PyTorch but unallocated.\n"
)


def chunks(size_bytes: int, seed: int = 1) -> Iterator[bytes]:
    """The log in pieces of about 16 MiB, `size_bytes` in all; pieces repeat (making them is slow)."""
    made: list[bytes] = []
    source, room = lines(random.Random(seed)), 0
    while len(made) < 4 and room < size_bytes:
        piece, length = [], 0
        while length < 16 * MIB:
            text = next(source)
            piece.append(text)
            length += len(text)
        made.append("".join(piece).encode())
        room += length
    written, i = 0, 0
    while written < size_bytes:
        part = made[i % len(made)]
        yield part
        written += len(part)
        i += 1
    yield OOM.encode()


def _best(command: list[str], stdin: Path | None = None) -> float:
    """Least seconds of several runs: noise only adds."""
    times = []
    for _ in range(RUNS):
        with open(stdin or os.devnull, "rb") as source:
            begin = time.perf_counter()
            # not to /dev/null: grep sees that and stops at the first match
            subprocess.run(command, stdin=source, stdout=subprocess.PIPE, check=False)
            times.append(time.perf_counter() - begin)
    return min(times)


def measure(size_bytes: int, keep: Path | None) -> dict[str, float]:
    """Seconds of grep and of the intake over one file, both from the page cache."""
    with tempfile.TemporaryDirectory() as folder:
        log, anchors = keep or Path(folder) / "mixed.log", Path(folder) / "anchors"
        with open(log, "wb") as file:
            for part in chunks(size_bytes):
                file.write(part)
        readers = all_readers()
        found = needles([anchor for reader in readers for anchor in reader.anchors])
        anchors.write_bytes(b"\n".join(found) + b"\n")
        grep = _best(["env", "LC_ALL=C", "grep", "-cF", "-f", str(anchors), str(log)])
        grep_utf8 = _best(["env", "LC_ALL=C.UTF-8", "grep", "-cF", "-f", str(anchors), str(log)])
        ours, read = [], LogRead()
        for _ in range(RUNS):
            begin = time.perf_counter()
            read = read_logs([str(log)])
            ours.append(time.perf_counter() - begin)
        whole = _best([sys.executable, "-m", "kvprobe", "diagnose", str(log), "--json"])
        return {
            "bytes": read.bytes,
            "lines": read.lines,
            "events": len(read.events),
            "anchors": len(found),
            "grep_s": grep,
            "grep_utf8_s": grep_utf8,
            "intake_s": min(ours),
            "command_s": whole,
            "ratio": grep / min(ours),
        }


def through_stdin(size_bytes: int) -> dict[str, float]:
    """A larger log through a pipe: seconds, and the most memory that the command held."""
    code = (
        "import sys\nfrom kvprobe.cli.main import main\nmain(['diagnose', '-', '--json'])\n"
        # Not ru_maxrss: a child begins with its parent's.
        "peak = [x for x in open('/proc/self/status') if x.startswith('VmHWM')]\n"
        "print(peak[0].split()[1], file=sys.stderr)"
    )
    begin = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stderr is not None
    fed = 0
    for part in chunks(size_bytes):
        child.stdin.write(part)
        fed += len(part)
    child.stdin.close()
    told = child.stderr.read().split()
    child.wait()
    return {"stdin_bytes": fed, "stdin_s": time.perf_counter() - begin, "stdin_rss_MiB": int(told[-1]) / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="1GiB", help="of the file (default: 1GiB)")
    parser.add_argument("--stdin", metavar="SIZE", help="also feed so much through a pipe")
    parser.add_argument("--keep", type=Path, help="write the log here and leave it")
    parser.add_argument("--report", type=Path, help="write the figures as Markdown")
    args = parser.parse_args()
    figures = measure(parse_size(args.size, "--size").nominal, args.keep)
    if args.stdin:
        figures |= through_stdin(parse_size(args.stdin, "--stdin").nominal)
    load = os.getloadavg()[0]
    rows = [
        f"| {name} | {value:,.3f} |" if isinstance(value, float) else f"| {name} | {value:,} |"
        for name, value in figures.items()
    ]
    table = "\n".join(["| what | figure |", "| --- | ---: |", *rows])
    print(f"{table}\n\nratio to grep (1 is grep's speed): {figures['ratio']:.2f}; load average {load:.1f}")
    if args.report:
        args.report.write_text(_report(table, figures, load, sys.argv[1:]), encoding="utf-8")


def _report(table: str, figures: dict[str, float], load: float, argv: list[str]) -> str:
    cores = os.cpu_count() or 1
    quiet = load <= BUSY_LOAD
    busy = f"The machine was busy with other work (load average {load:.1f} on {cores} cores)"
    return (
        "# Speed of the log reader\n\n"
        f"`python benchmarks/log_speed.py {' '.join(argv)}`\n\n{table}\n\n"
        f"Ratio to `grep -cF -f` with the same byte strings: **{figures['ratio']:.2f}** (aim: 0.25 or more). "
        "`intake_s` is reading to typed events, `command_s` the whole command with the diagnosis, each the "
        f"least of {RUNS} runs from the page cache. {'The machine was quiet' if quiet else busy}.\n"
    )


if __name__ == "__main__":
    main()
