"""Abort rules and budgets, judged on spool files as they grow, with a clock of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvprobe.evidence.records import OpenedRequest, Waiting, WaitingRequest
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

    def opened(self, *ids: str) -> None:
        for name in ids:
            self.worker.write(OpenedRequest(request_id=name, plan_index=0, intended_ns=T0, sent_ns=T0))

    def wait(self, age_s: float, *ids: str, worker: str = "0", **fields: bool) -> None:
        """The worker says that these have waited so long."""
        stamps = {"intended_ns": T0 - 10**9, "sent_ns": T0}
        late = [WaitingRequest(request_id=name, **stamps, **fields) for name in ids]
        self.worker.write(Waiting(worker=worker, t_ns=T0 + int(age_s * 1e9), requests=late))

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


HUNG = tuple(f"hung{i}" for i in range(6))


def test_requests_that_still_wait_for_their_first_token_count_once_they_exceed_the_limit(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, "ttft.p95 > 2s for 3s")
    rig.opened(*HUNG)
    rig.wait(1.9, *HUNG)
    assert rig.after(1) is None
    rig.wait(2.1, *HUNG)
    assert rig.after(1) is None, "it has held for no time yet"
    rig.wait(5.5, *HUNG)
    tripped = rig.after(3.5)
    assert tripped is not None
    assert "ttft.p95 is at least 5.50 s, over the latest 6 requests, 6 still waiting" in tripped.why


def test_a_wait_that_has_ended_or_is_no_longer_told_of_does_not_count(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "ttft.p50 > 2s for 0s", "ttft.p50 > 90s for 0s")
    rig.opened(*HUNG)
    rig.wait(2.5, *HUNG, first_token=True)
    assert rig.after(1) is None, "their first token has come"
    rig.wait(2.5, *HUNG, warmup=True)
    assert rig.after(1) is None, "a warm-up is not measured"
    rig.wait(2.5, "never opened", *HUNG[:4])
    assert rig.after(1) is None, "four are too few while requests end"
    rig.wait(2.5, *HUNG)
    for name in HUNG:
        rig.row(request_id=name)
    assert rig.after(1) is None, "their rows say what it was"
    rig.opened("a", "b", "c", "d", "e", "f", "g")
    rig.wait(4, "a", "b", "c", "d", "e", "f", "g")
    rig.now_s += 4
    rig.watch._live.read(rig.now_s - 4)
    assert rig.after(0) is None, "a word of the worker that is four seconds old"
    rig.wait(4, "a", "b", "c", "d", "e", "f", "g")
    assert rig.after(1) is not None


@pytest.mark.parametrize(
    ("rule", "trips"),
    [
        ("e2e.p50 > 2s for 0s", True),
        ("response_latency.p50 > 3s for 0s", True),
        ("e2e.p50 > 3s for 0s", False),
        ("response_ttft.p50 > 2s for 0s", False),
        ("tpot.p50 > 2s for 0s", False),
        ("dispatch_delay.p50 > 500ms for 0s", False),
    ],
)
def test_a_stream_that_hangs_after_its_first_token_bounds_what_counts_to_its_end(
    tmp_path: Path, rule: str, trips: bool
) -> None:
    rig = Rig(tmp_path, rule)
    rig.opened(*HUNG)
    rig.wait(2.5, *HUNG, first_token=True)
    assert (rig.after(1) is not None) == trips


def test_one_user_whose_server_hangs_is_seen_once_nothing_has_ended_for_the_window(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "ttft.p95 > 2s for 3s")
    for _ in range(20):
        rig.row(ttft_ms=100)
    rig.opened("hung")
    assert rig.after(1) is None
    for second in range(1, 10):
        rig.wait(second, "hung")
        assert rig.after(1) is None, "one of 21, and the others are of now"
    for second in (10, 12):
        rig.wait(second, "hung")
        assert rig.after(2) is None, "the grace time"
    rig.wait(14, "hung")
    tripped = rig.after(2)
    assert tripped is not None
    assert "ttft.p95 is at least 14.0 s, over one request, 1 still waiting" in tripped.why


def test_a_single_slow_request_among_few_begins_no_count_that_goes_on_after_it(tmp_path: Path) -> None:
    """Between two slow requests the first token came: nothing has held meanwhile."""
    rig = Rig(tmp_path, "ttft.p95 > 2s for 5s")
    for number in range(3):
        name = f"slow{number}"
        rig.opened(name)
        assert rig.after(1) is None
        rig.now_s += 10
        rig.wait(11, name)
        assert rig.after(1) is None
        rig.row(request_id=name, ttft_ms=12_000)
        assert rig.after(1) is None


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
