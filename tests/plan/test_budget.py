"""The budget: rules by engine, bands for what is not known, sources, strict units."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.plan.budget import budget_of, default_utilisation
from kvprobe.plan.pool import ByteRange
from kvprobe.plan.request import PlanRequest
from tests.plan.configs import LLAMA_8B, spec

GIB = 2**30


def gib(amount: float) -> ByteRange:
    return ByteRange.of(int(amount * GIB))


def request(**changes: Any) -> PlanRequest:
    return PlanRequest(**{"spec": spec(LLAMA_8B), "total": gib(80), "weights": gib(14), **changes})


@pytest.mark.parametrize(
    ("version", "share"), [("0.19.1", 0.9), ("0.20.0", 0.92), ("V0", 0.9), (None, 0.92), ("0.6.6-era", 0.9)]
)
def test_the_default_share_follows_the_version(version: str | None, share: float) -> None:
    assert default_utilisation(request(engine="vllm", engine_version=version)) == share


@pytest.mark.parametrize(("version", "inside"), [("0.19.1", False), ("0.20.0", True), (None, True)])
def test_graphs_count_inside_the_budget_since_0_20(version: str | None, inside: bool) -> None:
    known = {"non_torch": gib(0.1), "activation_peak": gib(1), "graphs": gib(1.5), "utilisation": 0.9}
    found = budget_of(request(engine="vllm", engine_version=version, **known))
    assert (found.graphs.value is not None) is inside
    left = 72 - 14 - 0.1 - 1 - (1.5 if inside else 0)
    assert found.kv.nominal == pytest.approx(left * GIB, abs=16)
    if not inside:
        assert "outside" in (found.graphs.reason or "")


def test_what_is_not_known_is_a_band_and_the_result_carries_it() -> None:
    found = budget_of(request(engine="vllm", utilisation=0.9))
    assert found.activation_peak.banded
    assert found.activation_peak.nominal is None
    assert found.kv.nominal is None
    assert found.kv.value is not None
    width = found.kv.value.hi - found.kv.value.lo
    terms = (found.activation_peak, found.non_torch, found.graphs)
    assert width == sum(t.value.hi - t.value.lo for t in terms if t.value is not None)
    assert found.kv.source == "default"


def test_overhead_stands_for_the_terms_that_were_not_given() -> None:
    found = budget_of(request(engine="vllm", engine_version="0.9", overhead=gib(2), utilisation=0.9))
    assert found.kv.nominal == pytest.approx((72 - 14 - 2) * GIB, abs=1)
    assert found.activation_peak.value is None
    assert "fixed" in (found.activation_peak.reason or "")


def test_a_margin_is_no_part_of_vllm() -> None:
    found = budget_of(request(engine="vllm", overhead=gib(2), margin=gib(4), utilisation=0.9))
    assert found.margin.value is None
    assert found.kv.nominal == pytest.approx((72 - 14 - 2) * GIB, abs=1)


def test_sglang_leaves_its_share_of_the_total() -> None:
    found = budget_of(request(engine="sglang", mem_fraction_static=0.85, free_memory=gib(64)))
    assert found.kv.nominal == pytest.approx((64 - 80 * 0.15) * GIB, abs=2)
    guessed = budget_of(request(engine="sglang", mem_fraction_static=0.85))
    assert guessed.kv.banded


@pytest.mark.parametrize(("engine", "share"), [("trtllm", 0.9), ("lmdeploy", 0.8)])
def test_a_share_of_what_is_free_after_load(engine: str, share: float) -> None:
    found = budget_of(request(engine=engine, free_memory=gib(20)))
    assert found.kv.nominal == pytest.approx(20 * share * GIB, abs=1)
    assert found.utilisation.ratio == share
    assert budget_of(request(engine=engine, free_memory=gib(20), kv_fraction=0.5)).kv.nominal == 10 * GIB


def test_available_kv_overrides_every_rule() -> None:
    for engine in (None, "vllm", "sglang", "trtllm", "llama.cpp"):
        found = budget_of(request(engine=engine, available_kv=ByteRange(10, 20)))
        assert found.kv.value == ByteRange(10, 20)
        assert not found.kv.banded
        assert found.kv.source == "user"


def test_a_missing_term_makes_the_result_not_known() -> None:
    found = budget_of(request(total=None, overhead=gib(1)))
    assert found.kv.value is None
    assert "--gpu" in (found.kv.reason or "")
    found = budget_of(request(weights=None, overhead=gib(1)))
    assert found.kv.value is None
    assert "--weights" in (found.kv.reason or "")


def test_roundings_of_the_terms_add_up() -> None:
    found = budget_of(
        request(weights=ByteRange(99, 101), overhead=ByteRange(9, 11), total=ByteRange.of(1000))
    )
    assert found.kv.value == ByteRange(888, 892)
    assert found.kv.nominal == 890


def test_no_term_of_a_rule_is_silent() -> None:
    for engine in (None, "vllm", "sglang", "trtllm", "lmdeploy", "llama.cpp", "transformers", "reference"):
        for name, term in budget_of(request(engine=engine, total=gib(80))).terms():
            assert term.value is not None or term.reason or term.ratio, (engine, name)


def test_weights_from_files_are_measured_and_split() -> None:
    import dataclasses

    from kvprobe.plan.pool import EngineOptions

    known = dataclasses.replace(
        spec(LLAMA_8B), weight_bytes=16 * GIB, weight_bytes_source="model.safetensors"
    )
    found = budget_of(request(spec=known, weights=None, options=EngineOptions(tp=4)))
    assert found.weights.value == gib(4)
    assert found.weights.source == "measured"
    assert "model.safetensors" in (found.weights.note or "")
