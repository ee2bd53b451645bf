"""`kvprobe diagnose` at its edges: where the Markdown goes, odd metrics pages, a signal in mid-reading."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvprobe.cli import diagnose_inputs
from kvprobe.cli.main import main
from kvprobe.errors import Exit, Interrupted
from kvprobe.observe.logs import sources
from tests.cli.test_diagnose import PAGE, document, serving
from tests.observe.logs.logkit import OOM


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_text(f"INFO 01-02 03:04:05 [core.py:58] start\nTraceback (most recent call last):\n{OOM}\n")
    return path


def test_markdown_to_stdout_stands_in_place_of_the_page(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(log.parent)
    assert main(["diagnose", "server.log", "--md", "-"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("## ")
    assert "### Proof" in text
    assert not (log.parent / "-").exists()
    assert document(capsys, "server.log", "--md", "-", code=Exit.USAGE)["errors"][0]["code"] == "conflict"


def test_markdown_to_a_stdout_that_knows_ascii_only(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(f"{OOM} 日本語\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "kvprobe", "diagnose", "a.log", "--md", "-"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u65e5" in done.stdout


@pytest.mark.parametrize("way", ["{log}", "{folder}/./server.log", "{folder}/link"])
def test_markdown_never_overwrites_what_is_read(
    way: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.symlink(log, log.parent / "link")
    before = log.read_bytes()
    target = way.format(log=log, folder=log.parent)
    found = document(capsys, log, "--md", target, code=Exit.USAGE)
    assert (found["errors"][0]["code"], log.read_bytes()) == ("conflict", before)


def test_that_markdown_cannot_be_written_is_said_before_a_log_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*args: object, **options: object) -> None:
        raise AssertionError("a log was read")

    monkeypatch.setattr("kvprobe.observe.logs.intake.read_logs", unread)
    for target in (tmp_path, tmp_path / "no" / "x.md", ""):
        found = document(capsys, "-", "--md", target, code=Exit.STORAGE)
        assert "--md" in found["errors"][0]["fix"]


def test_saved_pages_packed_with_headers_and_without_comments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    headers = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"
    samples = "".join(f"{line}\n" for line in PAGE.splitlines() if not line.startswith("#"))
    pages = {"a.gz": gzip.compress(PAGE.encode()), "b": headers + PAGE.encode(), "c": samples.encode()}
    for name, data in pages.items():
        (tmp_path / name).write_bytes(data)
        for argv in (("--metrics", tmp_path / name), (tmp_path / name,)):
            assert document(capsys, *argv)["read"]["engine"] == "vllm", name


def test_a_server_without_a_path_is_asked_for_its_metrics(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnose_inputs, "SCRAPE_EVERY_S", 0.01)
    with serving(PAGE) as (url, asked):
        document(capsys, log, "--metrics", url)
        document(capsys, log, "--metrics", url.removeprefix("http://"))
    assert set(asked) == {"GET /metrics"}


def test_addresses_that_hand_out_credentials_are_refused_whatever_the_user_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for host in ("169.254.169.254", "[fd00:ec2::254]", "[::ffff:169.254.169.254]"):
        argv = ("--metrics", f"http://{host}/metrics", "--i-own-this-target")
        assert document(capsys, *argv, code=Exit.TARGET)["errors"][0]["code"] == "guard"
    told = document(capsys, "--metrics", "http://192.0.2.1/", code=Exit.TARGET)["errors"][0]
    assert "load test" not in told["message"], "a diagnosis only reads"


class Stopped:
    """A pipe that gives some lines, and where the signal comes while more is waited for."""

    def __init__(self, signal: KeyboardInterrupt) -> None:
        self._left, self._signal = f"{'x' * 600}\n{OOM}\n".encode(), signal

    def read(self, size: int) -> bytes:
        if not self._left:
            raise self._signal
        part, self._left = self._left[:size], self._left[size:]
        return part


@pytest.mark.parametrize(
    ("signal", "code"), [(KeyboardInterrupt(), 130), (Interrupted(Exit.SIGTERM), 143)], ids=["INT", "TERM"]
)
def test_a_signal_ends_the_reading_and_what_came_is_diagnosed(
    signal: KeyboardInterrupt,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`docker logs -f server | kvprobe diagnose -`, and Ctrl-C."""
    monkeypatch.setattr(sources, "_stdin", lambda: Stopped(signal))
    (tmp_path / "never.log").write_text("not read any more\n")
    found = document(capsys, "-", tmp_path / "never.log", "--fail-on", "any", code=code)
    assert found["primary"] != "unknown"
    assert any("signal" in note for note in found["read"]["notes"])
    assert [(s["path"], s["ended"]) for s in found["read"]["sources"]] == [("stdin", "excerpt")]
