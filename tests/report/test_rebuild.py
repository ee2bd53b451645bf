"""`kvprobe report`: every form of the report from a directory that an older version wrote."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from kvprobe.cli.main import main
from kvprobe.evidence.environment import LAYOUT
from kvprobe.evidence.migrations import MIGRATIONS
from tests.report.old_run import OLD_RUN, old_run
from tests.report.plans import a_plan


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(a_plan()), encoding="utf-8")
    return path


def test_the_old_run_is_read_whole() -> None:
    run = old_run()
    assert run.status == "complete"
    assert len(run.records) == 50
    assert len(run.samples) > 300
    assert run.workload["name"] == "small"
    assert run.environment["layout"] == 1


def test_there_is_a_step_from_every_layout_to_the_next() -> None:
    assert set(MIGRATIONS) == set(range(1, LAYOUT))


def test_all_forms_are_rebuilt_and_the_directory_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p.name: p.read_bytes() for p in OLD_RUN.iterdir()}
    files = {name: tmp_path / f"r.{name}" for name in ("html", "md", "junit")}
    options = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    assert main(["report", str(OLD_RUN), "--json", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "kvprobe.run/1"
    assert told["requests"]["sent"] == 48
    page, text = files["html"].read_text("utf-8"), files["md"].read_text("utf-8")
    primary = told["diagnosis"]["primary"]
    assert primary in page
    assert primary in text
    suite = ET.parse(files["junit"]).getroot()[0]
    assert suite.get("tests") == "3"
    verdicts = {g["threshold"]: g["verdict"] for g in told["thresholds"]}
    assert verdicts == {"ttft.p50 < 5s": "pass", "ttft.p99 < 2s": "n_too_small"}
    assert suite.get("failures") == "1"
    assert "n too small" in page
    assert before == {p.name: p.read_bytes() for p in OLD_RUN.iterdir()}


def test_the_page_and_the_ticket_hold_the_same_sections(tmp_path: Path) -> None:
    page, text = tmp_path / "r.html", tmp_path / "r.md"
    assert main(["report", str(OLD_RUN), "--html", str(page), "--md", str(text)]) == 0
    heads = [line[3:] for line in text.read_text("utf-8").splitlines() if line.startswith("## ")]
    assert len(heads) >= 9
    for head in heads:
        assert f">{head.replace(chr(92), '')}</h2>" in page.read_text("utf-8")


def test_chinese(tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    assert main(["report", str(OLD_RUN), "--html", str(page), "--lang", "zh"]) == 0
    text = page.read_text("utf-8")
    assert '<html lang="zh-Hans">' in text
    assert "测量是否有效？" in text
    assert "KV 缓存池" in text


def _copy(tmp_path: Path, **environment: Any) -> Path:
    path = tmp_path / "run"
    shutil.copytree(OLD_RUN, path)
    found = json.loads((path / "environment.json").read_text("utf-8")) | environment
    (path / "environment.json").write_text(json.dumps(found), encoding="utf-8")
    return path


def test_a_run_of_a_newer_version_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _copy(tmp_path, layout=LAYOUT + 1, kvprobe="9.9")
    (path / "requests.parquet").write_bytes(b"a form that this version cannot read")
    assert main(["report", str(path)]) == 2
    said = capsys.readouterr().err
    assert "newer version" in said
    assert "9.9" in said
    assert "update kvprobe" in said


def test_a_run_from_before_layouts_were_written_is_of_the_first(tmp_path: Path) -> None:
    path = _copy(tmp_path, layout=None)
    assert main(["report", str(path), "--html", str(tmp_path / "r.html")]) == 0
    (path / "summary.json").unlink()
    assert main(["report", str(path)]) == 0


def test_a_run_without_its_end_is_told_as_partial(tmp_path: Path) -> None:
    path = _copy(tmp_path)
    (path / "STATUS").unlink()
    page = tmp_path / "r.html"
    assert main(["report", str(path), "--html", str(page)]) == 0
    assert "PARTIAL" in page.read_text("utf-8").split('class="first"')[0]


def test_a_plan_of_another_thing_is_set_beside_the_run_and_not_mixed_with_it(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "p.html"
    argv = [
        "report",
        str(OLD_RUN),
        "--plan",
        str(plan_file),
        "--html",
        str(page),
        "--demand-at-once",
        "80",
        "--json",
    ]
    assert main(argv) == 0
    told = json.loads(capsys.readouterr().out)["prelaunch"]
    assert told["answer"] == "not_shown"
    assert told["unlike"]
    assert told["capacity"]["unit"] == "requests at once"
    assert told["headroom"] == pytest.approx(told["capacity"]["value"] / 80 - 1)
    text = page.read_text("utf-8")
    assert [f">{n} " in text for n in range(1, 16)] == [True] * 15, "fifteen numbered sections"
    assert main(argv[:-1]) == 0
    assert capsys.readouterr().out.startswith("# a-model: capacity before launch")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "no_plan"),
        ("{", "not_a_plan"),
        ('{"schema": "kvprobe.plan/7"}', "not_a_plan"),
        ("[]", "not_a_plan"),
    ],
)
def test_what_is_no_plan_is_refused(
    content: str | None, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert main(["report", str(OLD_RUN), "--plan", str(path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["code"] == code


def test_wrong_demands_are_told_all_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(OLD_RUN), "--demand", "many", "--growth=-3%", "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["errors"]) == 2


def test_plan_writes_the_pre_launch_page(tmp_path: Path) -> None:
    from tests.report.plans import CONFIG

    config, page, text = tmp_path / "config.json", tmp_path / "p.html", tmp_path / "p.md"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    argv = [
        "plan",
        "--model",
        str(config),
        "--gpu",
        "H100",
        "--engine",
        "vllm",
        "--lengths",
        "p50=1000,p95=8000,max=32000",
    ]
    assert (
        main([*argv, "--html", str(page), "--md", str(text), "--lang", "zh", "--demand-at-once", "50"]) == 0
    )
    assert "上线前容量评估" in page.read_text("utf-8")
    assert "## 15 原始数据" in text.read_text("utf-8")


def test_a_disk_that_refuses_is_exit_6(tmp_path: Path) -> None:
    assert main(["report", str(OLD_RUN), "--html", str(tmp_path / "no" / "r.html")]) == 6
