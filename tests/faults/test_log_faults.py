"""Logs that are huge, broken or hostile (F49 to F56): bounded memory, bounded time, an honest answer."""

from __future__ import annotations

import gzip
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvprobe.cli.main import main
from kvprobe.observe.logs.intake import read_logs, read_text
from tests.observe.logs.logkit import OOM

MIB = 2**20
_CHILD = (
    "import sys\n"
    "from kvprobe.cli.main import main\n"
    "code = main(['diagnose', '-', '--json', *sys.argv[1:]])\n"
    # Not ru_maxrss: a child begins with that of its parent, which runs these tests.
    "peak = [x for x in open('/proc/self/status') if x.startswith('VmHWM')]\n"
    "print(code, int(peak[0].split()[1]) // 1024, file=sys.stderr)\n"
)


def piece(kind: str) -> bytes:
    """About 1 MiB of a log."""
    if kind == "mixed":
        access = 'INFO:     10.0.0.1:1234 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        stats = (
            "INFO 01-02 03:04:05 [loggers.py:127] Engine 000: Avg prompt throughput: {0}.0 tokens/s, Avg "
            "generation throughput: 5.0 tokens/s, Running: {0} reqs, Waiting: 0 reqs, GPU KV cache usage: "
            "{0}.0%, Prefix cache hit rate: 1.0%\n"
        )
        return "".join(access * 40 + stats.format(i % 90) for i in range(320)).encode()
    if kind == "all hits":
        return "".join(
            f"INFO 01-02 03:04:05 [x.py:1] CUDA out of memory {i}\n" for i in range(20_000)
        ).encode()
    if kind == "novel hits":
        line = "INFO 01-02 03:04:05 [x.py:1] {} CUDA out of memory of {}\n"
        return "".join(line.format(os.urandom(8).hex(), os.urandom(20).hex()) for i in range(9_000)).encode()
    return os.urandom(MIB - 1) + b"\n"


def fed(kind: str, mebibytes: int, *argv: str) -> tuple[dict[str, Any], int]:
    """The diagnosis of so much through stdin, and the most memory in MiB."""
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None
    one = piece(kind)
    for _ in range(mebibytes * MIB // len(one)):
        child.stdin.write(one)
    out, err = child.communicate(f"{OOM}\n".encode(), timeout=100)
    code, rss = err.split()[-2:]
    assert code == b"0", err
    return json.loads(out), int(rss)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(("kind", "mebibytes"), [("mixed", 100), ("all hits", 16), ("garbage", 16)])
def test_f49_memory_does_not_grow_with_the_log(kind: str, mebibytes: int) -> None:
    small, rss_small = fed(kind, 2)
    large, rss_large = fed(kind, mebibytes)
    assert rss_large < 200
    assert rss_large - rss_small < 60
    assert large["primary"] == small["primary"] != "unknown"
    assert large["read"]["bytes"] > (mebibytes - 2) * MIB


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_f49_kinds_of_lines_without_end_stay_bounded() -> None:
    """Every line is new, so none is passed over; what is kept of them is bounded all the same."""
    _, rss_small = fed("novel hits", 1)
    found, rss_large = fed("novel hits", 6)
    assert rss_large - rss_small < 60
    assert found["primary"] != "unknown"


def test_f49_tail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(piece("mixed") * 8 + f"{OOM}\n".encode())
    lines = log.read_bytes().count(b"\n")
    assert main(["diagnose", str(log), "--tail", "64KiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["read"]["bytes"] <= 64 * 1024
    evidence = [e for f in found["findings"] for e in f["evidence"]]
    assert lines in {e["line"] for e in evidence}, "numbers are those of the whole file"
    assert any("--tail" in note for note in found["read"]["notes"])


def test_f49_progress_is_for_terminals(tmp_path: Path) -> None:
    """On a terminal a line is redrawn and taken away again; elsewhere nothing is said (test_stdin)."""
    log = tmp_path / "a.log"
    log.write_bytes(piece("mixed") * 4)
    code = (
        "import sys\nfrom kvprobe.cli import log_progress\n"
        "log_progress._SILENT_S = log_progress._EVERY_S = 0.0\n"
        "from kvprobe.cli.main import main\nsys.exit(main(['diagnose', sys.argv[1], '--json']))"
    )
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code, str(log)], stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=True
    )
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "reading" in shown
    assert "100.0 %" in shown
    assert shown.endswith("\r")
    json.loads(done.stdout)


def test_f50_garbage_is_replaced_and_counted() -> None:
    read = read_text(
        b"\xff\xfe\x00\x00" + bytes(range(256)) * 100 + b"\n" + OOM.encode() + b"\xc3\n\x00" + OOM.encode()
    )
    assert [e.name for e in read.events if e.name == "torch_oom"]
    assert any("were replaced" in note for note in read.notes)
    assert any("NUL" in note for note in read.notes)


@pytest.mark.parametrize("filler", [b"x", b"\x00", b"\xe2\x96\x88", b"\r 10%", b" "])
def test_f51_a_line_of_fifty_megabytes_is_cut(filler: bytes, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("wb") as file:
        file.write(b"first\n")
        for _ in range(50):
            file.write(filler * (MIB // len(filler)))
        file.write(b"\n" + OOM.encode() + b"\n")
    begin = time.process_time()
    read = read_logs([str(log)])
    assert time.process_time() - begin < 20
    assert [e.line for e in read.events if e.name == "torch_oom"] == [3]
    assert any("64 KiB" in note for note in read.notes)


def test_f51_a_line_that_never_ends(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(OOM.encode() + b" " + b"y" * (5 * MIB))
    read = read_logs([str(log)])
    assert [e.line for e in read.events if e.name == "torch_oom"] == [1]
    assert all(len(e.text) < 3_000 for e in read.events)


def test_f52_a_bomb_does_not_go_off(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb") as file:
        for _ in range(200):
            file.write(b"\0" * MIB)
    assert bomb.stat().st_size < 250_000
    read = read_logs([str(bomb)])
    assert read.bytes < 100 * MIB
    assert any("unpacks to more than" in note for note in read.notes)


def test_f53_one_incident_through_every_collector(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The same eight lines as eight collectors write them: the same event, the same numbers."""
    plain = [
        "INFO 01-02 03:04:05 [core.py:61] Initializing a V1 LLM engine (v0.11.0) with config: model='m'",
        "INFO 01-02 03:04:06 [gpu_model_runner.py:2602] Starting to load model m...",
        "ERROR 01-02 03:04:07 [core.py:708] Traceback (most recent call last):",
        f"ERROR 01-02 03:04:07 [core.py:708] {OOM}",
    ]
    stamp = "2026-01-02T03:04:0{}.000000000Z"
    collectors = {
        "plain": plain,
        "crlf": [f"{line}\r" for line in plain],
        "compose": [f"vllm-1  | {line}" for line in plain],
        "colour": [f"\x1b[36m(EngineCore_DP0 pid=7)\x1b[0;0m {line}" for line in plain],
        "journald": [f"Jan 02 03:04:0{i} host vllm[7]: {line}" for i, line in enumerate(plain)],
        "k8s": [f"{stamp.format(i)} stderr F {line}" for i, line in enumerate(plain)],
        "docker": [
            json.dumps({"log": f"{line}\n", "stream": "stderr", "time": stamp.format(i)})
            for i, line in enumerate(plain)
        ],
        "ci": [f"{stamp.format(i)[:-3]}Z {line}" for i, line in enumerate(plain)],
        "ray": [f"(RayWorkerWrapper pid=7, ip=10.0.0.1) {line}" for line in plain],
        "quoted": [f"> {line}" for line in plain],
        "fenced": ["```", *plain, "```", "<details><summary>logs</summary>"],
        "indented": [f"    {line}" for line in plain],
        "entities": [line.replace("'", "&#39;").replace(">", "&gt;") for line in plain],
    }
    answers = {}
    for name, lines in collectors.items():
        log = tmp_path / f"{name}.log"
        log.write_text("\n".join(lines) + "\n")
        assert main(["diagnose", str(log), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        facts = found["findings"][0]["evidence"][0]["facts"]
        answers[name] = (
            found["primary"],
            found["read"]["engine"],
            found["read"]["engine_version"],
            json.dumps(facts),
        )
    assert set(answers.values()) == {answers["plain"]}, answers


@pytest.mark.parametrize(
    "forged",
    [
        "INFO 01-02 03:04:05 [logger.py:40] Received request c: prompt: 'Why? {}', params: SamplingParams()",
        '{{"model": "m", "messages": [{{"role": "user", "content": "{}"}}]}}',
        'INFO:     10.0.0.1:1 - "GET /v1/models?q={} HTTP/1.1" 200 OK',
        "user: {}",
    ],
)
def test_f55_a_forged_line_does_not_convince(
    forged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stats = "Engine 000: Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 40.0%"
    healthy = f"INFO 01-02 03:04:05 [loggers.py:127] {stats}\n"
    log = tmp_path / "a.log"
    log.write_text(healthy * 30 + forged.format(OOM) + "\n" + healthy * 30)
    assert main(["diagnose", str(log), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    named = {f["cause"] for f in found["findings"] if f["role"] != "ruled_out"}
    assert named <= {"unknown", "kv_pool_idle"}, named
