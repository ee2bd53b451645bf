"""What is known of a plan before it is sent: how long its arrivals alone take."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kvprobe.load.arrivals import OpenSchedule, ramp_course
from kvprobe.load.job import Calibration
from kvprobe.load.prompts import PromptSource
from kvprobe.load.workload import Workload
from kvprobe.run.plan_checks import least_load_s, time_warning
from kvprobe.run.steering import READY_TIMEOUT_S, ready_within_s

ASSUMED = Calibration(source="assumed")


def made(arrival: dict[str, Any], **fields: Any) -> tuple[Workload, PromptSource]:
    base: dict[str, Any] = {
        "name": "w",
        "kind": "distinct",
        "prompt": {"tokens": 100},
        "output": {"tokens": 20},
        "arrival": arrival,
    }
    workload = Workload.model_validate(base | fields)
    return workload, PromptSource(workload, ASSUMED, "")


@pytest.mark.parametrize(
    ("arrival", "requests", "least_s"),
    [
        ({"open": {"rate": 2}}, 10_000, 5_000.0),
        ({"closed": {"users": 4, "think_time": "60s"}}, 401, 6_000.0),
        ({"closed": {"users": 4}}, 10_000, 0.0),
        ({"open": {"stages": [{"rate": 1, "for": "9000s"}]}}, 8_000, None),
    ],
)
def test_the_least_time_of_a_plan(arrival: dict[str, Any], requests: int, least_s: float | None) -> None:
    workload, source = made(arrival, requests=requests)
    assert least_load_s(workload, source) == least_s
    assert (time_warning(workload, source) is None) == (least_s is None or least_s <= 3600)


@pytest.mark.parametrize("rates", [(0.0, 10.0), (10.0, 0.5), (3.0, 3.0), (0.5, 10_000.0)])
@pytest.mark.parametrize("requests", [20, 500])
def test_a_ramps_time_is_that_of_its_schedule(rates: tuple[float, float], requests: int) -> None:
    ramp = {"from": rates[0], "to": rates[1], "over": "60s"}
    found = least_load_s(*made({"open": {"ramp": ramp}}, requests=requests))
    ticks = OpenSchedule("constant", ramp_course(*rates, 60.0), 1).ticks()
    before, after = islice(ticks, requests - 1, requests + 1)
    assert found is not None
    assert before - 1e-9 <= found <= after + 1e-9


def test_a_long_trace_is_said_beforehand_and_the_words_name_the_option(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f'{{"t":{t},"in":20,"out":4}}\n' for t in (0, 10, 4000)))
    base = {"kind": "trace_replay", "prompt": {"trace": str(trace)}, "output": {}}
    workload, source = made({"open": {"trace": {"scale_time": 1.5}}}, **base)
    said = time_warning(workload, source)
    assert said is not None
    assert "at least 6,000 s" in said
    assert "--duration 6000s" in said
    assert time_warning(*made({"open": {"trace": {}}}, requests=2, **base)) is None
    assert time_warning(*made({"open": {"rate": 0.001}}, duration="10s")) is None


def test_workers_that_read_a_long_trace_may_take_longer_to_be_ready() -> None:
    assert ready_within_s(0, 8) == READY_TIMEOUT_S
    assert ready_within_s(1_000_000, 2) == READY_TIMEOUT_S + 200
