"""Prefixes of loggers, launchers and collectors, alone and within each other."""

from __future__ import annotations

import json

import pytest

from kvprobe.observe.logs.entries import entries_of
from kvprobe.observe.logs.lines import Line

PREFIXES = [
    ("(EngineCore_DP0 pid=1234) INFO 11-30 15:27:19 [core.py:347] ", "EngineCore_DP0", 1234, "logger"),
    ("(VllmWorker rank=3 pid=22) ERROR 01-02 03:04:05 [multiproc_executor.py:487] ", "rank3", 22, "logger"),
    (
        "(Worker_DP1_TP1_EP3 pid=77) INFO 01-02 03:04:05 [gpu_worker.py:298] ",
        "Worker_DP1_TP1_EP3",
        77,
        "logger",
    ),
    ("(APIServer pid=1) ", "APIServer", 1, "bare"),
    ("INFO 01-02 03:04:05 worker.py:267] ", None, None, "logger"),
    ("WARNING 01-02 03:04:05 [config.py:12] ", None, None, "logger"),
    ("INFO 01-02 03:04:05.123 [v1/core/x.py:12] ", None, None, "logger"),
    ("[rank0]: ", "rank0", None, "bare"),
    ("[rank0]:[W1126 14:14:23.123456789 ProcessGroupNCCL.cpp:1250] ", "rank0", None, "logger"),
    ("vllm-1  | INFO 01-02 03:04:05 [core.py:1] ", "vllm-1", None, "logger"),
    ("vllm-server | (EngineCore pid=9) INFO 01-02 03:04:05 [core.py:1] ", "EngineCore", 9, "logger"),
    ("Jan 26 17:48:20 gpu7 vllm[811]: INFO 01-02 03:04:05 [core.py:1] ", "gpu7", 811, "logger"),
    ("2026-01-26T17:48:20+0100 gpu7 vllm[811]: INFO 01-02 03:04:05 [core.py:1] ", None, 811, "logger"),
    ("Jan 26 17:48:20 gpu7 kernel: ", None, None, "kernel"),
    ("Jan 26 17:48:20 gpu7 kernel: [12345.678901] ", None, None, "kernel"),
    ("[12345.678901] ", None, None, "kernel"),
    ("[   45.000001] ", None, None, "kernel"),
    ("[Mon Jan 26 17:48:20 2026] ", None, None, "kernel"),
    ("<4>[12345.678901] ", None, None, "kernel"),
    ("2026-01-02T03:04:05.123456789Z stdout F ", None, None, "bare"),
    ("2026-01-02T03:04:05.123456789Z stderr F INFO 01-02 03:04:05 [core.py:1] ", None, None, "logger"),
    ("[pod/vllm-7f-x2z/vllm] INFO 01-02 03:04:05 [core.py:1] ", None, None, "logger"),
    ("2026-01-02T03:04:05.1234567Z ", None, None, "bare"),
    ("2026-01-02T03:04:05.1234567Z [2026-01-02 03:04:05 TP0] ", "TP0", None, "logger"),
    ("[2026-01-02 03:04:05 DP1 TP0 EP0] ", "DP1 TP0 EP0", None, "logger"),
    ("[2026-01-02 03:04:05] ", None, None, "bare"),
    ("[gpu=3] ", "3", None, "logger"),
    ("[2026-01-02 03:04:05] INFO scheduler.py:120: ", None, None, "logger"),
    ("[2026-01-02 03:04:05 +0000] [123] [INFO] ", None, 123, "logger"),
    ("2026-01-02 03:04:05.123 | INFO     | app.engine:run:12 - ", None, None, "logger"),
    ("2026-01-02 03:04:05,123 - vllm.engine.async - ERROR - ", None, None, "logger"),
    ("2026-01-02 03:04:05,123 INFO ", None, None, "logger"),
    ("0.11.622.432 I ", None, None, "logger"),
    ("2026/01/02 03:04:05 ", None, None, "bare"),
    (
        "(RayWorkerWrapper pid=123, ip=10.0.0.1) INFO 01-02 03:04:05 worker.py:12] ",
        "RayWorkerWrapper",
        123,
        "logger",
    ),
    ("(pid=123, ip=10.0.0.1) ", None, 123, "bare"),
    (
        "(raylet, ip=10.0.0.1) [2026-01-02 03:04:05,123 E 17 17] (raylet) node_manager.cc:3: ",
        "raylet",
        None,
        "logger",
    ),
    ("INFO:     ", None, None, "logger"),
    ("INFO:vllm.worker:", None, None, "logger"),
    ("I0102 03:04:05.123456 1234 file.cc:12] ", None, None, "logger"),
    ("[1,0]<stderr>:", "0", None, "bare"),
    ("12: ", "12", None, "bare"),
    ("vllm-abc-def vllm INFO 01-02 03:04:05 [core.py:1] ", None, None, "logger"),
    ("[INFO|modeling_utils.py:123] 2026-01-02 03:04:05,123 >> ", None, None, "logger"),
    ("> ", None, None, "bare"),
    ("> > - `", None, None, "bare"),
    ("    ", None, None, "bare"),
    ("\x1b[36m(EngineCore pid=5)\x1b[0;0m INFO 01-02 03:04:05 [core.py:1] ", "EngineCore", 5, "logger"),
    ("#033[36m(EngineCore pid=5)#033[0;0m ERROR 01-02 03:04:05 [core.py:1] ", "EngineCore", 5, "logger"),
    ("[36m(EngineCore pid=5)[0m ", "EngineCore", 5, "bare"),
    ("1767323045.123 ", None, None, "bare"),
    ("1767323045123 ", None, None, "bare"),
    ("server.log:123:".replace("server.log:", ""), None, None, "bare"),
]


def only(raw: str) -> Line:
    from kvprobe.observe.logs.blocks import readable
    from kvprobe.observe.logs.tally import Tally

    entries = entries_of("x.log", 7, readable(raw.encode(), Tally()))
    assert len(entries) == 1
    line = entries[0].line
    line.provenance = entries[0].head.speaker or "bare"  # type: ignore[assignment]
    return line


@pytest.mark.parametrize(("prefix", "rank", "pid", "speaker"), PREFIXES)
def test_a_prefix_comes_off_and_is_kept(prefix: str, rank: str | None, pid: int | None, speaker: str) -> None:
    message = "CUDA out of memory. Tried to allocate 2.00 GiB"
    line = only(prefix + message)
    assert line.text.rstrip("`") == message
    assert (line.rank, line.pid, line.provenance, line.number) == (rank, pid, speaker, 7)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (
            "[TM][ERROR] CUDA runtime error: out of memory x.h:12",
            "[TM][ERROR] CUDA runtime error: out of memory x.h:12",
        ),
        ("[TensorRT-LLM][INFO] Allocated 1.00 GiB", "[TensorRT-LLM][INFO] Allocated 1.00 GiB"),
        ("srv  load_model: loading model", "srv  load_model: loading model"),
        ("gpu7:12:34 [0] NCCL WARN Cuda failure 2", "gpu7:12:34 [0] NCCL WARN Cuda failure 2"),
        ('time=2026-01-02T03:04:05.1Z level=INFO source=a.go:1 msg="offload" n=1', 'msg="offload" n=1'),
        ("INFO 01-02 03:04:05 [x.py:1] total  | 5", "total  | 5"),
        ("id  3 | task 2 | done", "id  3 | task 2 | done"),
        ("rate(requests[1m]) > 3", "rate(requests[1m]) > 3"),
        ("| 0  NVIDIA A100 | 10MiB / 81920MiB |", "| 0  NVIDIA A100 | 10MiB / 81920MiB |"),
        ("ValueError: no", "ValueError: no"),
        ("&quot;a&quot; &lt;b&gt; &amp; \u201cc\u201d", '"a" <b> & "c"'),
        ("```text", ""),
    ],
)
def test_what_belongs_to_the_message_stays(text: str, rest: str) -> None:
    assert only(text).text == rest


@pytest.mark.parametrize(
    ("text", "time_s"),
    [
        ("2026-01-02T03:04:05Z x", 1767323045.0),
        ("2026-01-02 03:04:05,500 x", 1767323045.5),
        ("2026-01-02T04:04:05+01:00 x", 1767323045.0),
        ("2026-01-01T22:34:05-0430 x", 1767323045.0),
        ("[Fri Jan  2 03:04:05 2026] x", 1767323045.0),
        ("[01/02/2026-03:04:05] [TRT-LLM] [I] x", 1767323045.0),
        ("1767323045123 x", 1767323045.123),
        ("2026-02-31T03:04:05Z x", None),
        ("Jan  2 03:04:05 host x[1]: y", None),
        ("INFO 01-02 03:04:05 [x.py:1] y", None),
    ],
)
def test_times_of_all_zones_are_seconds_of_one_clock(text: str, time_s: float | None) -> None:
    assert only(text).time_s == time_s


@pytest.mark.parametrize(
    "wrap",
    [
        '{{"log":"{}\\n","stream":"stderr","time":"2026-01-02T03:04:05Z"}}',
        '{{"level":"error","ts":1767323045.0,"caller":"a.go:1","msg":"{}"}}',
        '{{"event": "{}", "level": "error", "timestamp": "2026-01-02T03:04:05Z"}}',
        '{{"asctime": "2026-01-02 03:04:05,000", "levelname": "ERROR", "name": "vllm", "message": "{}"}}',
        '{{"timestamp":"2026-01-02T03:04:05Z","level":"ERROR","fields":{{"message":"{}"}},"target":"tgi"}}',
        '{{"insertId":"x","jsonPayload":{{"message":"{}"}},"severity":"ERROR","timestamp":"2026-01-02T03:04:05Z"}}',
        '{{"textPayload":"{}","timestamp":"2026-01-02T03:04:05Z"}}',
        '{{"MESSAGE":"{}","__REALTIME_TIMESTAMP":"1767323045000000","_PID":"7"}}',
        '2026-01-02T03:04:05Z stdout F {{"level":"error","msg":"{}"}}',
    ],
)
def test_json_records_give_their_message(wrap: str) -> None:
    line = only(wrap.format('CUDA error: out of memory at \\"x\\"'))
    assert line.text == 'CUDA error: out of memory at "x"'
    assert line.time_s == 1767323045.0


def test_a_traceback_within_a_json_record_is_several_lines_of_one_number() -> None:
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: x'
    record = {"level": "error", "time": "2026-01-02T03:04:05Z", "message": "failed", "exc_info": traceback}
    raw = json.dumps(record).encode()
    entries = entries_of("x.log", 3, raw)
    assert [e.line.text for e in entries][-1] == "ValueError: x"
    assert {e.line.number for e in entries} == {3}


def test_broken_json_and_deep_json_are_plain_text() -> None:
    for raw in (b'{"log":"x', b"{" * 5000 + b"}" * 5000, b'{"a":' * 2000 + b"1" + b"}" * 2000, b"{}"):
        assert entries_of("x.log", 1, raw)[0].line.text


def test_a_progress_bar_is_its_first_and_last_states() -> None:
    raw = b"\r".join(b"shard %d/9999" % i for i in range(2000)) + b"\r\n"
    texts = [e.line.text for e in entries_of("x.log", 1, raw)]
    assert texts[0] == "shard 0/9999"
    assert texts[-1] == "shard 1999/9999"
    assert len(texts) < 300


def test_ray_says_how_often_it_folded_a_line() -> None:
    entry = entries_of(
        "x.log", 1, b"(W pid=1) oops [repeated 15x across cluster] (Ray deduplicates logs by default.)"
    )[0]
    assert (entry.line.text, entry.repeats) == ("oops", 16)
