"""A defect of ours after the load: the run is named, and what was measured is kept."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kvprobe.errors import Exit
from kvprobe.run import session
from kvprobe.run.options import LoadEnding, RunOptions
from kvprobe.run.progress import Silent
from tests.load.truth import truth_server


def test_a_defect_in_the_result_does_not_hide_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def defect(*_: object) -> None:
        raise ZeroDivisionError("made for this test")

    monkeypatch.setattr(
        session, "run_load", lambda *_: LoadEnding(reason="planned", detail=None, exit_code=Exit.OK)
    )
    monkeypatch.setattr(session, "conclude", defect)
    caplog.set_level(logging.INFO, "kvprobe")
    with truth_server() as server:
        options = RunOptions(workload="distinct", target=server.url, out=tmp_path / "runs")
        outcome = session.conduct(options, Silent())
    (run_dir,) = (tmp_path / "runs").iterdir()
    (problem,) = outcome.problems
    assert outcome.exit_code is Exit.INTERNAL
    assert "ZeroDivisionError: made for this test" in problem.message
    assert str(run_dir) in (problem.fix or "")
    assert "ZeroDivisionError" in (run_dir / "log.txt").read_text()
    assert (run_dir / "STATUS").read_text().strip() == "partial"
