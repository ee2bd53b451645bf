"""The page of a replay, and its sections below the report of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvprobe.cli.main import main
from kvprobe.errors import Exit, UsageError
from kvprobe.report.replay_page import read_replay
from tests.replay.test_answers import write
from tests.report.old_run import OLD_RUN

ROWS: list[dict[str, object]] = [
    {"t": 0.0, "in": 700, "out": 300, "session": "<b>long</b>"},
    *({"t": 1.0 + 0.01 * at, "in": 90, "out": 40, "session": f"s{at}"} for at in range(8)),
]
SERVER = ("--blocks", "101", "--block-size", "10", "--engine", "reference", "--bytes-per-token", "1000")


def replayed(folder: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    trace = write(folder / "trace.jsonl", ROWS)
    assert main(["replay", str(trace), *SERVER, "--json", *argv]) == Exit.OK
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("lang", "held"), [("en", "Who held the cache"), ("zh", "正在运行")], ids=["en", "zh"]
)
def test_the_page_names_the_holders_and_says_it_is_no_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lang: str, held: str
) -> None:
    page = tmp_path / "replay.html"
    replayed(
        tmp_path,
        capsys,
        *("--html", str(page), "--lang", lang, "--sweep", "blocks=101,401", "--find-pool", "preempted <= 0%"),
    )
    text = page.read_text(encoding="utf-8")
    assert held in text
    assert "&lt;b&gt;long" in text
    assert "<b>long" not in text
    assert re.search(r"simulated, not measured|模拟值，非实测", text)
    assert "replay-sweep-blocks" in text
    assert "preempted &lt;= 0%" in text


def test_an_answer_in_json_is_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = replayed(tmp_path, capsys, "--beside", str(write(tmp_path / "other.jsonl", ROWS[:2])))
    path = tmp_path / "replay.json"
    path.write_text(said)
    found = read_replay(path)
    assert found.beside is not None
    assert found.requests.total == json.loads(said)["requests"]["total"] == 9


def test_the_report_of_a_run_takes_the_holders_of_a_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer, page = tmp_path / "replay.json", tmp_path / "report.html"
    answer.write_text(replayed(tmp_path, capsys))
    argv = ["report", str(OLD_RUN), "--replay", str(answer), "--html", str(page)]
    assert main(argv) in (Exit.OK, Exit.INVALID)
    text = page.read_text(encoding="utf-8")
    assert "Who held the cache" in text
    assert "Replay: trace.jsonl" in text


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "kvprobe.plan/1"}', "[" * 100_000])
def test_a_file_that_is_no_replay_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_replay(path)
    assert caught.value.problems[0].code == "bad_replay"
