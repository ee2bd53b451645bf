"""Logs that are given beside a run: those of another time, or of another engine, explain nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from kvprobe.diagnose.judge import diagnose_run
from kvprobe.diagnose.model import Diagnosis
from kvprobe.diagnose.run_logs import log_view
from kvprobe.summary.build import summarise
from tests.diagnose.test_judge import replace
from tests.summary.synthetic import T0, Made, healthy

NOON = datetime(2026, 3, 5, 12, 0, tzinfo=UTC).timestamp()


def at(engine: str = "vllm") -> Made:
    """A healthy run that began at noon."""
    made = replace(healthy(), "engine", {"name": engine, "version": "0.11.0"})
    made.environment["clock"] = {"monotonic_ns": T0, "utc_ns": int(NOON * 1e9)}
    return made


def vllm_oom(day: int, hour: int) -> str:
    return (
        f"2026-03-{day:02d} {hour:02d}:00:05,000 ERROR vllm.engine: torch.OutOfMemoryError: CUDA out of "
        "memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.50 GiB of which 100.00 MiB "
        "is free. Of the allocated memory 38.00 GiB is allocated by PyTorch, and 50.00 MiB is reserved by "
        "PyTorch but unallocated.\n"
    )


def beside(made: Made, tmp_path: Path, text: str) -> Diagnosis:
    log = tmp_path / "vllm.log"
    log.write_text(text)
    run = made.build()
    return diagnose_run(run, summarise(run), [str(log)])


def events(made: Made, tmp_path: Path, text: str) -> list[str]:
    log = tmp_path / "vllm.log"
    log.write_text(text)
    view = log_view(made.build(), [str(log)])
    return [] if view is None else [e.name for e in view.events]


def test_a_log_of_the_runs_own_time_counts(tmp_path: Path) -> None:
    assert "torch_oom" in events(at(), tmp_path, vllm_oom(5, 12))


def test_a_log_in_another_time_zone_still_counts(tmp_path: Path) -> None:
    assert "torch_oom" in events(at(), tmp_path, vllm_oom(5, 23))


def test_a_log_of_another_day_explains_nothing(tmp_path: Path) -> None:
    assert "torch_oom" not in events(at(), tmp_path, vllm_oom(3, 12))
    assert beside(at(), tmp_path, vllm_oom(3, 12)).primary == "healthy_baseline"


def test_a_log_of_another_engine_explains_nothing(tmp_path: Path) -> None:
    start = "INFO 03-05 12:00:00 [api_server.py:1] vLLM API server version 0.11.0\n"
    assert beside(at("sglang"), tmp_path, start + vllm_oom(5, 12)).primary == "healthy_baseline"


def test_garbage_is_no_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(bytes(range(256)) * 64)
    run = at().build()
    assert diagnose_run(run, summarise(run), [str(log)]).primary == "healthy_baseline"
