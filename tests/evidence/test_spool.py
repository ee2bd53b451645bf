"""The spool: nothing acknowledged is ever lost, and nothing in the file can break the reader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.errors import StorageError
from kvprobe.evidence import spool as spool_module
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.records import OpenedRequest, RequestRecord
from kvprobe.evidence.samples import Sample
from kvprobe.evidence.spool import SpoolWriter, read_spool

RECORD = RequestRecord(
    request_id="r1",
    kind="distinct",
    intended_ns=2**60,
    sent_ns=None,
    gaps_ns=[1, 2],
    plan_index=4,
    failure="dns",
)
OPENED = OpenedRequest(request_id="r2", plan_index=5, intended_ns=1, sent_ns=2)
SAMPLE = Sample(t_ns=3, metric="engine.requests_running", labels={"b": "1", "a": 'x"\n'}, value=1.5)
FACT = Fact(name="engine", value={"name": "vllm", "version": None}, source="metrics", line=None)


def test_every_kind_comes_back_as_it_went_in(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path / "0.jsonl", "worker-0") as writer:
        for item in (RECORD, OPENED, SAMPLE, FACT):
            writer.write(item)
    content = read_spool(tmp_path / "0.jsonl")
    assert (content.records, content.opened) == ([RECORD], [OPENED])
    assert (content.samples, content.facts) == ([SAMPLE], [FACT])
    assert content.bad_lines == 0


def test_damage_is_counted_and_whole_lines_are_recovered(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    with SpoolWriter(path) as writer:
        writer.write(SAMPLE)
    whole = path.read_bytes()
    path.write_bytes(
        whole
        + b"\0\0\0\0" + whole  # a hole that a crash left in front of a good line
        + b"garbage\n"
        + b"\xff\xfe\n"
        + b'{"type":"row","request_id":7}\n'
        + b'{"type":"unheard_of"}\n'
        + b"[" * 100_000 + b"\n"
        + b"\n"
        + whole[:20]
    )  # fmt: skip
    content = read_spool(path)
    assert content.samples == [SAMPLE, SAMPLE]
    assert content.bad_lines == 7


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    with SpoolWriter(path) as writer:
        writer.write(SAMPLE)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert read_spool(path).samples == [SAMPLE]
    assert read_spool(path).bad_lines == 0


def test_a_torn_tail_does_not_swallow_what_is_written_after_it(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    path.write_bytes(b'{"type":"sample","t_n')
    with SpoolWriter(path) as writer:
        writer.write(SAMPLE)
    assert read_spool(path).samples == [SAMPLE]
    assert read_spool(path).bad_lines == 1


def test_an_endless_line_is_skipped_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "0.jsonl"
    path.write_bytes(b"x" * 5000 + b"\n")
    with SpoolWriter(path) as writer:
        writer.write(SAMPLE)
    assert read_spool(path).samples == [SAMPLE]
    assert read_spool(path).bad_lines == 1


@given(cut=st.integers(0, 2000), junk=st.binary(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_cut_and_any_junk_leaves_the_lines_before_it(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("spool") / "0.jsonl"
    with SpoolWriter(path) as writer:
        for number in range(20):
            writer.write(Sample(t_ns=number, metric="m", value=1.0))
    data = path.read_bytes()[:cut]
    path.write_bytes(data + junk)
    samples = read_spool(path).samples
    whole = data.count(b"\n")
    assert [sample.t_ns for sample in samples[:whole]] == list(range(whole))


def test_foreign_text_and_numbers_that_json_cannot_carry(tmp_path: Path) -> None:
    hostile = RequestRecord(
        request_id="r",
        kind="k",
        intended_ns=1,
        plan_index=0,
        failure_detail="\ud800<b>\x1b[2J\n\0",
        status_code=200,
    )
    with SpoolWriter(tmp_path / "0.jsonl") as writer:
        writer.write(hostile)
        writer.write(Sample(t_ns=1, metric="m", value=float("nan")))
        writer.write(Sample(t_ns=2, metric="m", value=float("inf")))
    content = read_spool(tmp_path / "0.jsonl")
    assert content.records[0].failure_detail == "?<b>\x1b[2J\n\0"
    assert content.records[0].status_code == 200
    assert [sample.value for sample in content.samples] == [None, None]
    assert content.bad_lines == 0


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    with SpoolWriter(path) as writer:

        def write(thread: int) -> None:
            for number in range(200):
                writer.write(Sample(t_ns=number, metric=f"m{thread}" * 50, value=1.0))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    content = read_spool(path)
    assert len(content.samples) == 800
    assert content.bad_lines == 0


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("precious")
    (tmp_path / "0.jsonl").symlink_to(tmp_path / "real")
    with pytest.raises(StorageError, match="cannot write"):
        SpoolWriter(tmp_path / "0.jsonl")
    with pytest.raises(OSError, match="Too many levels"):
        read_spool(tmp_path / "0.jsonl")
    assert (tmp_path / "real").read_text() == "precious"


def test_writing_after_close_is_an_error_of_the_caller(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path / "0.jsonl")
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(SAMPLE)


def test_a_missing_folder_is_a_storage_error_that_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        SpoolWriter(tmp_path / "gone" / "0.jsonl")
    assert str(tmp_path / "gone" / "0.jsonl") in (caught.value.problems[0].fix or "")


_LIMITED = """
import resource, sys
from pathlib import Path
from kvprobe.errors import StorageError
from kvprobe.evidence.samples import Sample
from kvprobe.evidence.spool import SpoolWriter, read_spool
path = Path(sys.argv[1])
writer = SpoolWriter(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
written = 0
try:
    while True:
        writer.write(Sample(t_ns=written, metric="m", value=1.0))
        written += 1
except StorageError as exc:
    assert str(path) in exc.problems[0].fix, exc.problems
    assert "size limit" in exc.problems[0].fix, exc.problems
# The limit goes away (as when somebody frees space): the torn line must not swallow the next.
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.write(Sample(t_ns=written, metric="m", value=1.0))
writer.close()
content = read_spool(path)
assert [sample.t_ns for sample in content.samples] == list(range(written + 1)), content
assert content.bad_lines == 1, content.bad_lines
print(written)
"""


def test_a_file_that_may_not_grow_is_a_storage_error_and_keeps_what_was_written(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path / "0.jsonl")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5


_WRITER = """
import os, sys
from pathlib import Path
from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.spool import SpoolWriter
writer = SpoolWriter(Path(sys.argv[1]))
for number in range(10**9):
    writer.write(RequestRecord(request_id=str(number), kind="k", intended_ns=number, plan_index=number))
    os.write(1, b"%d\\n" % number)
"""


def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(500):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().split(b"\n")
    acknowledged = 499 + sum(1 for line in rest[:-1] if line)
    ids = [record.request_id for record in read_spool(path).records]
    assert ids[: acknowledged + 1] == [str(number) for number in range(acknowledged + 1)]
    assert len(ids) - (acknowledged + 1) <= 1
