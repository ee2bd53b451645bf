"""Wrong and hostile descriptions: a clear error with the path and a fix, never a traceback."""

from __future__ import annotations

import json
import os
import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.errors import UsageError
from kvprobe.model.config_file import MAX_CONFIG_BYTES
from kvprobe.model.families.table import FAMILIES
from kvprobe.model.layouts import bytes_at
from kvprobe.model.read import model_from_config, read_model
from tests.model import configs as c
from tests.model.test_cache_shapes import cache_shape_rows


def refused(config: dict[str, Any]) -> str:
    """The message of the refusal; every problem has a path and a fix."""
    with pytest.raises(UsageError) as caught:
        c.read(config)
    for problem in caught.value.problems:
        assert problem.path == "config.json"
        assert problem.fix
        assert len(problem.message) < 500
    return str(caught.value)


@pytest.mark.parametrize(
    "value",
    [0, -1, 10**30, "8", 8.5, True, [8], {"a": 1}, float("nan"), float("inf"), "x" * 100_000],
    ids=lambda value: f"{type(value).__name__} {str(value)[:12]}",
)
@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"]
)
def test_wrong_numbers(key: str, value: object) -> None:
    assert key in refused(c.LLAMA_3_8B | {key: value})


def test_numbers_that_do_not_fit_together() -> None:
    assert "does not divide" in refused(c.LLAMA_3_8B | {"num_key_value_heads": 7})
    assert "does not divide" in refused(c.LLAMA_3_8B | {"num_key_value_heads": 64})
    assert "head_dim" in refused(c.LLAMA_3_8B | {"hidden_size": 4097})
    assert "40 entries for 48 layers" in refused(c.LAGUNA | {"layer_types": ["full_attention"] * 40})
    assert "'ring_attention'" in refused(c.LAGUNA | {"layer_types": ["ring_attention"] * 48})
    assert "sliding_window" in refused(c.LAGUNA | {"sliding_window": 0})
    assert "no layer would own" in refused(c.GEMMA_4_E4B | {"num_kv_shared_layers": 42})
    assert "layer_types" in refused(c.LAGUNA | {"layer_types": [1] * 48})
    assert "layer_types" in refused(c.LAGUNA | {"layer_types": "full"})


@pytest.mark.parametrize("key", ["kv_lora_rank", "qk_rope_head_dim"])
def test_latent_attention_needs_its_widths(key: str) -> None:
    assert key in refused({name: value for name, value in c.DEEPSEEK_R1.items() if name != key})


def test_unknown_layouts_are_refused_by_name() -> None:
    message = refused(c.decoder("brand_new_llm", 4, 512, 8))
    assert "'brand_new_llm'" in message
    assert "num_key_value_heads, head_dim" in message
    assert "may share, window or compress" in refused(
        c.decoder("brand_new_llm", 4, 512, 8, num_key_value_heads=8, head_dim=64)
    )
    assert "encoder" in refused(c.decoder("bert", 4, 512, 8))
    assert "`model_type` is missing" in refused({"num_hidden_layers": 4})
    assert "model_type" in refused({"model_type": ["llama"]})
    with pytest.raises(UsageError) as caught:
        c.read(c.decoder("lama", 4, 512, 8))
    assert "did you mean 'llama'" in str(caught.value.problems[0].fix)


def test_nested_language_models_are_refused_by_their_own_name() -> None:
    assert "'mystery_text'" in refused({"model_type": "llava", "text_config": {"model_type": "mystery_text"}})


def _write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "config_not_json"),
        ("{", "config_not_json"),
        ("[]", "config_not_object"),
        ("null", "config_not_object"),
        ('{"model_type": "llama", "num_hidden_layers": NaN}', "config_bad_number"),
        ('{"n": ' + "9" * 5000 + "}", "config_bad_number"),
        ("[" * 100_000, "config_too_deep"),
        ('{"a":' * 100_000, "config_too_deep"),
        (b"\xff\xfe\x00\x01", "config_not_utf8"),
        ('{"model_type": "llama",}', "config_not_json"),
    ],
    ids=str,
)
def test_broken_files(tmp_path: Path, text: str | bytes, code: str) -> None:
    path = _write(tmp_path / "config.json", text)
    with pytest.raises(UsageError) as caught:
        read_model(path)
    assert caught.value.problems[0].code == code
    assert caught.value.problems[0].path == str(path)


def test_syntax_errors_carry_their_place(tmp_path: Path) -> None:
    path = _write(tmp_path / "config.json", '{\n  "model_type": llama\n}')
    with pytest.raises(UsageError) as caught:
        read_model(path)
    assert (caught.value.problems[0].line, caught.value.problems[0].column) == (2, 17)


def test_infinity_in_a_key_that_is_not_needed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(c.LLAMA_3_8B | {"time_step_limit": [0.0, float("inf")]}))
    assert read_model(path).query_heads == 32


def test_huge_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(MAX_CONFIG_BYTES * 6)
    with pytest.raises(UsageError) as caught:
        read_model(path)
    assert caught.value.problems[0].code == "config_too_large"


def test_missing_and_odd_paths(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path / "none.gguf", tmp_path, Path("/dev/null/x")):
        with pytest.raises(UsageError) as caught:
            read_model(path)
        assert caught.value.problems[0].fix
    with pytest.raises(UsageError):
        read_model("/dev/zero")


def test_binary_given_as_config(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read_model(_write(tmp_path / "model.safetensors", struct.pack("<Q", 10) + bytes(100)))


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(-2, 4), st.sampled_from(["full_attention", "x"])), max_size=5),
    st.dictionaries(st.sampled_from(["a", "head_dim", "kv_n_heads"]), st.integers(-1, 9), max_size=2),
)
# Every key that some family's configuration has, and those of wrappers and older files.
_OLDER = (
    "text_config",
    "quantization_config",
    "dtype",
    "attn_config",
    "block_configs",
    "num_kv_heads",
    "block_types",
)
_KEYS = st.sampled_from(sorted({key for row in cache_shape_rows() for key in row["config"]} | set(_OLDER)))


@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(_KEYS, _VALUES, max_size=12))
@settings(max_examples=400, deadline=None)
def test_any_configuration_is_read_or_refused(model_type: str, keys: dict[str, Any]) -> None:
    small = c.decoder(model_type, 4, 64, 4, num_key_value_heads=2, decoder_layers=2, d_model=64)
    small |= {"decoder_attention_heads": 4, "max_position_embeddings": 64}
    for config in (keys | {"model_type": model_type}, small | keys):
        error = c.refusal(partial(_cost, config))
        assert error is None or all(problem.fix and problem.path for problem in error.problems)


def _cost(config: dict[str, Any]) -> None:
    spec = model_from_config(config, name="any", source="config.json")
    k, v = c.formats(spec)
    assert bytes_at(spec, 100, k, v) >= 0


def test_pipes_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    for name in ("model.gguf", "config.json"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(UsageError, match="no regular file"):
            read_model(tmp_path / name)


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b"])
def test_a_name_that_cannot_be_is_no_internal_error(name: str) -> None:
    with pytest.raises(UsageError):
        read_model(name)


def test_a_directory_that_may_not_be_listed_is_no_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(UsageError, match="Permission denied"):
        read_model(tmp_path)
