"""UTF-16 logs (PowerShell's `>` writes them) as UTF-8; byte-order marks."""

from __future__ import annotations

import codecs

from kvprobe.observe.logs.blocks import ByteStream

_SNIFFED_BYTES = 512


def utf16_of(head: bytes) -> str | None:
    """`utf-16-le`, `utf-16-be` or `utf-32-le` when the first bytes are that, with a mark or without.

    Log text in such an encoding has zero bytes beside nearly every letter, and none elsewhere. A mark alone
    proves nothing: garbage may begin like one.
    """
    sample = head[: _SNIFFED_BYTES // 4 * 4]
    if head.startswith(codecs.BOM_UTF32_LE) and sample.count(0) > 0.5 * len(sample):
        return "utf-32-le"
    marked = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    odd, even = sample[1::2], sample[::2]
    share, strays = (0.25, 0.05) if marked else (0.7, 0.0)
    if len(sample) < 16 and not marked:
        return None
    if odd.count(0) > share * len(odd) and even.count(0) <= strays * len(even):
        return "utf-16-le"
    if even.count(0) > share * len(even) and odd.count(0) <= strays * len(odd):
        return "utf-16-be"
    return None


class Recoded:
    """A stream in another encoding, read as UTF-8."""

    def __init__(self, stream: ByteStream, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def read(self, size: int, /) -> bytes:
        """About `size` bytes, nothing only at the end."""
        while data := self._stream.read(size):
            if text := self._decoder.decode(data):
                return text.encode("utf-8", "replace")
        return self._decoder.decode(b"", True).encode("utf-8", "replace")


class Prepended:
    """A stream whose first bytes were already looked at."""

    def __init__(self, head: bytes, stream: ByteStream) -> None:
        self._head, self._stream = head, stream

    def read(self, size: int, /) -> bytes:
        """As the stream itself; `size` bytes unless it ends."""
        if not self._head:
            return self._stream.read(size)
        part, self._head = self._head[:size], self._head[size:]
        return part + self._stream.read(size - len(part)) if len(part) < size else part


def without_mark(head: bytes) -> bytes:
    """Without a UTF-8 byte-order mark."""
    return head.removeprefix(codecs.BOM_UTF8)
