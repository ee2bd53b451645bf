"""The header of a safetensors file: names, dtypes and sizes of its tensors, without a byte of their data.

Format (safetensors documentation): 8 bytes of little-endian header length, then that many bytes of JSON,
then the tensors. What the header says is held against itself and the file's size: a header that lies is
an error, not a number.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeGuard

from kvprobe.errors import Problem, UsageError
from kvprobe.model.config_file import refuse_special

MAX_HEADER_BYTES = 25_000_000
"""The format allows 100 MB; the largest published headers have a few, and memory must stay bounded."""
_MAX_TENSORS = 500_000

DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "C64": 64,
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as the header declares it."""

    name: str
    dtype: str
    elements: int
    bytes: int


def read_tensors(path: Path) -> list[Tensor]:
    """The tensors that `path` declares. Raises UsageError for a file that is cut off or lies."""
    size, header = _header(path)
    data_bytes = size[0] - 8 - size[1]
    tensors = list(_tensors(path, header))
    declared = sum(tensor.bytes for tensor in tensors)
    if declared > data_bytes:
        _fail(
            path,
            f"declares {declared} bytes of tensors and holds {data_bytes}: the file is cut off",
            "download it again",
        )
    return tensors


def _header(path: Path) -> tuple[tuple[int, int], dict[str, object]]:
    """(file size, header length) and the parsed header."""
    refuse_special(path)
    try:
        with path.open("rb") as file:
            total = path.stat().st_size
            prefix = file.read(8)
            if len(prefix) < 8:
                _fail(path, "is shorter than a safetensors header", "download it again")
            (length,) = struct.unpack("<Q", prefix)
            if length > total - 8:
                _fail(
                    path,
                    f"says its header has {length} bytes; the file has {total}",
                    "the file is cut off or no safetensors file: download it again",
                )
            if length > MAX_HEADER_BYTES:
                _fail(path, f"has a header of {length} bytes", f"at most {MAX_HEADER_BYTES} bytes are read")
            text = file.read(length)
    except OSError as error:
        _fail(path, f"cannot be read: {error.strerror}", "check the path and its permissions")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        _fail(path, "has a header that is no JSON", "the file is damaged or no safetensors file")
    if not isinstance(header, dict):
        _fail(path, "has a header that is no JSON object", "the file is damaged or no safetensors file")
    return (total, length), header


def _tensors(path: Path, header: dict[str, object]) -> Iterator[Tensor]:
    if len(header) > _MAX_TENSORS:
        _fail(path, f"declares {len(header)} tensors", f"at most {_MAX_TENSORS} are read")
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if not isinstance(entry, dict):
            _fail(path, f"declares tensor {name[:80]!r} without an object", "download it again")
        yield _tensor(path, name, entry)


def _tensor(path: Path, name: str, entry: dict[str, object]) -> Tensor:
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        _fail(path, f"declares tensor {name[:80]!r} with dtype {str(dtype)[:40]!r}", "dtype not known")
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2:
        _fail(path, f"declares tensor {name[:80]!r} with a bad shape or offsets", "download it again")
    elements = math.prod(shape)
    length = offsets[1] - offsets[0]
    if length < 0 or length * 8 != elements * DTYPE_BITS[dtype]:
        _fail(
            path,
            f"declares tensor {name[:80]!r} with {elements} x {dtype} in {length} bytes",
            "the header contradicts itself: download the file again",
        )
    return Tensor(name, dtype, elements, length)


def _whole_numbers(value: object) -> TypeGuard[list[int]]:
    if not isinstance(value, list) or len(value) > 16:
        return False
    return all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 63 for n in value)


def _fail(path: Path, message: str, fix: str) -> NoReturn:
    raise UsageError(
        Problem(code="bad_safetensors", message=f"{path.name} {message}", fix=fix, path=str(path))
    )
