"""The ranges of the ground truth, and configurations made of nothing but a row's own fields."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.plan.engines import pool_for
from kvprobe.plan.engines.cached import as_cached
from kvprobe.plan.pool import EngineOptions
from kvprobe.plan.sizes import parse_size
from tests.plan.engines.rows import Row, capacity_pool, capacity_rows, config_of, kv_dtypes, spec_of
from tests.plan.engines.test_capacity_rows import FROM_NOTES, Asked

ROWS = capacity_rows()
RANGED = sorted(name for name, row in ROWS.items() if row["expected"].get("num_blocks_range"))
_FIELDS = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "sliding_window",
    "torch_dtype",
)


@pytest.mark.parametrize("name", RANGED)
def test_blocks_lie_between_the_expected_ends(name: str) -> None:
    row = ROWS[name]
    asked = FROM_NOTES.get(name, Asked())
    pool = capacity_pool(row, available=asked.available, **asked.options)
    assert list(pool.num_blocks_range or ()) == row["expected"]["num_blocks_range"]
    if "tokens_range" in row["expected"]:
        assert list(pool.tokens_range or ()) == row["expected"]["tokens_range"]


def bare_config(row: Row, named_by: str) -> Row:
    """The row's own fields with their nulls, its extra keys, and one name."""
    full = config_of(row)
    config: Row = {key: row.get(key) for key in _FIELDS} | row["extra_config"]
    config[named_by] = full[named_by]
    if "layer_types" in full:
        config["layer_types"] = full["layer_types"]
    if "hybrid_override_pattern" in full:
        config["hybrid_override_pattern"] = full["hybrid_override_pattern"]
    return config


@pytest.mark.parametrize("named_by", ["model_type", "architectures"])
@pytest.mark.parametrize("name", sorted(name for name, row in ROWS.items() if row["checks"]))
def test_the_fields_of_a_row_are_a_configuration(name: str, named_by: str) -> None:
    row = ROWS[name]
    k, v = kv_dtypes(row["kv_cache_dtype"])
    options = EngineOptions(
        tp=row["tp"], pp=row["pp"], kv_dtype_k=k, kv_dtype_v=v, ctx=4096, max_model_len=4096
    )
    pools = [
        pool_for(
            row["engine"],
            row["engine_version"],
            spec_of(config),
            options,
            parse_size("100GiB", "--available-kv"),
        )
        for config in (bare_config(row, named_by), config_of(row))
    ]
    assert pools[0].num_blocks == pools[1].num_blocks
    assert pools[0].parts_bytes == pools[1].parts_bytes
    assert pools[0].tokens == pools[1].tokens


@pytest.mark.parametrize("version", ["b5500", "2025-03", "ik_llama 2025-04"])
@pytest.mark.parametrize("model_type", ["mistral", "phi3", "mixtral"])
def test_llama_cpp_does_not_use_these_windows(model_type: str, version: str) -> None:
    config: dict[str, Any] = {
        "model_type": model_type,
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "sliding_window": 2047,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
    }
    found = as_cached("llama.cpp", version, spec_of(config), EngineOptions())
    assert "does not use this family's sliding window" in " ".join(found.notes)
    pool = pool_for("llama.cpp", version, spec_of(config), EngineOptions(ctx=8192), None)
    assert pool.parts_bytes == {"base": 8192 * 131072}
