"""Compressed logs: gzip, xz, bzip2 and Zstandard by their first bytes, with caps on what may come out.

A damaged or cut-off end costs only itself: what came before it is read, and a note says so. Archives of
several files, and compressed files within compressed files, are refused with what to type instead.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any

from kvprobe.errors import Problem, UsageError
from kvprobe.observe.logs.blocks import ByteStream
from kvprobe.observe.logs.tally import Tally

MOST_OUTPUT_BYTES = 64 * 2**30
MOST_RATIO = 300
"""Logs shrink 10 to 100 times. A bomb shrinks a thousand times and more."""
RATIO_COUNTS_FROM_BYTES = 32 * 2**20
_READ_BYTES = 64 * 1024
_OUTPUT_STEP_BYTES = 1 << 20
_LZMA_MEMORY_BYTES = 100 * 2**20
_ZSTD_WINDOW_BYTES = 64 * 2**20

HEAD_BYTES = 512
_MAGIC = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\x00", "xz"), (b"BZh", "bzip2"), (b"\x28\xb5\x2f\xfd", "zstd"))
_ARCHIVES = (
    (0, b"PK\x03\x04", "zip archive", "unzip -p {path} NAME | kvprobe diagnose -"),
    (0, b"PK\x05\x06", "zip archive", "unzip -p {path} NAME | kvprobe diagnose -"),
    (0, b"7z\xbc\xaf\x27\x1c", "7z archive", "7z x -so {path} NAME | kvprobe diagnose -"),
    (0, b"Rar!\x1a\x07", "rar archive", "unrar p -inul {path} NAME | kvprobe diagnose -"),
    (257, b"ustar", "tar archive", "tar -xOf {path} NAME | kvprobe diagnose -"),
)


def packing_of(head: bytes) -> str | None:
    """The compression that a file's first bytes name, null for none that is known."""
    return next((name for magic, name in _MAGIC if head.startswith(magic)), None)


def refuse_archive(head: bytes, path: str) -> None:
    """Raises `UsageError` for an archive of several files."""
    for offset, magic, what, fix in _ARCHIVES:
        if head[offset : offset + len(magic)] == magic:
            raise UsageError(
                Problem(
                    "archive",
                    f"`{path}` is a {what}, not a log",
                    f"name one file of it: {fix.format(path=path)}",
                    path,
                )
            )


class Unpacked:
    """The content of a compressed stream, read piece by piece."""

    def __init__(self, stream: ByteStream, packing: str, path: str, tally: Tally) -> None:
        self._stream, self._path, self._tally = stream, path, tally
        self._new: Callable[[], Any] = _DECODERS[packing]
        self._decoder = self._new()
        self._pending = b""
        self._read_bytes = self._given_bytes = 0
        self._ended = False
        self.packed_bytes = 0

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, fewer only at the end."""
        parts: list[bytes] = []
        missing = size
        while missing > 0 and not self._ended:
            part = self._step(min(missing, _OUTPUT_STEP_BYTES))
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _step(self, limit: int) -> bytes:
        try:
            part = self._decoded(limit)
        except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError, MemoryError) as error:
            return self._stop(f"the compressed data is damaged after {self._given_bytes:,} bytes: {error}")
        if not self._given_bytes and part and (packing_of(part) or _is_archive(part)):
            fix = f"unpack it first, and name the log inside `{self._path}`"
            raise UsageError(
                Problem("nested_archive", f"`{self._path}` holds another archive", fix, self._path)
            )
        self._given_bytes += len(part)
        if self._given_bytes > MOST_OUTPUT_BYTES:
            return self._stop(f"more than {MOST_OUTPUT_BYTES // 2**30} GiB came out: the rest was left out")
        if self._given_bytes > max(RATIO_COUNTS_FROM_BYTES, MOST_RATIO * self._read_bytes):
            return self._stop(f"it unpacks to more than {MOST_RATIO} times its size: the rest was left out")
        return part

    def _decoded(self, limit: int) -> bytes:
        if self._decoder.eof:
            self._pending = self._decoder.unused_data
            self._decoder = self._new()
            if not self._pending and not self._fill():
                self._ended = True
                return b""
            if not self._pending.strip(b"\0"):  # padding after the last member
                self._pending = b""
                return b""
        if not self._pending and self._decoder.wants_input and not self._fill():
            return self._stop("the compressed data ends before its end: the file was cut off")
        data, self._pending = self._pending, b""
        part: bytes = self._decoder.decompress(data, limit)
        return part

    def _fill(self) -> bool:
        self._pending = self._stream.read(_READ_BYTES)
        self._read_bytes += len(self._pending)
        self.packed_bytes = self._read_bytes
        return bool(self._pending)

    def _stop(self, why: str) -> bytes:
        self._ended = True
        self._tally.note(f"{self._path}: {why}")
        self._tally.skipped_lines += 1
        return b""


def _is_archive(head: bytes) -> bool:
    return any(head[offset : offset + len(magic)] == magic for offset, magic, _, _ in _ARCHIVES)


class _Gzip:
    """One gzip member; zlib keeps what it did not decode for the next call."""

    def __init__(self) -> None:
        self._z = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._z.eof

    @property
    def unused_data(self) -> bytes:
        return self._z.unused_data

    @property
    def wants_input(self) -> bool:
        return not self._z.unconsumed_tail

    def decompress(self, data: bytes, limit: int) -> bytes:
        return self._z.decompress(self._z.unconsumed_tail + data, limit)


class _Buffered:
    """bz2 and lzma keep unused input themselves."""

    def __init__(self, decoder: Any) -> None:
        self._d = decoder

    @property
    def eof(self) -> bool:
        return bool(self._d.eof)

    @property
    def unused_data(self) -> bytes:
        data: bytes = self._d.unused_data
        return data

    @property
    def wants_input(self) -> bool:
        return bool(self._d.needs_input)

    def decompress(self, data: bytes, limit: int) -> bytes:
        part: bytes = self._d.decompress(data, limit)
        return part


class _Zstd:
    """Zstandard gives all that a piece of input holds: pieces are small, little comes at once (one block
    of 128 KiB can stand in 4 bytes: 16 MiB at most)."""

    _PIECE = 512

    def __init__(self) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._d = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj()
        self._input = b""

    @property
    def eof(self) -> bool:
        return bool(self._d.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._d.unused_data) + self._input

    @property
    def wants_input(self) -> bool:
        return not self._input

    def decompress(self, data: bytes, limit: int) -> bytes:
        self._input += data
        piece, self._input = self._input[: self._PIECE], self._input[self._PIECE :]
        try:
            return bytes(self._d.decompress(piece))
        except self._error as error:
            raise ValueError(str(error)) from error


_DECODERS: dict[str, Callable[[], Any]] = {
    "gzip": _Gzip,
    "bzip2": lambda: _Buffered(bz2.BZ2Decompressor()),
    "xz": lambda: _Buffered(lzma.LZMADecompressor(memlimit=_LZMA_MEMORY_BYTES)),
    "zstd": _Zstd,
}
