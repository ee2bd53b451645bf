"""Rows of several machines on one axis: moved as a whole, and only where a clock is another."""

from __future__ import annotations

from kvprobe.evidence.clocks import align, shifts_ns
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.records import OpenedRequest, RequestRecord
from kvprobe.evidence.samples import Sample
from kvprobe.evidence.spool import SpoolContent


def clock(worker: str, there: int, *, same: bool = False, here: int = 1_000) -> Fact:
    value = {"worker": worker, "same_clock": same, "t0_ns": here, "worker_t0_ns": there}
    return Fact(name="worker_clock", source="master", value=value)


def record(worker: str, sent: int) -> RequestRecord:
    return RequestRecord(
        request_id=f"{worker}{sent}",
        kind="distinct",
        intended_ns=sent - 1,
        sent_ns=sent,
        first_token_ns=sent + 5,
        end_ns=sent + 9,
        gaps_ns=[4],
        worker=worker,
        plan_index=0,
    )


def test_rows_move_as_a_whole_and_durations_stay() -> None:
    content = SpoolContent(
        opened=[OpenedRequest(request_id="x", plan_index=1, intended_ns=71, sent_ns=72, worker="far-0")],
        records=[record("far-0", 80), record("near-1", 1_010)],
        samples=[
            Sample(t_ns=90, metric="client.cpu_ratio", labels={"worker": "far-0"}, value=0.1),
            Sample(t_ns=1_015, metric="engine.kv_usage_ratio", labels={"worker": "far-0"}, value=0.2),
        ],
        facts=[clock("far-0", 70), clock("near-1", 1_000, same=True)],
    )
    assert shifts_ns(content.facts) == {"far-0": 930}
    align(content)
    far = next(r for r in content.records if r.worker == "far-0")
    assert (far.intended_ns, far.sent_ns, far.first_token_ns, far.end_ns) == (1_009, 1_010, 1_015, 1_019)
    assert (far.first_byte_ns, far.gaps_ns) == (None, [4])
    assert next(r for r in content.records if r.worker == "near-1").sent_ns == 1_010
    assert (content.opened[0].intended_ns, content.opened[0].sent_ns) == (1_001, 1_002)
    assert [s.t_ns for s in content.samples] == [1_015, 1_020], "an engine's own label is no worker of ours"


def test_what_is_no_clock_is_passed_over() -> None:
    odd = [
        Fact(name="worker_clock", source="x", value=None),
        Fact(name="worker_clock", source="x", value={"worker": 3, "t0_ns": 1, "worker_t0_ns": 2}),
        Fact(name="worker_clock", source="x", value={"worker": "a", "t0_ns": True, "worker_t0_ns": 2}),
        Fact(name="other", source="x", value={"worker": "a", "t0_ns": 1, "worker_t0_ns": 2}),
    ]
    assert shifts_ns(odd) == {}
