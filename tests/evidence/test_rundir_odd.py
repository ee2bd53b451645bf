"""Run directories that hold what no run writes, and places where none can be made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvprobe.errors import StorageError, UsageError
from kvprobe.evidence.rundir import RunDir
from tests.evidence.test_rundir import HASH, fill


@pytest.mark.parametrize(
    "name", ["STATUS", "workload.yaml", "environment.json", "facts.jsonl", "opened.jsonl"]
)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    run = RunDir.create(tmp_path, "x", HASH)
    fill(run)
    run.finalise()
    (run.path / name).unlink(missing_ok=True)
    os.mkfifo(run.path / name)
    assert len(run.load().records) == 98


def test_a_pipe_in_the_place_of_the_rows_is_damage(tmp_path: Path) -> None:
    for name, finalised in (("requests.parquet", True), ("spool/worker-9.jsonl", False)):
        run = RunDir.create(tmp_path, "x", HASH)
        fill(run)
        if finalised:
            run.finalise()
            (run.path / name).unlink()
        os.mkfifo(run.path / name)
        with pytest.raises(UsageError) as caught:
            run.load()
        assert caught.value.problems[0].code == "run_damaged"


def test_a_text_that_is_far_too_large_is_left_out(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "x", HASH)
    fill(run)
    with (run.path / "workload.yaml").open("ab") as file:
        file.truncate(1 << 40)
    data = run.load()
    assert (data.workload, len(data.records)) == ({}, 98)


def test_a_path_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        RunDir.create(tmp_path / os.fsdecode(b"\xff"), "x", HASH)
    assert caught.value.problems[0].code == "bad_out"


def test_a_run_that_never_began_is_removed(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "x", HASH)
    fill(run)
    run.discard()
    run.discard()
    assert not list(tmp_path.iterdir())


def test_an_interrupted_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "x", HASH)

    def interrupted(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run._replace_by("summary.json", interrupted)
    assert [path.name for path in run.path.iterdir()] == ["spool"]


def test_a_file_where_the_folder_should_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        RunDir.create(tmp_path / "file", "x", HASH)
    assert "name a folder" in (caught.value.problems[0].fix or "")
