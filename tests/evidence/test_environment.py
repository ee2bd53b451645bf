"""environment.json: versions and clocks, never the environment variables."""

from __future__ import annotations

import json
import time

import pytest

from kvprobe.evidence.environment import collect_environment, read_clocks


def test_it_has_what_a_reader_needs_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROBE_TEST_TOKEN", "s3cr3t-value")
    environment = collect_environment()
    text = json.dumps(environment)
    assert "s3cr3t-value" not in text
    assert "KVPROBE_TEST_TOKEN" not in text
    assert environment["libraries"]["msgspec"]
    assert environment["cpu_count"] >= environment["cpu_usable"] >= 1


def test_the_clocks_are_read_together() -> None:
    before = time.monotonic_ns()
    clocks = read_clocks()
    after = time.monotonic_ns()
    assert clocks["monotonic_ns"] is not None
    assert clocks["utc_ns"] is not None
    assert before <= clocks["monotonic_ns"] <= after
    offset_now = time.time_ns() - time.monotonic_ns()
    assert abs(clocks["utc_ns"] - clocks["monotonic_ns"] - offset_now) < 5_000_000_000
