"""Abort rules and budgets, judged on spool files as they grow, with a clock of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvprobe.evidence.records import OpenedRequest
from kvprobe.evidence.samples import Sample
from kvprobe.evidence.spool import SpoolWriter
from kvprobe.gates.abort import AbortWatch, TokenBudget, Tripped, rules_of
from kvprobe.gates.live import WINDOW_ROWS, Live
from kvprobe.gates.rules import rule_of
from tests.summary.synthetic import T0, failed, record


class Rig:
    """A spool folder with one worker and the sampler, and a clock that stands until it is moved."""

    def __init__(self, folder: Path, *rules: str, budgets: tuple[TokenBudget, ...] = ()) -> None:
        self.now_s = 0.0
        self.worker = SpoolWriter(folder / "worker-0.jsonl")
        self.sampler = SpoolWriter(folder / "samples.jsonl")
        self.watch = AbortWatch(folder, [rule_of(r) for r in rules], budgets, lambda: self.now_s)
        self._count = 0

    def row(self, bad: bool = False, **fields: object) -> None:
        self._count += 1
        made = failed(self._count, "status") if bad else record(self._count, **fields)  # type: ignore[arg-type]
        self.worker.write(made)

    def gauge(self, metric: str, value: float | None, **labels: str) -> None:
        self._count += 1
        self.sampler.write(Sample(t_ns=T0 + self._count, metric=metric, labels=labels, value=value))

    def after(self, seconds: float) -> Tripped | None:
        self.now_s += seconds
        return self.watch.tripped()


def test_a_rule_names_itself_and_its_value_once_it_has_held_for_its_grace(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "error_rate > 50% for 3s")
    for _ in range(8):
        rig.row(bad=True)
    assert rig.after(1) is None, "it has held for no time yet"
    assert rig.after(2) is None
    tripped = rig.after(1.5)
    assert tripped is not None
    assert tripped.at_once
    assert "`error_rate > 50%` held for 3 s: error_rate is 100.0 %, over the latest 8 requests" in tripped.why


def test_a_condition_that_breaks_begins_anew(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "error_rate > 50% for 3s")
    for _ in range(8):
        rig.row(bad=True)
    assert rig.after(1) is None
    assert rig.after(2) is None
    for _ in range(12):
        rig.row()
    assert rig.after(1) is None, "8 of 20 failed"
    for _ in range(30):
        rig.row(bad=True)
    assert rig.after(1) is None
    assert rig.after(2) is None
    assert rig.after(1.5) is not None


def test_a_few_requests_are_no_rate(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "error_rate > 50% for 0s")
    for _ in range(4):
        rig.row(bad=True)
    assert rig.after(1) is None
    rig.row(bad=True)
    assert rig.after(1) is not None


def test_old_rows_leave_the_window(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "error_rate > 50% for 0s")
    for _ in range(200):
        rig.row()
    assert rig.after(1) is None
    for _ in range(WINDOW_ROWS):
        rig.row(bad=True)
    assert rig.after(1) is None, "20 of 220"
    assert rig.after(9.5) is not None, "the old ones have left; the last twenty have failed"


def test_live_latencies_count_waits_that_timed_out(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "ttft.p50 > 1s for 0s")
    for _ in range(4):
        rig.row(ttft_ms=100)
    assert rig.after(1) is None
    for i in range(6):
        rig.worker.write(failed(100 + i, "timeout_first", after_ms=5_000))
    tripped = rig.after(1)
    assert tripped is not None
    assert "ttft.p50" in tripped.why


def test_gauges_of_the_moment(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "waiting > 10 for 1s", "kv_usage > 0.9 for 0s")
    rig.gauge("engine.requests_waiting", 4.0, replica="0")
    rig.gauge("engine.kv_usage_ratio", 0.5)
    assert rig.after(1) is None
    rig.gauge("engine.kv_usage_ratio", 0.95)
    tripped = rig.after(1)
    assert tripped is not None
    assert "kv_usage is 95.0 %" in tripped.why
    assert "requests" not in tripped.why.partition(":")[2]


def test_a_page_that_no_longer_comes_neither_breaks_nor_begins_a_condition(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "waiting > 10 for 8s")
    rig.gauge("engine.requests_waiting", 40.0)
    assert rig.after(1) is None
    rig.gauge("engine.requests_waiting", None)
    assert rig.after(7) is None, "no reading is left that is new enough"
    rig.gauge("engine.requests_waiting", 40.0)
    assert rig.after(1.5) is not None


def test_a_rule_that_could_never_be_judged_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "kv_usage > 0.9", "error_rate > 50%")
    for _ in range(9):
        rig.row()
    assert rig.after(1) is None
    never, judged = rig.watch.facts()
    assert isinstance(never.value, dict)
    assert never.value["judged"] == 0
    assert "never judged" in (never.text or "")
    assert isinstance(judged.value, dict)
    assert (judged.value["judged"], judged.value["last"], judged.text) == (1, 0.0, None)


def test_a_budget_counts_what_is_in_flight_and_lets_it_end(tmp_path: Path) -> None:
    budget = TokenBudget("budget.tokens", 2_000, asked_input=640, asked_output=32)
    rig = Rig(tmp_path, budgets=(budget,))
    rig.row()  # 640 + 32
    assert rig.after(1) is None
    rig.worker.write(OpenedRequest(request_id="r9", plan_index=9, intended_ns=T0, sent_ns=T0))
    assert rig.after(1) is None, "1,344 with the one in flight"
    rig.worker.write(OpenedRequest(request_id="r10", plan_index=10, intended_ns=T0, sent_ns=T0))
    tripped = rig.after(1)
    assert tripped is not None
    assert not tripped.at_once
    assert "`budget.tokens` is used up: 2,016 of 2,000" in tripped.why
    fact = rig.watch.facts()[-1]
    assert isinstance(fact.value, dict)
    assert (fact.value["input"], fact.value["spent"]) == (640, "budget.tokens")


def test_a_budget_in_money(tmp_path: Path) -> None:
    rig = Rig(tmp_path, budgets=(TokenBudget("budget.money", 0.01, 1e-5, 2e-5),))
    rig.row()  # 640 x 1e-5 + 32 x 2e-5 = 0.00704
    assert rig.after(1) is None
    rig.row()
    tripped = rig.after(1)
    assert tripped is not None
    assert "budget.money" in tripped.why


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "error_rate > 50% for 0s")
    path = tmp_path / "worker-1.jsonl"
    path.write_bytes(b'\x00\xff{{{\n[]\n{"type":"row"}\n{"type":"row","request_id":')
    for _ in range(6):
        rig.row(bad=True)
    assert rig.after(1) is not None
    Live(tmp_path / "not there").read(0.0)


def test_a_line_that_comes_in_two_pieces_is_one_row(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "error_rate > 50% for 0s")
    rig.row()
    whole = (tmp_path / "worker-0.jsonl").read_bytes()
    half = tmp_path / "worker-1.jsonl"
    half.write_bytes(whole[:40])
    live = Live(tmp_path)
    live.read(0.0)
    assert live.spent.finished == 1
    half.write_bytes(whole)
    live.read(1.0)
    assert live.spent.finished == 2


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        ([{"when": "error_rate > 50%", "grace": "10s"}], ["error_rate > 50% for 10s"]),
        ([{"when": "nonsense > 1"}, "x", None], []),
        ("error_rate > 50%", []),
        (None, []),
    ],
)
def test_rules_of_a_run_directory(stated: object, found: list[str]) -> None:
    assert [r.text for r in rules_of({"abort": stated})] == found
