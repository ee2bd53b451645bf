"""Cache formats: their sizes held against the structs that hold them."""

from __future__ import annotations

import numpy as np
import pytest

from kvprobe.errors import UsageError
from kvprobe.model.dtypes import KV_DTYPE_NAMES, element_bytes, kv_dtype

# The block structs of ggml-common.h, field by field.
_STRUCTS = {
    "q8_0": [("d", "f2"), ("qs", "i1", 32)],
    "q5_1": [("d", "f2"), ("m", "f2"), ("qh", "u1", 4), ("qs", "u1", 16)],
    "q5_0": [("d", "f2"), ("qh", "u1", 4), ("qs", "u1", 16)],
    "q4_1": [("d", "f2"), ("m", "f2"), ("qs", "u1", 16)],
    "q4_0": [("d", "f2"), ("qs", "u1", 16)],
    "iq4_nl": [("d", "f2"), ("qs", "u1", 16)],
}


@pytest.mark.parametrize("name", _STRUCTS)
def test_ggml_blocks(name: str) -> None:
    form = kv_dtype(name, model_dtype="float16")
    assert form.vector_bytes(128) == 4 * np.dtype(_STRUCTS[name]).itemsize


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [
        ("fp32", 128, np.zeros(128, "f4").nbytes),
        ("fp16", 128, np.zeros(128, "f2").nbytes),
        ("bf16", 80, np.zeros(80, "u2").nbytes),
        ("fp8", 128, np.zeros(128, "u1").nbytes),
        ("int8_per_token_head", 128, np.zeros(128, "i1").nbytes + np.zeros(1, "f4").nbytes),
        ("fp8_per_token_head", 256, 260),
        # nvfp4: two values a byte, and one fp8 scale for each 16.
        ("nvfp4", 128, np.zeros(64, "u1").nbytes + np.zeros(8, "u1").nbytes),
    ],
)
def test_vector_bytes(name: str, width: int, expected: int) -> None:
    assert kv_dtype(name, model_dtype="bfloat16").vector_bytes(width) == expected


def test_per_token_head_scales_cost_three_percent() -> None:
    form = kv_dtype("int8_per_token_head", model_dtype="bfloat16")
    assert 2 * form.vector_bytes(128) == 264
    assert float(form.vector_bytes(128) / 128) == pytest.approx(1.031, abs=0.001)
    assert float(form.vector_bytes(256) / 256) == pytest.approx(1.016, abs=0.001)


def test_ds_mla_row() -> None:
    form = kv_dtype("fp8_ds_mla", model_dtype="bfloat16")
    latent, scales, rope = np.zeros(512, "u1"), np.zeros(4, "f4"), np.zeros(64, "u2")
    assert form.latent_bytes(512, 64) == latent.nbytes + scales.nbytes + rope.nbytes == 656
    assert kv_dtype("fp8", model_dtype="bfloat16").latent_bytes(512, 64) == 576


def test_auto_is_the_models_dtype() -> None:
    assert kv_dtype("auto", model_dtype="bfloat16").name == "bf16"
    assert kv_dtype("auto", model_dtype="float32").name == "fp32"
    assert kv_dtype("auto", model_dtype="float16").name == "fp16"
    for name in KV_DTYPE_NAMES:
        assert kv_dtype(name, model_dtype="bfloat16")
    assert kv_dtype(" F16 ", model_dtype="bfloat16").name == "fp16"


def test_unknown_and_unfit_formats_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        kv_dtype("q8", model_dtype="bfloat16")
    assert "q8_0" in str(caught.value.problems[0].fix)
    with pytest.raises(UsageError):
        kv_dtype("q8_0", model_dtype="bfloat16").vector_bytes(80)
    with pytest.raises(UsageError):
        kv_dtype("fp8_ds_mla", model_dtype="bfloat16").vector_bytes(128)
    with pytest.raises(UsageError):
        element_bytes("q8_0")
    assert element_bytes("bfloat16") == 2
