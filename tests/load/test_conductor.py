"""Ramps, stages, traces and sessions in a real worker: who sends what, and never two turns at once."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from kvprobe.load.jobs_remote import files_of, unpack_files
from kvprobe.load.workload import Workload
from tests.load.crew_kit import load_job
from tests.load.truth import truth_server
from tests.load.worker_kit import worker, workload

FAST = ("--ttft", "30", "--itl", "5")
NS = 1e9
SESSIONS = """
from kvprobe.load.prompts import PromptSource
TURNS = 3
def session_turns(self, number):
    first = number * TURNS
    return [i for i in range(first, first + TURNS) if self.total is None or i < self.total]
PromptSource.session_turns = session_turns
PromptSource.session_number = lambda self, index: index % 4 if OPEN else index // TURNS
real = PromptSource.request
def request(self, index):
    planned = real(self, index)
    planned.session, planned.turn = f"s{self.session_number(index)}", index
    return planned
PromptSource.request = request
"""


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "worker-0.jsonl"


def by_session(records) -> list[list]:
    sessions: dict[str, list] = {}
    for record in sorted(records, key=lambda r: r.plan_index):
        sessions.setdefault(record.session, []).append(record)
    return list(sessions.values())


def test_users_of_a_ramp_begin_one_after_the_other(spool: Path) -> None:
    plan = workload({"closed": {"users": 4, "ramp": "800ms"}}, requests=40)
    with truth_server(*FAST) as server, worker(server.url, plan, spool) as driven:
        t0_ns = driven.go()
        assert driven.finish().reason == "planned"
    records = sorted(driven.spooled().records, key=lambda r: r.sent_ns)
    assert sorted(r.plan_index for r in records) == list(range(40))
    wanted = {round((r.intended_ns - t0_ns) / NS, 9) for r in records}
    assert {0.0, 0.2, 0.4, 0.6} <= wanted
    assert all(r.sent_ns >= r.intended_ns for r in records)


def test_stages_end_the_load_by_themselves(spool: Path) -> None:
    stages = [{"rate": 20.0, "for": "500ms"}, {"rate": 0.0, "for": "200ms"}, {"rate": 40.0, "for": "250ms"}]
    plan = workload({"open": {"process": "constant", "stages": stages}})
    with truth_server(*FAST) as server, worker(server.url, plan, spool) as driven:
        t0_ns = driven.go()
        last = driven.finish()
    assert (last.reason, last.sent, last.intended) == ("planned", 20, 20)
    instants = [round((r.intended_ns - t0_ns) / NS, 6) for r in driven.spooled().records]
    assert sorted(instants)[:10] == pytest.approx([i / 20 for i in range(10)])
    assert sorted(instants)[10:] == pytest.approx([0.7 + i / 40 for i in range(10)], abs=1e-6)


def test_a_user_owns_a_session_to_its_last_turn(spool: Path) -> None:
    plan = workload({"closed": {"users": 2, "think_time": "10ms"}}, requests=12)
    with truth_server(*FAST) as server:
        defect = SESSIONS.replace("OPEN", "False")
        with worker(server.url, plan, spool, defect=defect) as driven:
            driven.go()
            assert driven.finish().sent == 12
    sessions = by_session(driven.spooled().records)
    assert [len(turns) for turns in sessions] == [3, 3, 3, 3]
    for turns in sessions:
        for before, after in pairwise(turns):
            assert after.intended_ns - before.end_ns >= 9e6


def test_turns_of_an_open_loop_wait_for_each_other_and_keep_their_instants(spool: Path) -> None:
    """Four sessions, 100 turns a second: each is wanted 40 ms after the one before, which takes longer."""
    plan = workload({"open": {"process": "constant", "rate": 100}}, requests=20)
    with truth_server("--ttft", "80", "--itl", "5") as server:
        defect = SESSIONS.replace("OPEN", "True")
        with worker(server.url, plan, spool, defect=defect) as driven:
            t0_ns = driven.go()
            assert driven.finish().sent == 20
    records = driven.spooled().records
    assert sorted((r.intended_ns - t0_ns) / NS for r in records) == pytest.approx(
        [i / 100 for i in range(20)]
    )
    for turns in by_session(records):
        assert len(turns) == 5
        for before, after in pairwise(turns):
            assert after.sent_ns >= before.end_ns


def test_sessions_stay_with_one_worker(tmp_path: Path) -> None:
    plan = workload({"open": {"process": "constant", "rate": 100}}, requests=24)
    seen: dict[str, set[str]] = {}
    with ExitStack() as stack:
        server, pair = stack.enter_context(truth_server(*FAST)), []
        for index in range(2):
            path = tmp_path / f"{index}.jsonl"
            defect = SESSIONS.replace("OPEN", "True")
            fields = {"worker": str(index), "worker_index": index, "workers": 2}
            pair.append(stack.enter_context(worker(server.url, plan, path, defect=defect, **fields)))
        for driven in pair:
            driven.go()
        for driven in pair:
            driven.finish()
            for record in driven.spooled().records:
                seen.setdefault(record.session, set()).add(record.worker)
    assert seen == {"s0": {"0"}, "s1": {"1"}, "s2": {"0"}, "s3": {"1"}}


def test_a_trace_keeps_its_instants_and_its_warm_up_is_what_comes_early(spool: Path) -> None:
    times = [0.0, 0.1, 0.15, 0.4, 0.45]
    trace = spool.with_name("trace.jsonl")
    trace.write_text("".join(f'{{"t": {t}, "in": 40, "out": 4}}\n' for t in times))
    document = {
        "name": "test",
        "kind": "trace_replay",
        "prompt": {"trace": str(trace)},
        "arrival": {"open": {"trace": {"scale_time": 2.0}}},
        "warmup": {"duration": "250ms"},
    }
    plan = Workload.model_validate(document).model_dump(mode="json")
    with truth_server(*FAST) as server, worker(server.url, plan, spool) as driven:
        t0_ns = driven.go()
        assert driven.finish().reason == "planned"
    records = sorted(driven.spooled().records, key=lambda r: r.intended_ns)
    assert [(r.intended_ns - t0_ns) / NS for r in records] == pytest.approx([2 * t for t in times])
    assert [(r.plan_index, r.warmup) for r in records] == [(i, i < 2) for i in range(5)]


def test_a_trace_travels_with_the_job_to_machines_that_do_not_have_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv.gz"
    trace.write_bytes(b"rows")
    plan = {"prompt": {"trace": str(trace)}, "output": {"tokens": {"empirical": {"trace": str(trace)}}}}
    job = load_job("http://127.0.0.1:1", plan, worker="bench-0", files=files_of(plan))
    trace.unlink()
    unpack_files(job, tmp_path / "there")
    found = Path(job.workload["prompt"]["trace"])
    assert (found.read_bytes(), found.parent, found.name) == (b"rows", tmp_path / "there", "bench-0-0.csv.gz")
    assert job.files == {}
