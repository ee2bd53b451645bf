"""The reading of a family, held against the cache that the family's own code builds (fixtures/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvprobe.model.dtypes import kv_dtype
from kvprobe.model.families.table import FAMILIES
from kvprobe.model.layouts import Part, layer_state_bytes, parts
from kvprobe.model.read import model_from_config

_SHAPES = Path(__file__).parent / "fixtures" / "cache_shapes.jsonl"


def cache_shape_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in _SHAPES.read_text().splitlines()]


_ROWS = cache_shape_rows()


def _kept(part: Part, tokens: int) -> float:
    """Bytes of a part as that code keeps it: a full window holds one token less."""
    if part.bytes_per_token is None:
        return part.bytes or 0
    full = part.window_tokens is not None and tokens >= part.window_tokens
    return float(part.bytes_per_token * ((part.window_tokens or 0) - 1 if full else tokens))


@pytest.mark.parametrize("row", _ROWS, ids=[row["model_type"] for row in _ROWS])
def test_cache_of_the_modelling_code(row: dict[str, Any]) -> None:
    model_type, config = row["model_type"], row["config"]
    if model_type in ("deepseek_v3", "kimi_k2"):
        # Their class ignores these keys, which no published file of that type has; engines read them as V3.2.
        config = {key: value for key, value in config.items() if not key.startswith("index_")}
    spec = model_from_config({**config, "model_type": model_type}, name="tiny", source="config.json")
    k = kv_dtype("fp32", model_dtype="float32")
    found = parts(spec, k, k, tp=1)
    for tokens, measured in row["float32_bytes"].items():
        grown = [p for p in found if p.kind == "cross" or p.bytes_per_token is not None]
        kv = sum(_kept(part, int(tokens)) for part in grown if part.kind != "indexer")
        # n_spec=1 adds the conv row that this code keeps beyond kernel - 1.
        state = sum(layer_state_bytes(layer, tp=1, model_dtype="float32", n_spec=1) for layer in spec.layers)
        assert (kv, state) == (measured["kv"], measured["state"])
        indexed = sum(part.layers for part in found if part.kind == "indexer")
        assert indexed * int(tokens) * config.get("index_head_dim", 0) * 4 == measured["indexer"]


def test_every_family_that_claims_the_check_has_it() -> None:
    claimed = {model_type for model_type, family in FAMILIES.items() if "code" in family.checked}
    assert claimed - {row["model_type"] for row in _ROWS} <= {"kimi_k2"}
