"""Weight bytes from safetensors headers, and headers that lie."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.errors import UsageError
from kvprobe.model.read import read_model
from kvprobe.model.safetensors_header import read_tensors
from kvprobe.model.weights import weight_bytes
from tests.model import configs as c

_SIZES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4}


Tensors = dict[str, tuple[str, list[int]]]


def write(path: Path, tensors: Tensors, **more: Any) -> int:
    """A safetensors file with zero data; the bytes of its tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = _SIZES[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header | more).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    return at


def test_bytes_by_dtype(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(c.LLAMA_3_8B))
    total = write(tmp_path / "model.safetensors", {"a.weight": ("BF16", [8, 16]), "b.weight": ("F32", [10])})
    info = weight_bytes(tmp_path)
    assert (info.bytes, info.by_dtype, info.parameters) == (total, {"BF16": 256, "F32": 40}, 138)
    spec = read_model(tmp_path)
    assert spec.weight_bytes == 296
    assert spec.weight_bytes_source == "headers of 1 safetensors file"
    assert spec.name == tmp_path.name


def test_shards_by_the_index(tmp_path: Path) -> None:
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    total = write(tmp_path / one, {"a": ("BF16", [4])}) + write(tmp_path / two, {"b": ("BF16", [6])})
    write(tmp_path / "consolidated.safetensors", {"a": ("BF16", [10])})
    index = {"metadata": {"total_size": total}, "weight_map": {"a": one, "b": two}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weight_bytes(tmp_path).bytes == total == 20
    (tmp_path / two).unlink()
    with pytest.raises(UsageError) as caught:
        weight_bytes(tmp_path)
    assert two in str(caught.value)
    (tmp_path / one).unlink()
    alone = weight_bytes(tmp_path)
    assert alone.bytes == 20
    assert "total_size" in alone.source


def test_other_copies_are_not_counted_twice(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": ("BF16", [4])})
    write(tmp_path / "consolidated.safetensors", {"a": ("BF16", [4])})
    assert weight_bytes(tmp_path).bytes == 8


@pytest.mark.parametrize(
    ("tensors", "name"),
    [
        ({"m.qweight": ("I32", [4, 8]), "m.g_idx": ("I32", [4]), "m.scales": ("F16", [4])}, "gptq"),
        ({"m.weight": ("F8_E4M3", [4, 8]), "m.weight_scale_inv": ("F32", [1])}, "fp8"),
        ({"m.gate_up_proj_blocks": ("U8", [4, 8]), "m.gate_up_proj_scales": ("U8", [4])}, "mxfp4"),
        ({"m.weight": ("U8", [4, 8]), "m.weight_scale_2": ("F32", [1])}, "nvfp4"),
        ({"m.weight": ("U8", [4, 8]), "m.weight.absmax": ("F32", [1])}, "bitsandbytes"),
        ({"m.weight_packed": ("I32", [4, 8])}, "compressed-tensors"),
        ({"m.weight": ("BF16", [4, 8])}, None),
    ],
)
def test_quantised_formats(
    tmp_path: Path, tensors: dict[str, tuple[str, list[int]]], name: str | None
) -> None:
    total = write(tmp_path / "model.safetensors", tensors)
    info = weight_bytes(tmp_path)
    assert (info.bytes, info.quantization) == (total, name)
    assert sum(info.by_dtype.values()) == total
    # Packed weights have no honest parameter count.
    packed = any(dtype in ("I32", "U8") for dtype, _ in tensors.values())
    assert (info.parameters is None) == packed


def _raw(path: Path, header: object, data: int = 0) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))
    return path


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"a": 1},
        {"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
        {"a": {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}},
        {"a": {"dtype": "F32", "shape": [2**62] * 16, "data_offsets": [0, 4]}},
        {"a": {"dtype": None}},
    ],
    ids=str,
)
def test_headers_that_lie(tmp_path: Path, header: object) -> None:
    path = _raw(tmp_path / "model.safetensors", header, 4)
    with pytest.raises(UsageError) as caught:
        read_tensors(path)
    assert caught.value.problems[0].path == str(path)
    assert caught.value.problems[0].fix


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01", struct.pack("<Q", 2**63), struct.pack("<Q", 100) + b"{}", struct.pack("<Q", 2) + b"{]"],
)
def test_cut_off_files(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(UsageError):
        weight_bytes(path)


def test_a_long_header_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 90_000_000))
        file.truncate(100_000_000)
    with pytest.raises(UsageError) as caught:
        weight_bytes(path)
    assert "90000000" in str(caught.value)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/b.safetensors"])
def test_an_index_cannot_lead_out_of_its_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(UsageError) as caught:
        weight_bytes(tmp_path)
    assert "outside" in str(caught.value)


@pytest.mark.parametrize("weight_map", [None, [], {}, 5])
def test_a_broken_index(tmp_path: Path, weight_map: object) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(UsageError):
        weight_bytes(tmp_path)


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(data)) + data)
    error = c.refusal(lambda: read_tensors(path))
    assert error is None or error.problems[0].fix


def test_a_shard_that_the_names_miss_is_an_error_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(c.LLAMA_3_8B))
    size = write(tmp_path / "model-00001-of-00002.safetensors", {"a": ("BF16", [4])})
    with pytest.raises(UsageError, match="1 of 2 shards are missing, such as number 00002"):
        read_model(tmp_path)
    size += write(tmp_path / "model-00002-of-00002.safetensors", {"b": ("BF16", [4])})
    assert weight_bytes(tmp_path).bytes == size
