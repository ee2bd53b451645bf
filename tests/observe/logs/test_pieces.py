"""Logs that come in pieces: lines a runtime cut, rotated files, a reading that a signal ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvprobe.observe.logs.intake import read_logs, read_text
from kvprobe.observe.logs.partials import rejoined
from tests.observe.logs.logkit import OOM

CRI = "2026-01-02T03:04:05.123456789Z"


def ooms(text: str) -> list[tuple[int, int]]:
    return [(e.line, len(e.values)) for e in read_text(text).events if e.name == "torch_oom"]


WHOLE = ooms(OOM)[0][1]


@pytest.mark.parametrize("cut", [1, 60, 150, 300, len(OOM) - 1])
def test_pieces_of_a_cri_line_are_one_line(cut: int) -> None:
    log = (
        f"{CRI} stderr F before\n{CRI} stderr P {OOM[:cut]}\n{CRI} stdout F another stream\n"
        f"{CRI} stderr F {OOM[cut:]}\n{CRI} stderr F after\n"
    )
    assert ooms(log) == [(2, WHOLE)]


def test_pieces_of_a_docker_record_are_one_record() -> None:
    record = json.dumps({"level": "error", "ts": 1.7e9, "msg": "died", "error": "x" * 16_300 + "\n" + OOM})
    pieces = ["ready\n", record[:16_384], record[16_384:] + "\n", "end\n"]
    log = "".join(
        json.dumps({"log": p, "stream": "stdout", "time": CRI}, separators=(",", ":")) + "\n" for p in pieces
    )
    assert [line for line, _ in ooms(log)] == [2]
    assert rejoined(log.encode()).count(b"\n") == log.count("\n")


def test_records_without_a_line_end_stay_apart() -> None:
    """Some loggers take it off."""
    log = b'{"log":"a","stream":"stdout","time":"1"}\n{"log":"b","stream":"stdout","time":"2"}\n'
    assert rejoined(log) == log


def test_a_text_in_utf16_that_a_shell_appended_is_read() -> None:
    data = b"started\n" * 100 + OOM.encode("utf-16-le") + "\n".encode("utf-16-le")
    read = read_text(data)
    assert [len(e.values) for e in read.events if e.name == "torch_oom"] == [WHOLE]
    assert any("NUL" in note for note in read.notes)


def test_a_rotated_piece_goes_on_in_the_phase_of_the_older_one(tmp_path: Path) -> None:
    logger = "INFO 01-02 03:04:05 [x.py:1] "
    old = [f"{logger}Starting to load model m...", "INFO:     Application startup complete."]
    (tmp_path / "server.log.1").write_text("\n".join([*old, *[f"{logger}served"] * 40]) + "\n")
    (tmp_path / "server.log").write_text(f"Traceback (most recent call last):\n{OOM}\n")
    read = read_logs([str(tmp_path / "server.log"), str(tmp_path / "server.log.1")])
    at = next(i for i, e in enumerate(read.events) if e.name == "torch_oom")
    before = [e.phase for e in read.events[:at] if e.source.endswith("server.log") and e.phase]
    assert before == ["serve"]
    assert read.ended[str(tmp_path / "server.log.1")] == "excerpt", "its end is no end"
