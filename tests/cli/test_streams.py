"""stdin, stdout and stderr that are closed, full, or read by nobody (F39)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvprobe.cli.main import main
from kvprobe.cli.present import MIN_WIDTH, _width
from kvprobe.errors import Exit, gravest

KVPROBE = f"{sys.executable} -m kvprobe"


def shell(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_a_closed_stdin_or_stderr_changes_nothing(closed: str) -> None:
    done = shell(f"{KVPROBE} schema {closed}")
    assert (done.returncode, done.stdout.split()) == (
        0,
        ["workload", "run", "diagnosis", "plan", "replay", "compare", "quality", "doctor", "watch", "error"],
    )


def test_a_stdout_that_was_closed_from_the_start_says_141_and_nothing_else() -> None:
    done = shell(f"{KVPROBE} schema workload >&-")
    assert (done.returncode, done.stderr) == (Exit.STDOUT_CLOSED, "")


def test_no_file_ever_gets_the_number_of_a_closed_stream() -> None:
    code = (
        "from kvprobe.cli.streams import occupy_missing\n"
        "import sys\n"
        "missing = occupy_missing()\n"
        "number = open('/dev/zero').fileno()\n"
        "sys.exit(0 if missing == {0, 1, 2} and number > 2 else 1)"
    )
    assert shell(f'{sys.executable} -c "{code}" <&- >&- 2>&-').returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_a_storage_failure() -> None:
    for command in ("schema workload", "run --help", "schema"):
        done = shell(f"{KVPROBE} {command} >/dev/full")
        assert done.returncode == Exit.STORAGE, command
        assert done.stderr.startswith("error[stdout]: cannot write the result to stdout: No space left")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_error_that_cannot_be_printed_keeps_its_exit_code() -> None:
    for target in (">/dev/full", ">&-", "| true; exit ${PIPESTATUS[0]}"):
        done = shell(f"{KVPROBE} report /nonexistent --json {target}")
        assert done.returncode == Exit.USAGE, target
        assert "Traceback" not in done.stderr
    assert shell(f"{KVPROBE} report /nonexistent 2>/dev/full").returncode == Exit.USAGE


@pytest.mark.parametrize(
    ("columns", "width"), [("abc", 100), ("0", 100), ("-5", 100), ("20", 80), ("140", 140)]
)
def test_an_odd_width_never_cuts_a_number(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert _width() == width >= MIN_WIDTH


def test_what_is_true_at_once_has_one_code() -> None:
    """CLI.md: 130/143, 6, 5, 4, 99, 0; a closed stdout hides a verdict, never a failure."""
    order = [Exit.SIGTERM, Exit.STORAGE, Exit.ABORTED, Exit.STDOUT_CLOSED, Exit.INVALID]
    order += [Exit.CHECK_FAILED, Exit.OK]
    for at, code in enumerate(order):
        assert gravest(*reversed(order[at:])) == code


def test_an_interrupt_outside_a_run_is_a_document_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvprobe.cli.schema.run", interrupted)
    assert main(["schema", "workload", "--json"]) == Exit.SIGINT
    assert json.loads(capsys.readouterr().out)["errors"][0]["code"] == "interrupted"


def test_children_run_this_code_whatever_lies_in_the_current_folder(tmp_path: Path) -> None:
    from kvprobe import children

    for name in ("random.py", "json.py", "kvprobe.py", "reference_server.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')\n")
    done = subprocess.run(
        [*children.module_command("reference_server"), "--help"],
        env=children.environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "--block-size" in done.stdout
    for module in ("kvprobe.load.worker",):
        done = subprocess.run(
            children.module_command(module),
            env={**children.environment(), "HOME": os.fspath(tmp_path)},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
