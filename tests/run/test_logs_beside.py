"""`--log FILE`: what the server wrote while the load ran is kept, and what stood before is told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvprobe.diagnose.run_logs import log_view
from kvprobe.errors import UsageError
from kvprobe.evidence.rundata import RunData
from kvprobe.evidence.samples import Sample
from kvprobe.run.logs_beside import keep, mark

START = "INFO 11-30 10:00:00 [core.py:1] # GPU blocks: 1000, # CPU blocks: 0\n"
OOM = (
    "ERROR 11-30 10:00:05 [engine.py:2] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
    "2.00 GiB. GPU 0 has a total capacity of 39.50 GiB of which 100.00 MiB is free.\n"
)


def kept(tmp_path: Path, before: str, meanwhile: str, *, alive: bool = True) -> RunData:
    log = tmp_path / "vllm.log"
    log.write_text(before)
    marks = mark([log])
    with log.open("a") as file:
        file.write(meanwhile)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    facts, problems = keep(marks, run_dir)
    assert problems == []
    sample = Sample(t_ns=1, metric="scrape.ok", value=1.0 if alive else 0.0)
    return RunData(path=run_dir, status="complete", facts=facts, samples=[sample])


def names(run: RunData) -> list[str]:
    view = log_view(run)
    return [] if view is None else [e.name for e in view.events]


def test_a_failure_of_yesterday_explains_nothing_today(tmp_path: Path) -> None:
    run = kept(tmp_path, START + OOM, "INFO 11-30 12:00:00 [x.py:1] nothing\n")
    assert "torch_oom" not in names(run)
    assert "pool_size" in names(run), "sizes that were told once still hold"


def test_what_came_during_the_load_counts(tmp_path: Path) -> None:
    run = kept(tmp_path, START, OOM)
    assert "torch_oom" in names(run)
    assert (run.facts[0].value["lines_before"], run.facts[0].value["rotated"]) == (1, False)


def test_a_log_that_was_rotated_is_new_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(OOM * 3)
    marks = mark([log])
    log.rename(tmp_path / "vllm.log.1")
    log.write_text(START)
    facts, _ = keep(marks, tmp_path)
    assert facts[0].value["rotated"]
    assert (tmp_path / facts[0].value["file"]).read_text() == START


def test_a_log_that_has_gone_is_a_problem_beside_the_result(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(START)
    marks = mark([log])
    log.unlink()
    facts, problems = keep(marks, tmp_path)
    assert facts == []
    assert problems[0].code == "log_gone"


def test_what_is_no_file_is_refused_before_the_load(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        mark([tmp_path / "none.log", tmp_path])
    assert [p.code for p in refused.value.problems] == ["no_log", "no_log"]


BUSY = (
    "INFO 2026-11-30 22:15:07,123 reference_server.serve: listening on http://127.0.0.1:8000\n"
    "INFO 2026-11-30 22:15:17,123 reference_server.statsline: last 10.0 s: computed 812.4 tokens/s, "
    "generated 96.1 tokens/s; running 8, waiting 3; KV usage 43.1% (1812 used + 240 cached + 2043 free = "
    "4095 blocks); prefix hits 41.2% of queried tokens; preempted 0, swapped out 0; empty 0.4 MiB tail + "
    "0.0 MiB reserved; largest free region 1.1 MiB; failed allocations 0\n"
)


@pytest.mark.parametrize("alive", [True, False])
def test_the_log_of_a_server_that_lives_just_has_no_end_yet(tmp_path: Path, alive: bool) -> None:
    from kvprobe.diagnose.joint import of_log

    view = log_view(kept(tmp_path, "", BUSY, alive=alive))
    assert view is not None
    found = {c.finding.cause for c in of_log(view)}
    assert ("host_oom_kill" in found) == (not alive)


def test_without_a_log_there_is_no_view(tmp_path: Path) -> None:
    assert log_view(RunData(path=tmp_path, status="complete")) is None
