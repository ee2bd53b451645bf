"""Recommended flags: only those that the version has, each with its number; shell, YAML, diff."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

import kvprobe
from kvprobe.plan.engines.versions import parse_version
from kvprobe.plan.flags.table import FLAGS
from kvprobe.plan.flags.write import parse_running
from tests.plan.configs import LLAMA_8B

plan: Any = kvprobe.plan


def advice(**settings: Any) -> dict[str, Any]:
    asked = {"available_kv": "20GiB", "max_model_len": 8192, "engine": "vllm", **settings}
    flags: dict[str, Any] = plan(LLAMA_8B, **asked)["flags"]
    return flags


def names(flags: dict[str, Any]) -> dict[str, str | None]:
    return {flag["name"]: flag["value"] for flag in flags["recommended"]}


@pytest.mark.parametrize(
    ("version", "settings", "kept", "dropped"),
    [
        ("0.29.0", {}, "max-num-seqs", "max-num-queued-reqs"),
        ("0.17.1", {"swap_space": "4GiB"}, "swap-space", None),
        ("0.18.0", {"swap_space": "4GiB"}, None, "swap-space"),
        ("0.13.0", {"mamba_cache_mode": "align"}, None, "mamba-cache-mode"),
        ("0.15.1", {"mamba_cache_mode": "align"}, "mamba-cache-mode", None),
        ("0.19.1", {"kv_dtype": "nvfp4"}, None, "kv-cache-dtype"),
        ("0.20.0", {"kv_dtype": "nvfp4"}, "kv-cache-dtype", None),
        ("0.10.2", {"kv_dtype": "bf16"}, None, "kv-cache-dtype"),
        ("0.11.0", {"kv_dtype": "bf16"}, "kv-cache-dtype", None),
        ("0.30.0", {"kv_dtype": "q8_0"}, None, "kv-cache-dtype"),
    ],
)
def test_vllm_has_only_what_its_version_has(
    version: str, settings: dict[str, Any], kept: str | None, dropped: str | None
) -> None:
    flags = advice(engine_version=version, **settings)
    if kept is not None:
        assert kept in names(flags)
    left = [row["name"] for row in flags["left_out"]]
    if dropped is not None:
        assert dropped in left
        assert dropped not in names(flags)
        assert dropped not in flags["shell"]


def test_each_flag_has_the_number_it_comes_from() -> None:
    flags = advice(lengths="p50=1000,p95=4000,max=8000")
    assert all(flag["why"] for flag in flags["recommended"])
    why = {flag["name"]: flag["why"] for flag in flags["recommended"]}
    assert "chance of preemption of at most 1 %" in why["max-num-seqs"]


def test_shell_and_yaml_say_the_same() -> None:
    from ruamel.yaml import YAML

    flags = advice(kv_dtype="fp8", tp=2, prefix_caching="on")
    words = shlex.split(flags["shell"].replace("\\\n", " "))
    assert words[:3] == ["vllm", "serve", "MODEL"]
    read = YAML(typ="safe", pure=True).load(flags["yaml"])
    for flag in flags["recommended"]:
        assert f"--{flag['name']}" in words
        assert str(read[flag["name"]]).lower() == (flag["value"] or "true").lower()


def test_a_value_from_outside_is_quoted() -> None:
    from kvprobe.plan.flags.recommend import Advice, Recommended
    from kvprobe.plan.flags.write import shell

    text = shell(
        Advice(engine="vllm", flags=(Recommended(name="kv-cache-dtype", value="a; rm -rf /", why=""),))
    )
    assert "'a; rm -rf /'" in text


def test_a_limit_of_the_queue_is_not_made_up() -> None:
    """vLLM counts running requests too (PR 49445): a limit as large as the batch lets none wait."""
    flags = advice(engine_version="0.32.0")
    assert "queued" not in flags["shell"]
    why = {row["name"]: row["why"] for row in flags["left_out"]}
    assert "running requests too" in why["max-num-queued-reqs"]
    assert "max-num-queued-reqs" not in {row["name"] for row in advice(engine_version="0.28.0")["left_out"]}


def test_the_diff_to_a_running_server() -> None:
    flags = advice(running="--max-model-len 8192 --max-num-seqs=256 --enforce-eager --tp 1", tp=2)
    changes = {row["name"]: (row["change"], row["running"]) for row in flags["diff"]}
    assert changes["max-model-len"] == ("same", "8192")
    assert changes["max-num-seqs"] == ("change", "256")
    assert changes["tensor-parallel-size"] == ("change", "1")
    assert "enforce-eager" not in changes  # what the plan says nothing of stays as it is
    assert advice()["diff"] == []


def test_running_arguments_are_read() -> None:
    assert parse_running("--a 1 --b=2 --c -np 4 --d -1") == {
        "a": "1",
        "b": "2",
        "c": "",
        "np": "4",
        "d": "-1",
    }


def test_other_engines_have_their_own_words() -> None:
    assert "context-length" in names(advice(engine="sglang"))
    assert "max_seq_len" in names(advice(engine="trtllm"))
    assert "session-len" in names(advice(engine="lmdeploy"))
    llama = plan(LLAMA_8B, engine="llama.cpp", ctx=8192, parallel=4, kv_dtype="q8_0", kv_unified=False)[
        "flags"
    ]
    assert names(llama)["cache-type-k"] == "q8_0"
    assert names(llama)["no-kv-unified"] is None
    assert "--no-kv-unified" in llama["shell"]
    assert plan(LLAMA_8B, available_kv="8GiB")["flags"]["note"]
    assert advice(engine="transformers")["note"]


def test_the_reference_server_takes_what_is_recommended() -> None:
    from reference_server.config import parse_arguments

    flags = advice(engine="reference", lengths="p50=1000,p95=4000,max=8000")
    words = shlex.split(flags["shell"].replace("\\\n", " "))
    read = parse_arguments([*words[words.index("--model") + 2 :]], {})
    assert read.max_model_len == 8192
    assert read.kv_memory_bytes == 20 * 2**30


def test_an_old_build_of_llama_cpp_lacks_flags() -> None:
    flag = FLAGS["llama.cpp"]["swa-full"]
    assert flag.missing_in(parse_version("llama.cpp", "b5000"), None)
    assert flag.missing_in(parse_version("llama.cpp", "b6000"), None) is None
