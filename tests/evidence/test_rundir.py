"""The run directory: readable whatever happened to the process that made it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas
import pyarrow.parquet
import pytest

from kvprobe.errors import StorageError, UsageError
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.records import OpenedRequest, RequestRecord
from kvprobe.evidence.rundir import RunDir
from kvprobe.evidence.samples import Sample
from kvprobe.evidence.spool import SpoolWriter

HASH = "1a2b3c4d5e6f"
# fmt: off
CONTRACT_COLUMNS = [
    "request_id", "kind", "session", "turn", "intended_ns",
    "sent_ns", "first_byte_ns", "first_chunk_ns", "first_token_ns", "first_visible_ns",
    "last_token_ns", "end_ns", "gaps_ns", "prompt_tokens", "completion_tokens",
    "cached_tokens", "reasoning_tokens", "asked_prompt_tokens", "asked_completion_tokens", "prefix_id",
    "failure", "failure_detail", "status_code", "finish_reason", "worker",
    "warmup", "server_request_id",
]
# fmt: on


def fill(run: RunDir, rows: int = 50) -> None:
    """Two workers' spools and the parent's, as a run leaves them."""
    for worker in "01":
        with SpoolWriter(run.spool_dir / f"worker-{worker}.jsonl", worker) as writer:
            for number in range(rows):
                name = f"{worker}-{number}"
                opened = OpenedRequest(request_id=name, plan_index=number, intended_ns=number, sent_ns=number)
                writer.write(opened)
                if number != rows - 1:
                    writer.write(row(name, number, worker))
    with SpoolWriter(run.spool_dir / "parent.jsonl") as writer:
        writer.write(Sample(t_ns=2**60 + 1, metric="m", labels={"b": "2", "a": "1"}, value=0.5))
        writer.write(Sample(t_ns=2**60, metric="m", value=None))
        writer.write(Fact(name="engine", value={"name": "vllm"}, source="metrics"))
    run.add_fact(Fact(name="salt", value="abc", source="run"))
    run.write_text("workload.yaml", "name: x\nprompt:\n  tokens: 7\n")
    run.write_json("environment.json", {"cpu_count": 2})


def row(name: str, number: int, worker: str) -> RequestRecord:
    odd = number % 2 == 1
    return RequestRecord(
        request_id=name,
        kind="distinct",
        worker=worker,
        plan_index=number,
        intended_ns=2**60 + number,
        sent_ns=2**60 + number + 1 if odd else None,
        gaps_ns=list(range(number % 5)),
        completion_tokens=3 if odd else None,
        failure=None if odd else "timeout_first",
    )


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "shared_prefix", HASH)


def test_create_makes_a_new_directory_each_time(tmp_path: Path) -> None:
    runs = [RunDir.create(tmp_path / "a" / "b", "x-1_y", HASH) for _ in range(3)]
    assert len({run.path for run in runs}) == 3
    assert all(run.spool_dir.is_dir() and "-x-1_y-1a2b3c4d" in run.path.name for run in runs)


@pytest.mark.parametrize(
    "name",
    ["../../etc/x", "/etc/x", "a\0b", "a" * 300, "CON", "a\nb", "-x", "", ".", "a/b", "é", "x\u202e"],
)
def test_a_name_that_could_escape_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunDir.create(tmp_path, name, HASH)
    assert caught.value.problems[0].code == "bad_run_name"
    assert list(tmp_path.iterdir()) == []


def test_a_hash_that_could_escape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        RunDir.create(tmp_path, "x", "../../../..")


def test_the_parquet_files_read_in_one_line_with_exact_integers(run: RunDir) -> None:
    fill(run)
    run.finalise()
    frame = pandas.read_parquet(run.path / "requests.parquet")
    assert list(frame.columns)[: len(CONTRACT_COLUMNS)] == CONTRACT_COLUMNS
    assert set(RequestRecord.__struct_fields__) == set(frame.columns)
    by_id = frame.set_index("request_id")
    assert str(frame.dtypes["sent_ns"]) == "Int64"
    assert int(by_id.loc["0-1", "sent_ns"]) == 2**60 + 2
    assert by_id.loc["0-2", "sent_ns"] is pandas.NA
    assert list(by_id.loc["0-4", "gaps_ns"]) == [0, 1, 2, 3]
    assert str(frame.dtypes["warmup"]) == "bool"
    samples = pandas.read_parquet(run.path / "samples.parquet")
    assert list(samples.columns) == ["t_ns", "metric", "labels", "value"]
    assert list(samples["t_ns"]) == [2**60, 2**60 + 1]
    assert samples["labels"][1] == '{"a":"1","b":"2"}'
    assert samples["value"].isna().tolist() == [True, False]


def test_the_parquet_types_are_those_of_the_contract(run: RunDir) -> None:
    fill(run)
    run.finalise()
    schema = pyarrow.parquet.read_schema(run.path / "requests.parquet")
    types = {name: str(schema.field(name).type) for name in CONTRACT_COLUMNS}
    assert {name for name, kind in types.items() if kind == "int64"} == {
        name for name in CONTRACT_COLUMNS if name.endswith("_tokens") or name in ("turn", "status_code")
    } | {name for name in CONTRACT_COLUMNS if name.endswith("_ns") and name != "gaps_ns"}
    assert types["gaps_ns"].startswith("list<")
    assert types["gaps_ns"].endswith("int64>")
    assert types["warmup"] == "bool"


def test_an_empty_run_still_has_all_columns(run: RunDir) -> None:
    run.finalise()
    frame = pandas.read_parquet(run.path / "requests.parquet")
    assert list(frame.columns)[: len(CONTRACT_COLUMNS)] == CONTRACT_COLUMNS
    assert len(frame) == 0


def test_loading_gives_the_same_before_and_after_finalise(run: RunDir) -> None:
    fill(run)
    with open(run.spool_dir / "parent.jsonl", "ab") as file:
        file.write(b'{"type":"sample","t_')
    before = run.load()
    run.finalise()
    run.finalise()
    after = run.load()
    assert before == after
    assert len(after.records) == 98
    assert [item.request_id for item in after.opened] == ["0-49", "1-49"]
    assert {fact.name for fact in after.facts} == {"salt", "engine"}
    assert after.bad_lines == 1
    assert after.workload == {"name": "x", "prompt": {"tokens": 7}}
    assert after.environment == {"cpu_count": 2}
    assert not any(path.name.startswith((".", "spool")) for path in run.path.iterdir())


def test_a_token_count_beyond_64_bits_is_null_and_costs_no_run(run: RunDir) -> None:
    with SpoolWriter(run.spool_dir / "0.jsonl") as writer:
        record = row("a", 1, "0")
        record.prompt_tokens = 10**30
        writer.write(record)
    run.finalise()
    assert run.load().records[0].prompt_tokens is None


_DYING = """
import os, signal, sys
from pathlib import Path
from kvprobe.evidence.rundir import RunDir
left = int(sys.argv[2])
def deadly(function):
    def call(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call
for name in ("replace", "rename", "fsync", "rmdir", "unlink"):
    setattr(os, name, deadly(getattr(os, name)))
RunDir.open(Path(sys.argv[1])).finalise()
"""


def test_a_kill_at_any_step_of_finalise_leaves_a_readable_run(tmp_path: Path) -> None:
    steps = 0
    for step in range(1, 60, 2):  # every second file operation: each costs a process
        run = RunDir.create(tmp_path, "killed", HASH)
        fill(run, rows=6)
        before = run.load()
        done = subprocess.run([sys.executable, "-c", _DYING, str(run.path), str(step)], check=False)
        assert RunDir.open(run.path).load() == before
        run.finalise()
        assert run.load() == before
        if done.returncode == 0:
            break
        steps += 1
    assert steps >= 5


def test_status_is_killed_until_it_is_written(run: RunDir) -> None:
    assert run.status == run.load().status == "killed"
    run.write_status("partial")
    assert run.status == "partial"
    run.write_status("complete")
    assert RunDir.open(run.path).load().status == "complete"
    (run.path / "STATUS").write_text("great")
    assert run.status == "killed"


def test_written_files_are_whole_and_json_has_no_nan(run: RunDir) -> None:
    run.write_json("summary.json", {"a": float("nan"), "b": [1, "é"]})
    text = (run.path / "summary.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": [1, "é"]}
    with pytest.raises(ValueError, match="file name"):
        run.write_text("../x", "")
    assert not list(run.path.glob("*.tmp"))


@pytest.mark.parametrize("make", ["missing", "file", "empty", "nul"])
def test_what_is_no_run_is_refused(tmp_path: Path, make: str) -> None:
    path = tmp_path / "x"
    if make == "file":
        path.write_text("")
    if make == "empty":
        path.mkdir()
    if make == "nul":
        path = tmp_path / "a\0b"
    with pytest.raises(UsageError) as caught:
        RunDir.open(path)
    assert caught.value.problems[0].code == "not_a_run"


def test_links_that_leave_the_folder_are_refused(run: RunDir, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link").symlink_to(run.path)
    with pytest.raises(UsageError) as caught:
        RunDir.open(elsewhere / "link")
    assert caught.value.problems[0].code == "run_escapes"
    (tmp_path / "latest").symlink_to(run.path.name)
    assert RunDir.open(tmp_path / "latest").path == run.path

    other = RunDir.create(tmp_path, "other", HASH)
    other.spool_dir.rmdir()
    other.spool_dir.symlink_to(run.spool_dir)
    with pytest.raises(UsageError):
        RunDir.open(other.path)


def test_files_inside_that_are_links_are_neither_read_nor_written_through(
    run: RunDir, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"name":"stolen","value":1,"source":"x"}\n')
    for name in ("facts.jsonl", "environment.json", "STATUS"):
        (run.path / name).symlink_to(secret)
    (run.spool_dir / "x.jsonl").symlink_to(secret)
    with pytest.raises(StorageError):
        run.add_fact(Fact(name="f", value=1, source="s"))
    data = run.load()
    assert data.facts == []
    assert data.environment == {}
    assert data.status == "killed"
    run.write_status("complete")
    assert secret.read_text().startswith('{"name":"stolen"')


def test_a_cut_requests_parquet_is_a_clear_error_never_an_empty_run(run: RunDir) -> None:
    fill(run)
    run.finalise()
    path = run.path / "requests.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError) as caught:
        run.load()
    assert caught.value.problems[0].code == "run_damaged"


def test_a_cut_samples_parquet_costs_the_samples_only(run: RunDir) -> None:
    fill(run)
    run.finalise()
    path = run.path / "samples.parquet"
    path.write_bytes(path.read_bytes()[:30])
    data = run.load()
    assert len(data.records) == 98
    assert data.samples == []
    assert data.facts[-1].name == "samples_unreadable"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real filesystem of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "kvprobe-test", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def write_until_refused(writer: SpoolWriter) -> tuple[int, StorageError]:
    """The number of rows that were acknowledged, and the refusal of the next."""
    for number in range(10**6):
        try:
            writer.write(row(f"r{number}", number, "0"))
        except StorageError as exc:
            return number, exc
    raise AssertionError("a disk of 256 KiB took a million rows")


def test_a_full_disk_is_a_storage_error_and_keeps_what_it_has(small_disk: Path) -> None:
    run = RunDir.create(small_disk, "full", HASH)
    with SpoolWriter(run.spool_dir / "0.jsonl") as writer:
        written, error = write_until_refused(writer)
    assert "free space" in (error.problems[0].fix or "")
    assert str(run.spool_dir) in (error.problems[0].fix or "")
    with pytest.raises(StorageError):
        run.write_text("big.txt", "x" * 300_000)
    with pytest.raises(StorageError):
        run.finalise()
    data = RunDir.open(run.path).load()
    assert [record.plan_index for record in data.records] == list(range(written))
    assert data.status == "killed"
    assert not list(run.path.glob(".*.tmp"))


def test_a_read_only_disk_is_a_storage_error_before_anything_else(small_disk: Path) -> None:
    run = RunDir.create(small_disk, "ro", HASH)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for action in (
        lambda: RunDir.create(small_disk, "x", HASH),
        lambda: SpoolWriter(run.spool_dir / "0.jsonl"),
        lambda: run.add_fact(Fact(name="f", value=1, source="s")),
        lambda: run.write_status("complete"),
        run.finalise,
    ):
        with pytest.raises(StorageError) as caught:
            action()
        assert "read-only" in (caught.value.problems[0].fix or "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else_is_a_storage_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="ermission"):
        RunDir.create(tmp_path, "x", HASH)
