"""GGUF headers: geometry under llama.cpp's names, true weight bytes, and headers that lie."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.errors import UsageError
from kvprobe.model.dtypes import kv_dtype
from kvprobe.model.gguf_header import TYPES, read_header
from kvprobe.model.layouts import layer_state_bytes, layout_name, parts
from kvprobe.model.read import read_model
from kvprobe.model.spec import Attention, Latent, ModelSpec
from kvprobe.model.weights import weight_bytes
from tests.model.configs import refusal

MIB = 1 << 20
_TINY = Path(__file__).parent / "fixtures" / "tiny.gguf"


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pack(value: object) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    assert isinstance(value, list)
    inner = pack(value[0])
    kind = struct.unpack_from("<I", inner)[0]
    return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(pack(entry)[4:] for entry in value)


def write(
    path: Path, arch: str, keys: dict[str, Any], tensors: tuple[tuple[str, int, int], ...] = ()
) -> Path:
    """A GGUF file; tensors are (name, elements, ggml type)."""
    values = {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in keys.items()}
    body, at = b"".join(text(key) + pack(value) for key, value in values.items()), 0
    for name, elements, kind in tensors:
        body += text(name) + struct.pack("<IQIQ", 1, elements, kind, at)
        _, block, size = TYPES[kind]
        at += -(-(elements // block * size) // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + body
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(at))
    return path


def base(layers: int, hidden: int, heads: int, kv: int | list[int], **keys: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "block_count": layers,
        "embedding_length": hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "context_length": 8192,
    }
    return given | {key.replace("__", "."): value for key, value in keys.items()}


def cache_mib(spec: ModelSpec, cells: dict[str, int], k: str = "f16") -> dict[str, float]:
    """Bytes of llama.cpp's caches in MiB: cells of each kind x bytes a cell."""
    form = kv_dtype(k, model_dtype="float16")
    found = {p.kind: p for p in parts(spec, form, form, tp=1)}
    return {kind: float((found[kind].bytes_per_token or 0) * count / MIB) for kind, count in cells.items()}


def test_a_file_of_the_gguf_package() -> None:
    header = read_header(_TINY)
    assert header.lengths["tokenizer.ggml.tokens"] == 300
    assert [(t.name, t.dtype, t.bytes) for t in header.tensors] == [
        ("token_embd.weight", "F16", 1024),
        ("blk.0.attn_q.weight", "Q8_0", 136),
        ("output_norm.weight", "F32", 256),
    ]
    spec = read_model(_TINY)
    assert (spec.name, len(spec.layers), spec.vocab_size, spec.max_position_tokens) == ("tiny", 2, 300, 512)
    assert spec.weight_bytes == 1416
    assert weight_bytes(_TINY).by_dtype == {"F16": 1024, "F32": 256, "Q8_0": 136}
    assert spec.verified


@pytest.mark.parametrize(
    ("arch", "keys", "dtype", "cells", "expected"),
    [
        # The printed MiB of llama.cpp's own logs.
        (
            "glm4",
            base(61, 6144, 48, 2, attention__key_length=128, attention__value_length=128),
            "q8_0",
            {"full": 5120},
            {"full": 162.03125},
        ),
        (
            "gpt-oss",
            base(24, 2880, 64, 8, attention__key_length=64, attention__sliding_window=128),
            "f16",
            {"full": 131_072, "sliding": 2304},
            {"full": 3072.0, "sliding": 54.0},
        ),
        (
            "gemma4",
            base(
                42,
                2560,
                8,
                2,
                attention__key_length=512,
                attention__value_length=512,
                attention__key_length_swa=256,
                attention__value_length_swa=256,
                attention__sliding_window=512,
                attention__sliding_window_pattern=([True] * 5 + [False]) * 7,
                attention__shared_kv_layers=18,
            ),
            "f16",
            {"full": 32_768, "sliding": 1024},
            {"full": 512.0, "sliding": 40.0},
        ),
        (
            "laguna",
            base(
                48,
                2048,
                48,
                8,
                attention__key_length=128,
                attention__sliding_window=512,
                attention__sliding_window_pattern=([False] + [True] * 3) * 12,
            ),
            "q4_0",
            {"full": 1_048_576, "sliding": 1024},
            {"full": 13_824.0, "sliding": 40.5},
        ),
        (
            "deepseek2",
            base(27, 2048, 16, 16, attention__key_length=192, attention__value_length=128),
            "f16",
            {"full": 16_384},
            {"full": 4320.0},
        ),
    ],
    ids=["glm4", "gpt-oss", "gemma4-e4b", "laguna", "coder-v2-lite"],
)
def test_printed_cache_sizes(
    tmp_path: Path,
    arch: str,
    keys: dict[str, Any],
    dtype: str,
    cells: dict[str, int],
    expected: dict[str, float],
) -> None:
    spec = read_model(write(tmp_path / "m.gguf", arch, keys))
    assert cache_mib(spec, cells, dtype) == expected


def test_latent_attention_of_recent_files(tmp_path: Path) -> None:
    keys = base(
        61,
        7168,
        128,
        1,
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=192,
        attention__value_length_mla=128,
        attention__kv_lora_rank=512,
        rope__dimension_count=64,
        nextn_predict_layers=1,
    )
    spec = read_model(write(tmp_path / "m.gguf", "deepseek2", keys))
    assert len(spec.layers) == 60
    assert len(spec.draft_layers) == 1
    mixer = spec.layers[0].mixers[0]
    assert isinstance(mixer, Latent)
    assert (mixer.lora_rank, mixer.rope_dim, mixer.plain.kv_heads, mixer.plain.k_dim) == (512, 64, 128, 192)
    assert layout_name(spec) == "mla"


def test_delta_net_hybrid(tmp_path: Path) -> None:
    keys = base(
        32,
        4096,
        16,
        4,
        attention__key_length=256,
        attention__value_length=256,
        full_attention_interval=4,
        ssm__conv_kernel=4,
        ssm__state_size=128,
        ssm__group_count=16,
        ssm__time_step_rank=32,
        ssm__inner_size=4096,
    )
    spec = read_model(write(tmp_path / "m.gguf", "qwen35", keys))
    assert cache_mib(spec, {"full": 135_168}) == {"full": 4224.0}
    both = [
        layer_state_bytes(x, tp=1, model_dtype="float32", ssm_dtype="float32", conv_dtype="float32")
        for x in spec.layers
    ]
    assert 4 * sum(both) == (9 + 192) * MIB


def test_other_hybrids(tmp_path: Path) -> None:
    ssm = {"ssm__conv_kernel": 4, "ssm__state_size": 128, "ssm__inner_size": 256, "ssm__time_step_rank": 4}
    heads = [0, 2, 0, 0]
    keys = base(4, 128, 4, heads, **ssm, ssm__group_count=1, feed_forward_length=[0, 0, 64, 0])
    nemotron = read_model(write(tmp_path / "n.gguf", "nemotron_h", keys))
    assert [len(layer.mixers) for layer in nemotron.layers] == [1, 1, 0, 1]
    granite = read_model(write(tmp_path / "g.gguf", "granitehybrid", keys))
    assert [len(layer.mixers) for layer in granite.layers] == [1, 1, 1, 1]
    jamba = read_model(write(tmp_path / "j.gguf", "jamba", keys))
    assert layout_name(jamba) == "mamba_full"
    h1 = read_model(write(tmp_path / "h.gguf", "falcon-h1", base(2, 128, 4, 2, **ssm)))
    assert [len(layer.mixers) for layer in h1.layers] == [2, 2]
    lfm = read_model(write(tmp_path / "l.gguf", "lfm2", base(4, 128, 4, heads, shortconv__l_cache=3)))
    assert layer_state_bytes(lfm.layers[0], tp=1, model_dtype="float16") == 128 * 2 * 2
    rwkv = {"block_count": 2, "embedding_length": 128, "wkv.head_size": 64}
    assert read_model(write(tmp_path / "r.gguf", "rwkv7", rwkv)).owning()
    deci = read_model(write(tmp_path / "d.gguf", "deci", base(3, 128, 4, [2, 0, 1])))
    assert [a.kv_heads for layer in deci.layers for a in layer.mixers if isinstance(a, Attention)] == [2, 1]


def test_a_missing_kv_head_count_is_multi_head_and_said(tmp_path: Path) -> None:
    keys = base(2, 64, 4, 4)
    del keys["attention.head_count_kv"]
    spec = read_model(write(tmp_path / "m.gguf", "llama", keys))
    assert any("multi-head" in said for said in spec.assumptions)


def test_shards(tmp_path: Path) -> None:
    first = tmp_path / "m-00001-of-00002.gguf"
    write(first, "llama", base(2, 64, 4, 2), (("a", 256, 12),))
    with pytest.raises(UsageError) as caught:
        read_model(first)
    assert "m-00002-of-00002.gguf" in str(caught.value)
    write(tmp_path / "m-00002-of-00002.gguf", "llama", {}, (("b", 512, 12), ("c", 64, 0)))
    spec = read_model(tmp_path)
    assert spec.weight_bytes == 3 * 144 + 256
    assert spec.quantization == "gguf Q4_K"


def test_a_directory_with_several_models(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf", "mmproj-a.gguf"):
        write(tmp_path / name, "llama", base(2, 64, 4, 2))
    with pytest.raises(UsageError) as caught:
        read_model(tmp_path)
    assert caught.value.problems[0].code == "ambiguous_model"


def test_unknown_architectures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_model(write(tmp_path / "m.gguf", "brandnew", base(2, 64, 4, 2)))
    assert "'brandnew'" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", 2**31),
        ("attention.head_count", 0),
        ("attention.head_count_kv", [2]),
        ("attention.head_count_kv", [0, 0]),
        ("embedding_length", 63),
        ("embedding_length", "64"),
        ("attention.key_length", 1.5),
        ("nextn_predict_layers", 2),
        ("attention.shared_kv_layers", 2),
    ],
)
def test_wrong_values(tmp_path: Path, key: str, value: object) -> None:
    path = write(tmp_path / "m.gguf", "llama", base(2, 64, 4, 2) | {key: value})
    with pytest.raises(UsageError) as caught:
        read_model(path)
    assert caught.value.problems[0].path == str(path)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    whole = _TINY.read_bytes()
    path = tmp_path / "m.gguf"
    for cut in (*range(0, 200, 7), len(whole) // 2, len(whole) - 200):
        path.write_bytes(whole[:cut])
        with pytest.raises(UsageError):
            read_model(path)


@pytest.mark.parametrize(
    "data",
    [
        b"GGML" + bytes(100),
        b"GGUF" + struct.pack("<I", 1) + bytes(100),
        b"GGUF" + struct.pack(">I", 3) + bytes(100),
        b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 4, 2**61),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 9, 2**20) + bytes(99),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 99),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<I", 2**31),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 32, 77, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 2**50, 0, 0),
        b"GGUF",
        b"",
    ],
)
def test_headers_that_lie(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        read_model(path)
    assert caught.value.problems[0].fix


@given(st.binary(max_size=200), st.integers(0, 400))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    whole = bytearray(_TINY.read_bytes())
    whole[at + 4 : at + 4 + len(noise)] = noise
    path = tmp_path_factory.mktemp("any") / "m.gguf"
    path.write_bytes(bytes(whole))
    error = refusal(lambda: read_model(path))
    assert error is None or error.problems[0].fix
