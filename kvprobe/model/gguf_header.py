"""The header of a GGUF file: metadata and tensor sizes, without a byte of tensor data.

Format: `docs/gguf.md` of ggml. The file is mapped, not read: only the header's pages are touched. Every
length is checked against the file before it is used, long arrays (token lists) are walked over without
being kept, and a header that lies or is cut off is an error.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from kvprobe.errors import Problem, UsageError
from kvprobe.model.config_file import refuse_special

Value = int | float | bool | str | list[int] | list[float] | list[bool]

_MAGIC = b"GGUF"
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_MAX_KEYS, _MAX_TENSORS, _MAX_ITEMS = 65_536, 262_144, 16_000_000
_MAX_KEY_BYTES, _MAX_TEXT_BYTES, _MAX_KEPT = 1_024, 4_096, 8_192
_MAX_DIMS, _MAX_DEPTH = 8, 4
_DAMAGED = "the header is damaged: download the file again"

# ggml type: name, elements of a block, bytes of a block (ggml-common.h; gguf's GGML_QUANT_SIZES).
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor as the header declares it; `offset` counts from the start of the tensor data."""

    name: str
    dtype: str
    elements: int
    bytes: int
    offset: int


@dataclass(slots=True)
class GgufHeader:
    """Metadata by key, lengths of the arrays that were not kept, and the tensors."""

    source: str
    values: dict[str, Value] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    tensors: list[GgufTensor] = field(default_factory=list)


def read_header(path: Path) -> GgufHeader:
    """The header of `path`. Raises UsageError for a file that is no GGUF, is cut off, or lies."""
    refuse_special(path)
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                _fail(path, "does not start with GGUF", "give a GGUF file; convert older GGML files")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Walker(path, data).header()
    except OSError as error:
        _fail(path, f"cannot be read: {error.strerror}", "check the path and its permissions")


class _Walker:
    """Reads the header front to back; `at` never passes the end of the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size, self.at = path, data, len(data), 4
        self.items = 0

    def header(self) -> GgufHeader:
        version = self._number("<I")
        if version not in (2, 3):
            _fail(self.path, f"has GGUF version {version}", "versions 2 and 3, little-endian, are read")
        tensors, keys = self._number("<Q"), self._number("<Q")
        if tensors > _MAX_TENSORS or keys > _MAX_KEYS:
            _fail(
                self.path,
                f"declares {tensors} tensors and {keys} keys",
                "the header is damaged: download it again",
            )
        header = GgufHeader(source=str(self.path))
        for _ in range(keys):
            self._pair(header)
        header.tensors = [self._tensor() for _ in range(tensors)]
        self._check_data(header)
        return header

    def _take(self, count: int) -> int:
        """Step over `count` bytes; the position before them."""
        start = self.at
        if count > self.size - start:
            _fail(self.path, f"ends inside its header (at byte {self.size})", "download it again")
        self.at = start + count
        return start

    def _number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self._take(struct.calcsize(form)))
        return int(value)

    def _text(self, limit: int) -> str:
        length = self._number("<Q")
        start = self._take(length)
        if length > limit:
            _fail(self.path, f"holds a name of {length} bytes", _DAMAGED)
        return self.data[start : start + length].decode("utf-8", "replace")

    def _pair(self, header: GgufHeader) -> None:
        key, kind = self._text(_MAX_KEY_BYTES), self._number("<I")
        if kind == _ARRAY:
            self._array(header, key, 0)
        elif kind == _STRING:
            length = self._number("<Q")
            start = self._take(length)
            if length <= _MAX_TEXT_BYTES:
                header.values[key] = self.data[start : start + length].decode("utf-8", "replace")
        else:
            form = self._form(kind)
            (header.values[key],) = struct.unpack_from(form, self.data, self._take(struct.calcsize(form)))

    def _form(self, kind: int) -> str:
        form = _SCALARS.get(kind)
        if form is None:
            _fail(self.path, f"holds a value of type {kind}, which is not known", "download it again")
        return form

    def _array(self, header: GgufHeader, key: str, depth: int) -> None:
        """Keep a short array of numbers; walk over any other."""
        kind, length = self._number("<I"), self._number("<Q")
        self.items += length
        if self.items > _MAX_ITEMS or depth >= _MAX_DEPTH:
            _fail(
                self.path,
                f"declares an array of {length} entries",
                "the header is damaged: download it again",
            )
        header.lengths[key] = length
        if kind == _ARRAY:
            for _ in range(length):
                self._array(header, f"{key}[]", depth + 1)
        elif kind == _STRING:
            self._skip_texts(length)
        else:
            form = self._form(kind)
            start = self._take(struct.calcsize(form) * length)
            if length <= _MAX_KEPT:
                numbers = struct.unpack_from(f"<{length}{form[1]}", self.data, start)
                header.values[key] = list(numbers)

    def _skip_texts(self, count: int) -> None:
        """Walk over `count` strings. A token list has hundreds of thousands: the loop is kept tight."""
        data, size, at = self.data, self.size, self.at
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > size:
                break
            at += 8 + length_at(data, at)[0]
        else:
            if at <= size:
                self.at = at
                return
        _fail(self.path, f"ends inside its header (at byte {size})", "download it again")

    def _tensor(self) -> GgufTensor:
        name, dims = self._text(_MAX_KEY_BYTES), self._number("<I")
        if dims > _MAX_DIMS:
            _fail(self.path, f"declares a tensor of {dims} dimensions", "download it again")
        elements = 1
        for _ in range(dims):
            elements *= self._number("<Q")
        kind, offset = self._number("<I"), self._number("<Q")
        if kind not in TYPES:
            _fail(
                self.path,
                f"has tensor {name[:80]!r} of ggml type {kind}",
                "this type is not known to kvprobe",
            )
        dtype, block, block_bytes = TYPES[kind]
        if elements % block:
            _fail(
                self.path, f"has tensor {name[:80]!r} of {elements} elements in {dtype}", "download it again"
            )
        return GgufTensor(name, dtype, elements, elements // block * block_bytes, offset)

    def _check_data(self, header: GgufHeader) -> None:
        """The tensors must end inside the file."""
        align = header.values.get("general.alignment", 32)
        if not isinstance(align, int) or isinstance(align, bool) or not 1 <= align <= 1 << 20:
            _fail(self.path, "has a bad general.alignment", "download it again")
        start = -(-self.at // align) * align
        end = max((tensor.offset + tensor.bytes for tensor in header.tensors), default=0)
        if header.tensors and start + end > self.size:
            _fail(
                self.path,
                f"has {self.size} bytes and declares tensors up to byte {start + end}: it is cut off",
                "download it again",
            )


def _fail(path: Path, message: str, fix: str) -> NoReturn:
    raise UsageError(Problem(code="bad_gguf", message=f"{path.name} {message}", fix=fix, path=str(path)))
