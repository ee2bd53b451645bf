"""When the statistics line is written."""

from __future__ import annotations

import pytest

from reference_server.statsline import IDLE_LINES
from tests.reference_server.log_lines import undocumented
from tests.reference_server.server_rig import Rig
from tests.reference_server.test_core import words


def _idle(rig: Rig, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines of an engine that has time, after one request."""
    caplog.set_level("INFO", logger="reference_server.statsline")
    rig.core.stats_interval_s = 0.0
    rig.generate([words(1, 40)], 5)
    for _ in range(6):
        rig.core.housekeeping()
    return [r.getMessage() for r in caplog.records if r.name == "reference_server.statsline"]


def test_work_then_twice_nothing_then_silence(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    lines = _idle(rig, caplog)
    assert undocumented(lines) == []
    assert len(lines) == 1 + IDLE_LINES
    assert "generated 0.0 tokens/s" not in lines[0]
    for line in lines[1:]:
        assert "generated 0.0 tokens/s; running 0, waiting 0; KV usage 0.0%" in line
    caplog.clear()
    assert len(_idle(rig, caplog)) == 1 + IDLE_LINES, "and again after more work"


def test_what_is_lost_shows_when_nothing_runs(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(ailments=("leak-on-abort",), blocks=64)
    lost = rig.add(words(2, 100), 50)
    rig.step()
    rig.core.abort(lost.request_id)
    for line in _idle(rig, caplog):
        assert "running 0, waiting 0; KV usage 10.9% (7 used" in line
