"""`python -m kvprobe.traces`: a trace that turns out bad leaves OUT as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvprobe.traces.__main__ import main

GOOD = '{"t":0,"in":5,"out":2}\n{"t":1,"in":6,"out":2}\n'


def test_a_late_bad_line_leaves_what_was_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out.jsonl"
    trace.write_text(GOOD + '{"t":"x","in":5,"out":2}\n')
    out.write_text("what was there\n")
    assert main([str(trace), "-o", str(out)]) == 2
    assert "trace.jsonl:3" in capsys.readouterr().err
    assert out.read_text() == "what was there\n"
    assert sorted(os.listdir(tmp_path)) == ["out.jsonl", "trace.jsonl"]


def test_the_new_file_takes_the_place_of_the_old_one_behind_a_link(tmp_path: Path) -> None:
    trace, real, link = tmp_path / "trace.jsonl", tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    trace.write_text(GOOD)
    real.write_text("old\n")
    link.symlink_to(real)
    assert main([str(trace), "-o", str(link)]) == 0
    assert link.is_symlink()
    assert real.read_text().count("\n") == 2
    assert len(os.listdir(tmp_path)) == 3


def test_a_folder_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(GOOD)
    assert main([str(trace), "-o", str(tmp_path / "none" / "out.jsonl")]) == 6
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_a_file_that_opens_and_cannot_be_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    memory = Path("/proc/self/mem")  # opens, and has nothing at its first byte
    if not memory.exists():
        pytest.skip("needs /proc, which this system does not have")
    assert main([str(memory)]) == 2
    assert "cannot be read" in capsys.readouterr().err
