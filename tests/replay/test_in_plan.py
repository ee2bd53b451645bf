"""A plan with a trace: the head of it through the planned pool, beside the counts by length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvprobe.cli.main import main
from kvprobe.errors import Exit
from kvprobe.plan.simulate.cost import ASSUMED
from kvprobe.plan.simulate.in_plan import DRAWS, HEAD_ROWS, _Head, _rows, _run
from kvprobe.plan.simulate.settings import SimSettings
from tests.replay.test_answers import write
from tests.replay.test_cli import CONFIG


def planned(
    folder: Path, capsys: pytest.CaptureFixture[str], rows: list[dict[str, object]] | str, *argv: str
) -> tuple[dict[str, Any], str]:
    """The document and the terminal's text."""
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    lengths = rows if isinstance(rows, str) else str(write(folder / "trace.jsonl", rows))
    call = ["plan", "--model", str(config), "--lengths", lengths, "--available-kv", "1GiB", *argv]
    assert main([*call, "--json"]) == Exit.OK
    document = json.loads(capsys.readouterr().out)
    assert main(call) == Exit.OK
    return document, " ".join(capsys.readouterr().out.split())


def rows(count: int, gap_s: float) -> list[dict[str, object]]:
    return [{"t": gap_s * at, "in": 500, "out": 500} for at in range(count)]


def test_a_trace_shows_what_arrivals_make_of_the_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, text = planned(tmp_path, capsys, rows(60, 0.0), "--engine", "vllm", "--max-model-len", "4096")
    found = document["replay"]
    assert found["requests"] == found["trace_requests"] == 60
    assert found["step_time_source"] == "assumed"
    assert found["usable_blocks"] == document["pool"]["num_blocks"] - 1
    now, advised = found["runs"]
    assert (now["max_num_seqs"], advised["max_num_seqs"]) == (
        256,
        document["concurrency"]["distribution"]["max_num_seqs"],
    )
    assert now["preemptions"] > 0 == advised["preemptions"]
    assert advised["running_peak"] == advised["max_num_seqs"]
    assert advised["waiting_peak"] >= 60 - advised["max_num_seqs"]
    assert "60 requests of 60 in the trace" in text
    assert "step time: assumed" in text
    assert "as this plan recommends" in text


def test_requests_far_apart_are_never_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document, _ = planned(tmp_path, capsys, rows(20, 60.0), "--engine", "vllm", "--max-model-len", "4096")
    assert [run["running_peak"] for run in document["replay"]["runs"]] == [1, 1]
    assert document["concurrency"]["distribution"]["max_num_seqs"] > 1


def test_a_long_trace_gives_its_head_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document, text = planned(tmp_path, capsys, rows(HEAD_ROWS + 50, 60.0), "--engine", "vllm")
    assert document["replay"]["requests"] == HEAD_ROWS
    assert document["replay"]["trace_requests"] == HEAD_ROWS + 50
    assert "the first 2,000 requests of 2,050 in the trace" in text


@pytest.mark.parametrize(
    ("lengths", "argv", "why"),
    [
        ("fixed:1000", ("--engine", "llama.cpp"), "is not simulated"),
        (None, ("--engine", "llama.cpp"), "is not simulated"),
    ],
)
def test_what_cannot_be_simulated_has_its_reason(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lengths: str | None,
    argv: tuple[str, ...],
    why: str,
) -> None:
    document, _ = planned(tmp_path, capsys, lengths or rows(5, 1.0), *argv)
    assert document["replay"] is None
    assert why in document["reasons"]["replay"]


def test_lengths_without_arrivals_are_drawn_and_all_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With answers alike nearly none of what is advised is preempted; with long answers to long requests,
    which stay longer, more: both stand there.
    """
    lengths, page = "p50=200,p95=2000,max=4000", tmp_path / "plan.html"
    argv = ("--engine", "vllm", "--max-model-len", "4096", "--html", str(page))
    document, text = planned(tmp_path, capsys, lengths, *argv)
    found = document["replay"]
    assert (found["arrivals"], found["requests"], found["trace_requests"]) == ("all at once", DRAWS, None)
    now, advised, longer = found["runs"]
    assert now["why"] == "the default limit, answers alike"
    assert longer["why"] == "as this plan recommends, long answers to long requests"
    assert advised["max_num_seqs"] == document["concurrency"]["distribution"]["max_num_seqs"]
    assert advised["preempted_share"] < 0.02 < now["preempted_share"]
    assert longer["preemptions"] > advised["preemptions"]
    assert (now["refused"], now["hit_rate"]) == (0, None)
    assert any("assumed: 25% of all tokens" in note for note in found["notes"])
    assert "300 requests of these lengths, all waiting from the start, through this pool" in text
    assert "requests of these lengths, all waiting from the start, simulated" in page.read_text()
    again, _ = planned(tmp_path, capsys, lengths, *argv)
    assert again["replay"] == found


def test_without_an_engine_its_habits_are_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document, _ = planned(tmp_path, capsys, rows(5, 1.0))
    assert document["replay"]["admission"] == "vllm"
    assert any("no --engine" in note for note in document["replay"]["notes"])


def test_the_page_of_a_plan_has_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    planned(tmp_path, capsys, rows(5, 1.0), "--engine", "vllm", "--html", str(page))
    assert "The first 5 of 5 requests of the trace through this pool, simulated" in page.read_text()


def test_a_small_budget_ends_the_draws_earlier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each prompt takes as many steps as it has tokens: the bound of events holds there too."""
    argv = ("--engine", "vllm", "--max-model-len", "4096", "--max-num-batched-tokens", "1")
    document, _ = planned(tmp_path, capsys, "fixed:2000", *argv)
    assert 1 <= document["replay"]["requests"] <= 20


def test_a_run_that_is_cut_short_serves_what_it_says() -> None:
    """No row is served after the bound of events, and the next run has the same rows."""
    settings = SimSettings(usable_blocks=500, engine="reference", max_num_seqs=1, max_num_batched_tokens=1)
    head = _Head(_rows((2000, 2.0) for _ in range(60)), 1)
    first = _run(head, settings, ASSUMED, 1, "")
    assert 0 < head.rows < 20
    # Some 2,000 steps of 20 ms each before the next one: the last of them has waited for all others.
    assert first.ttft_p95_s is not None
    assert first.ttft_p95_s < head.rows * 2000 * 0.021
    assert _run(head, settings, ASSUMED, 1, "") == first


@pytest.mark.parametrize("lengths", ["fixed:1", "fixed:2"])
def test_the_shortest_lengths_are_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lengths: str
) -> None:
    document, _ = planned(tmp_path, capsys, lengths, "--engine", "vllm")
    assert [run["refused"] + run["failed"] for run in document["replay"]["runs"]] == [0]


def test_lengths_beyond_the_limit_are_refused_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, _ = planned(tmp_path, capsys, "fixed:100000", "--engine", "vllm", "--max-model-len", "4096")
    for run in document["replay"]["runs"]:
        assert (run["refused"], run["running_peak"], run["ttft_p95_s"]) == (DRAWS, 0, None)
