"""`kvprobe quality` on real servers: wrong scales are found, right ones are not blamed.

`recall` is a small model that can copy and look up (made by benchmarks/train_recall.py): the bundled
random one answers nothing right, so that nothing could get worse.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvprobe.cli.main import main
from kvprobe.quality.model import quality_schema
from tests.e2e.conftest import Result, Server, kvprobe, start_server

__all__ = ["start_server"]
RECALL = str(Path(__file__).parent / "recall")
SMALL = ("--items", "20", "--context", "300", "--json")


def document(result: Result) -> dict[str, Any]:
    assert result.code == 0, result.err
    jsonschema.validate(result.document, quality_schema())
    return result.document


def test_right_scales_cost_nothing_that_shows() -> None:
    found = document(kvprobe("quality", "--kv-dtype", "fp32,int8", "--model", RECALL, *SMALL))
    assert found["verdict"] == "no_loss_shown"
    assert found["diagnosis"]["primary"] == "healthy_baseline"
    assert (found["baseline"]["kv_dtype"], found["candidate"]["kv_dtype"]) == ("fp32", "int8")
    assert found["noise"]["identical"] == 1.0
    assert found["noise"]["logprob_difference"] == 0.0
    apart = found["passes"][0]["divergence"]
    assert apart["unit"] == "tokens"
    assert apart["logprob_tokens"] > 100
    assert 0.0 < apart["logprob_difference"] < 0.1


def test_wrong_scales_are_found() -> None:
    argv = ("quality", "--kv-dtype", "fp32,int8", "--model", RECALL, *SMALL)
    found = document(kvprobe(*argv, "--candidate-args", "--ailment bad-kv-scales"))
    assert found["verdict"] == "loss"
    assert found["passes"][0]["divergence"]["logprob_difference"] > 1.0
    finding = found["diagnosis"]["findings"][0]
    assert (finding["cause"], finding["symptom"], finding["confidence"]) == (
        "kv_quant_error", "quality_drop", "certain",
    )  # fmt: skip


def test_a_pool_that_is_held_nearly_full(start_server: Callable[..., Server]) -> None:
    """A pool of 2,048 tokens at most, on both sides; the same answers come out of it."""
    args = ("--model", RECALL, "--kv-memory", "2MiB", "--max-model-len", "512")
    a, b = start_server(*args, "--kv-dtype", "fp16"), start_server(*args, "--kv-dtype", "bf16")
    argv = ("quality", "--baseline", a.url, "--candidate", b.url, "--pool-pressure")
    found = document(kvprobe(*argv, "--items", "3", "--context", "300", "--json"))
    plain, pressed = found["passes"]
    assert (plain["pressure"], pressed["pressure"]) == (False, True)
    held = {name: seen["median"] or 0.0 for name, seen in pressed["kv_usage"].items()}
    for name, median in held.items():  # what was not reached is said
        assert (median < 0.95) == any(f"pool of {name} was not held" in w for w in found["warnings"])
    needles = {t["kind"]: t for t in pressed["tests"]}["needle"]
    assert needles["right_baseline"] >= 2


def test_a_model_that_answers_nothing_right_says_so() -> None:
    argv = ("quality", "--kv-dtype", "fp32,bf16", "--items", "2", "--context", "256", "--json")
    found = document(kvprobe(*argv))
    assert found["verdict"] == "n_too_small"
    assert found["diagnosis"]["primary"] == "unknown"


@pytest.mark.parametrize(
    "argv",
    [
        ["quality"],
        ["quality", "--baseline", "http://127.0.0.1:1"],
        ["quality", "--kv-dtype", "fp16"],
        ["quality", "--kv-dtype", "fp16,"],
        ["quality", "--kv-dtype", "fp16,int8", "--baseline", "http://127.0.0.1:1"],
        ["quality", "--baseline", "http://127.0.0.1:1", "--candidate", "http://127.0.0.1:1"],
        ["quality", "--baseline", "a", "--candidate", "b", "--serve-args", "--x"],
        ["quality", "--kv-dtype", "fp16,int8", "--items", "0"],
        ["quality", "--kv-dtype", "fp16,int8", "--margin", "2"],
        ["quality", "--kv-dtype", "fp16,nonsense"],
    ],
)
def test_mistakes_of_the_command_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["schema"] == "kvprobe.error/1"


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["quality", "--baseline", "http://127.0.0.1:9", "--candidate", "http://127.0.0.1:10"]
    assert main(argv) == 3
    assert "fix:" in capsys.readouterr().err
