"""Files of any packing, order of rotated pieces, tails, encodings, and what is no log."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
import zstandard

from kvprobe.errors import UsageError
from kvprobe.observe.logs import sources, unpack
from kvprobe.observe.logs.intake import read_logs, read_text
from tests.observe.logs.logkit import OOM

LOG = f"INFO 01-02 03:04:05 [core.py:1] start\nsecond\n{OOM}\n"
PACKERS = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


def oom_lines(*paths: Path, **options: object) -> list[int]:
    read = read_logs([str(p) for p in paths], **options)  # type: ignore[arg-type]
    return [e.line for e in read.events if e.name == "torch_oom"]


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("suffix", ["", ".log"])
def test_packed_logs_are_told_by_their_bytes(kind: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"server{suffix or '.' + kind}"
    path.write_bytes(PACKERS[kind](LOG.encode()))
    assert oom_lines(path) == [3]


@pytest.mark.parametrize("kind", PACKERS)
def test_members_that_follow_each_other_are_one_log(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(PACKERS[kind](b"first\n") + PACKERS[kind](LOG.encode()))
    assert oom_lines(path) == [4]


@pytest.mark.parametrize("kind", PACKERS)
def test_a_damaged_end_costs_only_itself(kind: str, tmp_path: Path) -> None:
    random = os.urandom(400_000).hex().encode()
    packed = PACKERS[kind](LOG.encode() + b"\n".join(random[i : i + 100] for i in range(0, len(random), 100)))
    for damaged in (packed[: len(packed) * 3 // 4], packed[: len(packed) // 2] + b"\xff" * 2000):
        path = tmp_path / "a"
        path.write_bytes(damaged)
        read = read_logs([str(path)])
        if kind != "bz2":  # one block of bzip2 is the whole of this log
            assert [e.line for e in read.events if e.name == "torch_oom"] == [3]
        assert read.skipped > 0
        assert any("compressed data" in note for note in read.notes), read.notes


def test_a_bomb_is_left_at_the_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "RATIO_COUNTS_FROM_BYTES", 2 << 20)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(LOG.encode() + b"0" * (40 << 20), 9))
    read = read_logs([str(path)])
    assert [e.line for e in read.events if e.name == "torch_oom"] == [3]
    assert read.bytes < 20 << 20
    assert any("times its size" in note for note in read.notes)


def test_more_than_the_most_output_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MOST_OUTPUT_BYTES", 1 << 20)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(os.urandom(1 << 20).hex().encode()))
    assert any("GiB came out" in note for note in read_logs([str(path)]).notes)


def test_archives_are_refused_with_what_to_type(tmp_path: Path) -> None:
    archive = tmp_path / "logs.zip"
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("../../etc/passwd", LOG)
    tarred = tmp_path / "logs.tar"
    with tarfile.open(tarred, "w") as t:
        info = tarfile.TarInfo("a.log")
        info.size = len(LOG)
        t.addfile(info, io.BytesIO(LOG.encode()))
    packed_tar = tmp_path / "logs.tgz"
    packed_tar.write_bytes(gzip.compress(tarred.read_bytes()))
    twice = tmp_path / "a.gz.gz"
    twice.write_bytes(gzip.compress(gzip.compress(LOG.encode())))
    for path, code in (
        (archive, "archive"),
        (tarred, "archive"),
        (packed_tar, "nested_archive"),
        (twice, "nested_archive"),
    ):
        with pytest.raises(UsageError) as caught:
            read_logs([str(path)])
        assert caught.value.problems[0].code == code
        assert caught.value.problems[0].fix


def test_rotated_pieces_are_read_oldest_first() -> None:
    given = [
        "b.log",
        "s.log",
        "s.log.1",
        "s.log.10.gz",
        "s.log.2.gz",
        "t.log-20260102",
        "t.log",
        "t.log-20260101.gz",
    ]
    assert sources.in_order(given) == [
        *("b.log", "s.log.10.gz", "s.log.2.gz", "s.log.1", "s.log"),
        *("t.log-20260101.gz", "t.log-20260102", "t.log"),
    ]
    assert sources.in_order(["a", "a", "-", "x/a", "y/a.1"]) == ["a", "-", "x/a", "y/a.1"]


def test_several_files_are_one_diagnosis_in_order(tmp_path: Path) -> None:
    (tmp_path / "s.log.1").write_text("INFO 01-02 03:04:05 [core.py:1] older\n" + OOM + "\n")
    (tmp_path / "s.log").write_text(
        "INFO 01-02 03:04:05 [core.py:1] newer\n\n" + OOM.replace("1.50 GiB", "2.50 GiB") + "\n"
    )
    read = read_logs([str(tmp_path / "s.log"), str(tmp_path / "s.log.1")])
    found = [(Path(e.source).name, e.line) for e in read.events if e.name == "torch_oom"]
    assert found == [("s.log.1", 2), ("s.log", 3)]
    assert list(read.ended) == [str(tmp_path / "s.log.1"), str(tmp_path / "s.log")]


@pytest.mark.parametrize("tail", [len(OOM) + 1, len(OOM) + 3, len(OOM) + 8, len(OOM) + 9, 100_000])
@pytest.mark.parametrize("packed", [False, True])
def test_a_tail_begins_at_a_line_and_keeps_the_numbers(tail: int, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(gzip.compress(LOG.encode()) if packed else LOG.encode())
    found = oom_lines(path, tail_bytes=tail)
    assert len(found) == 1
    if not packed:  # of a stream, lines count from the tail
        assert found == [3]


def test_a_tail_of_a_large_stream_keeps_little(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(30):
            file.write(os.urandom(1 << 19).hex().encode() + b"\n")
        file.write(LOG.encode())
    read = read_logs([str(path)], tail_bytes=1000)
    assert read.bytes < 1000
    assert [e.name for e in read.events if e.name == "torch_oom"]
    assert any("only the last" in note for note in read.notes)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-32"])
def test_other_encodings(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(LOG.replace("\n", "\r\n").encode(encoding))
    assert oom_lines(path) == [3]
    assert [e.line for e in read_text(path.read_bytes()).events if e.name == "torch_oom"] == [3]


def test_binary_garbage_is_replaced_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(
        b"\x00\x00\xff\xfe\x80 x\n" + os.urandom(300_000).replace(b"\n", b"") + b"\n" + OOM.encode() + b"\n"
    )
    read = read_logs([str(path)])
    assert [e.line for e in read.events if e.name == "torch_oom"] == [3]
    assert any("NUL" in note for note in read.notes)
    assert any("UTF-8" in note for note in read.notes)


def test_all_bad_paths_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x.log").write_text("x")
    paths = [str(tmp_path / "none.log"), str(tmp_path / "d"), "/dev/zero", "a\0b"]
    with pytest.raises(UsageError) as caught:
        read_logs(paths)
    assert [p.code for p in caught.value.problems] == ["no_log", "is_directory", "not_a_file", "no_log"]
    assert all(p.fix for p in caught.value.problems)
    assert "x.log" in str(caught.value.problems[1].fix)


def test_the_null_device_is_an_empty_log() -> None:
    assert read_logs([os.devnull]).lines == 0


def test_a_named_pipe_is_read_and_a_dead_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(LOG))
    writer.start()
    assert oom_lines(pipe) == [3]
    writer.join()
    monkeypatch.setattr(sources, "_PIPE_WAIT_S", 0.2)
    with pytest.raises(UsageError, match="nobody wrote"):
        read_logs([str(pipe)])


def test_a_saved_metrics_page_is_no_log(tmp_path: Path) -> None:
    page = tmp_path / "m.txt"
    page.write_text("# HELP vllm:x y\n# TYPE vllm:x gauge\nvllm:x 1\n")
    read = read_logs([str(page)])
    assert list(read.pages) == [str(page)]
    assert read.events == []
