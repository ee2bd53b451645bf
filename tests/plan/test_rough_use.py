"""Inputs that nobody planned for: what fell once, and must not again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import kvprobe
from kvprobe.cli.main import main
from kvprobe.errors import Exit, UsageError
from kvprobe.plan.document import plan_schema
from kvprobe.plan.lengths import parse_lengths
from tests.plan.configs import DEEPSEEK_V3, GPT_OSS_20B, LLAMA_8B, LLAMA_70B, MHA_7B, QWEN35_35B, llama, write

GIB = 2**30
plan: Any = kvprobe.plan
MODELS = (LLAMA_8B, LLAMA_70B, MHA_7B, QWEN35_35B, GPT_OSS_20B, DEEPSEEK_V3)
ENGINES = (None, "vllm", "sglang", "llama.cpp", "trtllm", "lmdeploy", "transformers", "reference")
SIZES = ("1GiB", "80GiB", "24GB", "5.29GiB", "300MiB", "0.5GiB", "1TiB")
CHOICES: dict[str, tuple[Any, ...]] = {
    "gpu": (*SIZES, "H100", "L4", "4090", "MI300X", "H20"),
    "weights": (*SIZES, "0GiB"),
    "overhead": SIZES,
    "margin": SIZES,
    "available_kv": (*SIZES, "0GiB"),
    "free_memory": SIZES,
    "non_torch": SIZES,
    "activation_peak": SIZES,
    "graphs": SIZES,
    "gpu_memory_utilization": (0.01, 0.9, 1),
    "mem_fraction_static": (0.1, 1),
    "kv_fraction": (0.1, 1),
    "tp": (2, 8),
    "pp": (2, 7),
    "kv_dtype": ("fp8", "int8", "nvfp4", "q8_0", "fp32"),
    "block_size": (1, 7, 64),
    "max_model_len": (1, 2048, 1_000_000),
    "max_num_seqs": (1, 100_000),
    "ctx": (512, 131_072),
    "parallel": (4,),
    "tokens": (1, 10**9),
    "lengths": ("fixed:4096", "p50=1000,p95=8000,max=32000", "lognormal:median=100,p95=9000", "uniform:1-9"),
    "shared_prefix": (17, 100_000),
    "price_per_hour": (2.5,),
    "engine_version": ("0.8.5", "0.33.0", "b6500", "nightly"),
}


def drawn(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = random.Random(seed)
    settings = {"gpu": "80GiB", "weights": "14GiB"} if rng.random() < 0.6 else {}
    for name, values in CHOICES.items():
        if rng.random() < 0.12:
            settings[name] = rng.choice(values)
    return rng.choice(MODELS), {**settings, "engine": ENGINES[seed % len(ENGINES)]}


def without_reason(document: dict[str, Any]) -> list[str]:
    reasons = document["reasons"]
    found = [name for name in ("fits", "engine", "gpu", "lengths", "cost") if document[name] is None]
    for part in ("pool", "waste", "concurrency", "model"):
        found += [
            f"{part}.{name}"
            for name, value in document[part].items()
            if value is None and not name.endswith("_range")
        ]
    terms = [f"budget.{name}" for name, t in document["budget"].items() if name != "rule" and not t["bytes"]]
    found += [name for name in terms if document["budget"][name.split(".")[1]]["bytes"] is None]
    return [name for name in found if not (reasons.get(name) or reasons.get(f"{name}.bytes"))]


@pytest.mark.parametrize("seed", range(48))
def test_any_settings_make_a_document_or_a_named_error(seed: int) -> None:
    config, settings = drawn(seed)
    try:
        document, problems = plan(config, **settings), ()
    except UsageError as error:
        document, problems = None, error.problems
    assert all(problem.fix for problem in problems)
    if document is not None:
        jsonschema.validate(document, plan_schema())
        assert without_reason(document) == []


# ---- what a name or a number may look like ----


@pytest.mark.parametrize(("given", "found"), [("4090", "RTX 4090"), ("7900 xtx", "RX 7900 XTX")])
def test_a_gpu_may_be_called_by_its_number(given: str, found: str) -> None:
    assert plan(LLAMA_8B, gpu=given)["gpu"] == found


@pytest.mark.parametrize("given", ["80", "-80GiB", "0GiB", "12xyz"])
def test_a_number_that_is_no_gpu_is_a_bad_size(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(LLAMA_8B, gpu=given, engine="sglang")
    assert caught.value.problems[0].code == "bad_size"


def test_an_engine_is_known_in_any_case_and_a_near_one_is_asked_for() -> None:
    assert plan(LLAMA_8B, engine="vLLM", available_kv="4GiB")["engine"] == "vllm"
    with pytest.raises(UsageError) as caught:
        plan(LLAMA_8B, engine="llamacpp")
    assert "did you mean `llama.cpp`" in (caught.value.problems[0].fix or "")


def test_a_total_that_no_log_confirms_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write(tmp_path))
    for gpu, mark in (("A10", "table, not checked"), ("A30", "of nvidia-smi"), ("80GiB", "user")):
        assert main(["plan", "--model", model, "--gpu", gpu, "--weights", "14GiB"]) == Exit.OK
        total = next(line for line in capsys.readouterr().out.splitlines() if " total " in line)
        assert mark in total


def test_all_models_that_cannot_be_read_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "nowhere", "--model", "", "--gpu", "80"]) == Exit.USAGE
    err = capsys.readouterr().err
    for words in ("nowhere", "--model is empty", "has no unit"):
        assert words in err


# ---- options of somebody else ----


def notes(**settings: Any) -> str:
    document = plan(LLAMA_8B, **settings)
    return " ".join(f"{w['text']}: {w['fix']}" for w in document["warnings"] if w["code"] == "not_used")


def test_options_of_another_engine_are_said_to_change_nothing() -> None:
    said = notes(engine="vllm", available_kv="8GiB", ctx=4096, ubatch=4, swa_full=True, kv_unified=False)
    assert "--ctx, --ubatch, --kv-unified or --no-kv-unified, --swa-full have no part" in said
    assert "llama.cpp" in said
    card = {"gpu": "80GiB", "weights": "14GiB", "overhead": "3GiB"}
    said = notes(engine="sglang", **card, graphs="1GiB", swap_space="4GiB")
    for option in ("--graphs", "--overhead", "--swap-space"):
        assert option in said
    said = notes(available_kv="8GiB", engine_version="0.9", output_tokens_per_s=9, free_memory="4GiB")
    for option in ("--engine-version", "--output-tokens-per-s", "--free-memory"):
        assert option in said
    assert notes(engine="vllm", **card, max_num_seqs=4) == ""


def test_a_limit_of_sglang_does_not_bind_vllm() -> None:
    document = plan(LLAMA_8B, engine="vllm", available_kv="20GiB", max_running_requests=1)
    assert document["concurrency"]["max"] == 10_239 // 512  # a block less, the null block
    assert "--max-running-requests" in " ".join(w["text"] for w in document["warnings"])


def test_a_model_of_windows_alone_fits_in_sglang() -> None:
    mistral = {**llama(32, 32, 8, 4096, 32768), "model_type": "mistral", "sliding_window": 4096}
    document = plan(mistral, engine="sglang", available_kv="50GiB")
    assert document["fits"] is True
    assert document["concurrency"]["max"] > 1


# ---- lengths ----


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", "empty"),
        ("p50=1000", "nothing of the longer"),
        ("p95=8000", "nothing of the longer"),
        ("p50=1000,p95=8000,max=4000", "fall"),
        ("lognormal:median=1000,p95=8000,max=500", "max below its median"),
        ("lognormal:median=1000,p95=8000,max=5000", "max below its p95"),
        ("lognormal:mean=100,median=200", "mean below its median"),
        ("lognormal:median=1000,sigma=1,p95=8000", "two of them"),
    ],
)
def test_lengths_that_contradict_themselves(spec: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_lengths(spec)
    assert words in caught.value.problems[0].message


def test_the_tail_of_a_lognormal_is_not_cut_off() -> None:
    """P(n fit) against drawing: an even grid of 2,000 steps promised 0.991 where 0.985 was true."""
    np = pytest.importorskip("numpy")
    document = plan(
        llama(32, 32, 8, 4096, 2**30), available_kv="56GiB", lengths="lognormal:median=1000,p95=8000"
    )
    spread = document["concurrency"]["distribution"]
    sigma = np.log(8) / 1.6448536269514722
    rng = np.random.default_rng(11)
    for point in spread["fits"]:
        draws = np.rint(1000 * np.exp(sigma * rng.standard_normal((12_000, point["requests"])))).sum(1)
        share = float((draws <= 458_752).mean())
        assert point["probability"] == pytest.approx(
            share, abs=4 * (share * (1 - share) / 12_000) ** 0.5 + 2e-4
        )


def test_a_trace_must_be_a_file(tmp_path: Path) -> None:
    import os

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="no regular file"):
        parse_lengths(str(pipe))


# ---- flags never promise more than fits ----


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "lmdeploy", "reference"])
@pytest.mark.parametrize("lengths", [None, "p50=1000,p95=8000,max=32000"])
@pytest.mark.parametrize("available", ["0.3GiB", "1.0GiB", "5.29GiB"])
def test_flags_stay_within_the_lower_end(engine: str, lengths: str | None, available: str) -> None:
    names = {
        "vllm": ("max-model-len", "max-num-seqs"),
        "sglang": ("context-length", "max-running-requests"),
        "trtllm": ("max_seq_len", "max_batch_size"),
        "lmdeploy": ("session-len", "max-batch-size"),
        "reference": ("max-model-len", "max-num-seqs"),
    }[engine]
    document = plan(LLAMA_8B, engine=engine, available_kv=available, lengths=lengths)
    flags = {
        row["name"]: int(row["value"]) for row in document["flags"]["recommended"] if row["name"] in names
    }
    longest = document["pool"]["estimated_max_model_len_range"]
    assert longest is None or flags[names[0]] <= longest[0]
    spread = document["concurrency"]["distribution"]
    if spread is not None and spread["max_num_seqs_range"][0]:
        assert flags[names[1]] <= spread["max_num_seqs_range"][0]


@pytest.mark.parametrize(
    ("engine", "settings", "words"),
    [
        ("vllm", {"kv_dtype": "q8_0"}, "no cache format q8_0"),
        ("vllm", {"kv_dtype_k": "fp8"}, "one format for K and V"),
        ("vllm", {"kv_dtype": "nvfp4", "engine_version": "0.19.1"}, "no cache format nvfp4"),
        ("lmdeploy", {"kv_dtype": "fp8"}, "no cache format fp8"),
    ],
)
def test_no_flags_for_a_cache_that_the_engine_cannot_keep(
    engine: str, settings: dict[str, Any], words: str
) -> None:
    """`--max-num-seqs` of a q8_0 cache without the q8_0 cache would be twice what fits."""
    flags = plan(LLAMA_8B, engine=engine, available_kv="20GiB", **settings)["flags"]
    assert words in flags["note"]
    assert flags["recommended"] == []


def test_the_models_own_format_needs_no_flag() -> None:
    flags = plan(LLAMA_8B, engine="vllm", engine_version="0.10.2", available_kv="20GiB", kv_dtype="bf16")[
        "flags"
    ]
    assert flags["note"] is None
    assert "max-num-seqs" in flags["shell"]


def test_the_smallest_share_counts_what_a_hybrid_reserves() -> None:
    asked = {"gpu": "80GiB", "weights": "70GiB", "overhead": "2GiB", "engine": "vllm", "max_model_len": 32768}
    first = plan(QWEN35_35B, **asked, gpu_memory_utilization=0.5)
    share = next(
        row["value"] for row in first["flags"]["recommended"] if row["name"] == "gpu-memory-utilization"
    )
    assert plan(QWEN35_35B, **asked, gpu_memory_utilization=share)["fits"] is True


# ---- the what-if table, by hand ----


def test_what_ifs_of_a_plain_model_by_hand() -> None:
    """56 GiB at 128 KiB a token: 458,752. Each row by the plain formula."""
    asked = {
        "gpu": "80GiB",
        "weights": "14GiB",
        "overhead": "6GiB",
        "margin": "4GiB",
        "lengths": "fixed:4000",
    }
    rows = {row["id"]: row for row in plan(LLAMA_8B, **asked)["what_if"]}
    token = 131_072
    assert rows["as_planned"]["pool_tokens"] == 56 * GIB // token == 458_752
    assert rows["as_planned"]["p50"] == 114
    assert rows["weights_half"]["pool_tokens"] == 63 * GIB // token
    assert rows["kv_fp8"]["pool_tokens"] == 56 * GIB // (token // 2)
    assert rows["tp_2"]["pool_tokens"] == (80 - 7 - 6 - 4) * GIB // (token // 2)
    assert rows["tp_8"]["pool_tokens"] == int((80 - 14 / 8 - 6 - 4) * GIB) // (token // 8)
    assert rows["shared_prefix"]["p50"] == (458_752 - 2048) // (4000 - 2048)  # 2,048 tokens are held once
    assert rows["window"]["p50"] == 114  # none of 4,000 tokens reaches a window of 4,096


def test_what_ifs_of_a_hybrid_by_hand() -> None:
    """Qwen3.5-35B on vLLM: 10 full and 30 GDN layers in 4 groups of 10; 1 + 3 x 1 blocks for a short one."""
    asked = {"available_kv": 20 * GIB, "engine": "vllm", "prefix_caching": False, "lengths": "fixed:100"}
    document = plan(QWEN35_35B, **asked)
    state = 2_146_304  # bytes of a GDN layer's state
    attention = 2 * 2 * 256 * 2  # K and V, 2 heads of 256, 2 bytes: a layer and token
    block = 16 * -(-state // (16 * attention))
    assert document["pool"]["block_size"] == block == 1056
    blocks = 20 * GIB // (10 * block * attention)
    assert document["pool"]["num_blocks"] == blocks
    rows = {row["id"]: row for row in document["what_if"]}
    assert rows["as_planned"]["p50"] == (blocks - 1) // 4
    halved = 16 * -(-state // (8 * attention))
    fewer = 20 * GIB // (5 * halved * attention)
    assert rows["kv_fp8"]["p50"] == (fewer - 1) // 4


def test_a_prefix_that_most_requests_are_too_short_for_is_a_slip() -> None:
    """The lengths count prompt and answer, the prefix with them."""
    with pytest.raises(UsageError) as caught:
        plan(LLAMA_8B, available_kv="8GiB", lengths="p50=1000,p95=8000,max=32000", shared_prefix=2048)
    assert "half of the requests have 1,000 or fewer" in caught.value.problems[0].message
    document = plan(LLAMA_8B, available_kv="8GiB", lengths="p50=3000,p95=8000,max=32000", shared_prefix=2048)
    assert "shorter_than_prefix" in {w["code"] for w in document["warnings"]}
