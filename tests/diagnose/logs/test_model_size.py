"""Weights by the model's name and the settings: an estimate that may decide, exclude, or leave open."""

from __future__ import annotations

import pytest

from kvprobe.diagnose.rules.logs import model_size
from tests.diagnose.logs.reading import diagnose, finding, oom, traceback, view_of

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("acme/chat-7B", 7),
        ("/srv/models/acme/coder-1.5b-instruct/", 1.5),
        ("Qwen/Qwen3-235B-A22B", 235),
        ("ernie-21b-a3b", 21),
        ("mixtral-8x7B-v0.1", 45.9),
        ("/data/70B/finetuned", 70),
        ("acme/long-7B-1M", 7),
        ("acme/tiny-350m", 0.35),
        ("acme/model-4bit", None),
        ("acme/gemma-E4B", None),
        ("acme/chat", None),
    ],
)
def test_parameters_by_name(name: str, billions: float | None) -> None:
    count, doubts = model_size.parameters(name)
    assert (count / 1e9 if count else None) == billions
    assert not doubts


def test_two_counts_in_one_name_are_doubtful() -> None:
    count, doubts = model_size.parameters("acme/chat-32B-draft-0.5B")
    assert (count, len(doubts)) == (32e9, 1)


@pytest.mark.parametrize(
    ("command", "gib", "ambiguous"),
    [
        ("vllm serve acme/chat-13B --max-model-len 2048", 24.2, False),
        ("vllm serve acme/chat-13B --max-model-len 2048 --dtype float32", 48.4, False),
        ("vllm serve acme/chat-13B --max-model-len 2048 --dtype=half", 24.2, False),
        ("vllm serve acme/chat-13B --max-model-len 2048 --quantization fp8", 12.7, False),
        ("vllm serve acme/chat-13B-AWQ --max-model-len 2048 --dtype float16", 6.7, False),
        ("vllm serve acme/chat-13B-GPTQ-Int8 --max-model-len 2048", 12.7, False),
        ("vllm serve acme/chat-13B --max-model-len 2048 --tensor-parallel-size 2", 12.1, False),
        ("vllm serve acme/chat-13B --max-model-len 2048 --quantization compressed-tensors", 12.7, True),
        ("$ python -m sglang.launch_server --model-path acme/chat-13B --tp 4", 6.1, False),
    ],
)
def test_bytes_of_a_gpu_follow_format_and_parallelism(command: str, gib: float, ambiguous: bool) -> None:
    guess = model_size.estimate(view_of(command))
    assert guess is not None
    assert round(guess.bytes_per_gpu / GIB, 1) == gib
    assert guess.ambiguous is ambiguous
    assert "estimate" in guess.text


def test_ranks_without_a_setting_leave_the_split_open() -> None:
    ranks = "\n".join(f"[rank{n}]: {oom('1.00 GiB', 47.5, '0.20 GiB', 46.9, '1.00 MiB')}" for n in range(2))
    guess = model_size.estimate(view_of(f"vllm serve acme/chat-70B --max-model-len 2048\n{ranks}"))
    assert guess is not None
    assert guess.ambiguous


def test_fit_is_over_clearly_below_or_open() -> None:
    guess = model_size.Estimate(bytes_per_gpu=20 * GIB, text="")
    assert guess.fit(20 * GIB) == "over"
    assert guess.fit(24 * GIB) is None
    assert guess.fit(48 * GIB) == "fits"
    assert guess.fit(None) is None
    assert model_size.Estimate(bytes_per_gpu=120 * GIB, text="").fit(None) == "over"
    assert model_size.Estimate(bytes_per_gpu=GIB, text="").fit(None) == "fits"


def test_weights_beyond_the_card_decide_without_a_traceback() -> None:
    answer = diagnose(
        "vllm serve acme/chat-9B --max-model-len 1024 --dtype=float32 --enforce-eager\n"
        + oom("610.00 MiB", 31.5, "8.00 MiB", 31.2, "1.00 MiB", process=31.4)
    )
    found = finding(answer, "weights_plus_fixed_too_large")
    assert (answer.primary, found.confidence) == ("weights_plus_fixed_too_large", "likely")
    assert "4 bytes (float32)" in found.why


def test_weights_that_fit_leave_the_budget() -> None:
    answer = diagnose(
        "vllm serve acme/chat-9B-AWQ --max-model-len 8192 --gpu-memory-utilization 0.94\n"
        + oom("230.00 MiB", 31.5, "190.00 MiB", 29.9, "90.00 MiB", process=31.3)
    )
    assert answer.primary == "gpu_memory_utilization_too_high"
    assert finding(answer, "allocator_fragmentation").role == "secondary"


REFUSED = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."


def test_a_bare_refusal_is_unknown_and_a_small_model_rules_the_weights_out() -> None:
    assert diagnose(REFUSED).primary == "unknown"
    small = diagnose(f"vllm serve acme/tiny-0.6B --max-model-len 4096\n{REFUSED}")
    assert small.primary == "unknown"
    assert finding(small, "weights_plus_fixed_too_large").role == "ruled_out"


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        (
            "vllm serve acme/x --max-model-len 4096 --gpu-memory-utilization 0.95",
            "weights_plus_fixed_too_large",
        ),
        (
            "vllm serve acme/x --max-model-len 4096 --gpu-memory-utilization 0.35",
            "gpu_memory_utilization_too_low",
        ),
        ("vllm serve acme/chat-405B --max-model-len 4096", "weights_plus_fixed_too_large"),
    ],
)
def test_a_bare_refusal_with_a_setting_or_a_huge_model(command: str, cause: str) -> None:
    assert diagnose(f"{command}\n{REFUSED}").primary == cause


ASSERT = (
    'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":1011, '
    "please report a bug to PyTorch."
)


@pytest.mark.parametrize(
    ("model", "cause"),
    [("acme/chat-8x9B", "weights_plus_fixed_too_large"), ("acme/chat-8B", "capacity_exhausted")],
)
def test_an_unsized_failure_while_layers_are_made(model: str, cause: str) -> None:
    frames = traceback("/x/vllm/model_executor/models/acme.py:__init__")
    assert diagnose(f"vllm serve {model} --max-model-len 4096\n{frames}\n{ASSERT}").primary == cause
