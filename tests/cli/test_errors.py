"""Errors as a compiler prints them, as JSON, and without tracebacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from kvprobe.cli.errors_out import document
from kvprobe.cli.main import main
from kvprobe.errors import Exit, Problem
from kvprobe.report.document import error_schema


def kvprobe(*argv: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvprobe", *argv], capture_output=True, text=True, timeout=60, **kwargs
    )  # type: ignore[call-overload, no-any-return]


def test_an_unknown_option_is_named_with_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "shared_prefix", "--taget", "http://127.0.0.1:1"]) == Exit.USAGE
    text = capsys.readouterr().err
    assert "--taget" in text
    assert "did you mean `--target`?" in text


def test_an_unknown_command_is_named_with_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rum", "x"]) == Exit.USAGE
    assert "did you mean `run`?" in capsys.readouterr().err


def test_users_and_rate_exclude_each_other() -> None:
    assert main(["run", "shared_prefix", "--users", "3", "--rate", "2/s"]) == Exit.USAGE


def test_a_bad_workload_shows_the_line_a_caret_and_all_problems_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("name: w\nkind: distinct\nsede: 3\nrequests: many\n")
    assert main(["run", str(path), "--out", str(tmp_path / "runs")]) == Exit.USAGE
    text = capsys.readouterr().err
    assert f"{path}:3:1" in text
    assert " 3 | sede: 3" in text
    assert "did you mean `seed`?" in text
    assert f"{path}:4:" in text
    assert not (tmp_path / "runs").exists()


def test_json_errors_fit_their_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("kind: distinct\nfoo: 1\n")
    assert main(["run", str(path), "--json"]) == Exit.USAGE
    out = json.loads(capsys.readouterr().out)
    jsonschema.validate(out, error_schema())
    assert {e["line"] for e in out["errors"]} >= {2}


def test_hostile_text_in_an_error_is_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.yaml"
    path.write_bytes(b'kind: distinct\n"bad\\e]0;title\\a": 1\n')
    assert main(["run", str(path)]) == Exit.USAGE
    assert "\x1b" not in capsys.readouterr().err


def test_a_missing_workload_names_the_bundled_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "shared_prefx"]) == Exit.USAGE
    assert "shared_prefix" in capsys.readouterr().err


def test_a_closed_stdout_is_quiet() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "kvprobe", "schema", "workload"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(write_end)
    assert done.returncode == Exit.STDOUT_CLOSED
    assert done.stderr == b""


def test_a_defect_is_one_line_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(args: object) -> int:
        raise ValueError("surprise")

    monkeypatch.setattr("kvprobe.cli.schema.run", broken)
    assert main(["schema", "workload"]) == Exit.INTERNAL
    text = capsys.readouterr().err
    assert "surprise" in text
    assert "Traceback" not in text


def test_report_of_something_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == Exit.USAGE
    assert "not_a_run" in capsys.readouterr().err


def test_the_error_document_has_every_field_of_the_contract() -> None:
    error = document([Problem("c", "m")])["errors"][0]
    assert list(error) == ["code", "path", "line", "column", "message", "fix"]


@pytest.mark.parametrize("name", ["workload", "run", "diagnosis", "error"])
def test_schemas_are_valid_json_schema(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", name]) == Exit.OK
    jsonschema.Draft202012Validator.check_schema(json.loads(capsys.readouterr().out))


def test_an_unknown_schema_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "workloda"]) == Exit.USAGE
    assert "did you mean `workload`?" in capsys.readouterr().err


def test_no_escapes_without_a_terminal(tmp_path: Path) -> None:
    done = kvprobe("run", "nope", env={**os.environ, "TERM": "xterm-256color", "FORCE_COLOR": "1"})
    assert done.returncode == Exit.USAGE
    assert "\x1b" not in done.stderr + done.stdout
