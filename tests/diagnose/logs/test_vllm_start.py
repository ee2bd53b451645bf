"""Starts of vLLM that fail, with the arithmetic that a good answer shows."""

from __future__ import annotations

import pytest

from tests.diagnose.logs.reading import diagnose, finding, first, oom, roles, traceback

REFUSED = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` "
    "when initializing "
    "the engine."
)


def v0_budget(total: float, u: float, weights: float, non_torch: float, peak: float) -> str:
    """The lines of 0.6.5 to 0.9, with sums that fit."""
    limit = total * u
    rest = limit - weights - non_torch - peak
    return (
        "INFO 02-26 09:54:05 worker.py:267] the current vLLM instance can use total_gpu_memory "
        f"({total:.2f}GiB) x "
        f"gpu_memory_utilization ({u:.2f}) = {limit:.2f}GiB\n"
        f"INFO 02-26 09:54:05 worker.py:267] model weights take {weights:.2f}GiB; non_torch_memory takes "
        f"{non_torch:.2f}GiB; PyTorch activation peak memory takes {peak:.2f}GiB; the rest of the "
        "memory reserved for KV "
        f"Cache is {rest:.2f}GiB.\n"
        f"INFO 02-26 09:54:05 executor_base.py:111] # cuda blocks: {max(0, int(rest * 100))}, # CPU "
        "blocks: 4681\n"
        "INFO 02-26 09:54:05 executor_base.py:116] Maximum concurrency for 4096 tokens per request: 0.00x\n"
    )


def test_s1_a_budget_that_is_too_small_for_the_card() -> None:
    per_token = {"kv": {"bytes_per_token_per_gpu": 56 * 1024}}
    answer = diagnose(v0_budget(8.0, 0.70, 5.20, 0.03, 1.42) + REFUSED, prediction=per_token)
    assert answer.primary == "gpu_memory_utilization_too_low"
    why = answer.findings[0].why
    assert "8.00 GiB x 0.70 = 5.60 GiB" in why
    assert "KV = -1.05 GiB" in why
    assert "0.86" in why


def test_s2_context_over_the_pool_in_blocks() -> None:
    text = (
        "INFO 01-10 05:30:00 llm_engine.py:275] # GPU blocks: 229, # CPU blocks: 512\n"
        "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that "
        "can be stored in KV "
        "cache (3664). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
        "initializing the engine."
    )
    answer = diagnose(text, prediction={"kv": {"bytes_per_token_per_gpu": 512 * 1024}})
    assert answer.primary == "max_model_len_exceeds_pool"
    assert answer.findings[0].confidence == "certain"
    assert "229 blocks x 16 = 3,664 tokens" in answer.findings[0].why
    assert "27 more blocks" in answer.findings[0].why
    assert any("--max-model-len 3664" in r for r in answer.findings[0].remedy)
    assert any("216 MiB more" in r for r in answer.findings[0].remedy)


def test_s3_the_activations_moved_not_the_cache() -> None:
    text = (
        "INFO 11-21 10:00:00 model_runner.py:1077] Loading model weights took 14.9888 GB\n"
        "INFO 11-21 10:00:09 worker.py:232] Memory profiling results: total_gpu_memory=22.09GiB "
        "initial_memory_usage=15.32GiB peak_torch_memory=17.98GiB memory_usage_post_profile=15.48GiB "
        "non_torch_memory=0.35GiB kv_cache_size=2.89GiB gpu_memory_utilization=0.96\n"
        "INFO 11-21 10:00:09 gpu_executor.py:113] # GPU blocks: 1478, # CPU blocks: 2048\n"
        "ValueError: The model's max seq len (29000) is larger than the maximum number of tokens "
        "that can be stored in KV "
        "cache (23648)."
    )
    answer = diagnose(text)
    assert answer.primary == "max_model_len_exceeds_pool"
    assert "1,478 blocks x 16 = 23,648 tokens" in answer.findings[0].why
    assert "0.82x" in answer.findings[0].why
    peak = finding(answer, "startup_activation_peak")
    assert any("--max-num-batched-tokens" in r for r in peak.remedy)


def test_s4_memory_that_is_already_held() -> None:
    text = (
        "(EngineCore_DP0 pid=12) ValueError: Free memory on device (31.44/47.38 GiB) on startup is "
        "less than desired GPU "
        "memory utilization (0.9, 42.64 GiB). Decrease GPU memory utilization or reduce GPU memory "
        "used by other processes."
    )
    answer = diagnose(text)
    assert answer.primary == "other_process_on_gpu"
    assert "15.9 GiB of 47.4 GiB" in answer.findings[0].why
    assert "0.66" in answer.findings[0].why
    assert any("share of the whole card" in r for r in answer.findings[0].remedy)


def test_s4_a_context_and_a_display_are_nobody_else() -> None:
    answer = diagnose(
        "ValueError: Free memory on device cuda:0 (21.81/23.59 GiB) on startup is less than desired "
        "GPU memory utilization "
        "(0.94, 22.17 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    assert answer.primary == "gpu_memory_utilization_too_high"


def test_s4_an_engine_that_should_be_gone() -> None:
    answer = diagnose(
        "ValueError: Free memory on device (5.10/79.10 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, "
        "71.19 GiB).\n|    0   N/A  N/A          4410      C   VLLM::EngineCore                      "
        "73900MiB |"
    )
    assert answer.primary == "leftover_process"


def test_s5_the_sampler_warm_up() -> None:
    text = (
        f"{traceback('compile_or_warm_up_model', '_dummy_sampler_run')}\n"
        f"{oom('980.00 MiB', 79.25, '610.00 MiB', 77.2, '90.00 MiB', process=78.5)}\n"
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. "
        "Please try lowering "
        "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
    )
    answer = diagnose(text)
    assert answer.primary == "gpu_memory_utilization_too_high"
    assert "1,024 dummy requests" in answer.findings[0].why
    assert "--max-num-seqs" in answer.findings[0].remedy[0]


def test_s5_from_the_hint_alone() -> None:
    answer = diagnose(
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests."
    )
    assert answer.primary == "gpu_memory_utilization_too_high"


def test_s6_raising_the_utilisation_cannot_help() -> None:
    answer = diagnose(v0_budget(23.65, 0.95, 22.30, 0.10, 0.60) + REFUSED)
    assert answer.primary == "weights_plus_fixed_too_large"
    out = finding(answer, "gpu_memory_utilization_too_low")
    assert out.role == "ruled_out"
    assert "raising it cannot help" in out.why
    assert "23.0 GiB" in out.why


def test_a_peak_out_of_proportion() -> None:
    answer = diagnose(v0_budget(39.5, 0.9, 14.96, 0.1, 22.0) + REFUSED)
    assert answer.primary == "startup_activation_peak"
    assert any("11.0 GiB" in r for r in answer.findings[0].remedy)


def test_s9_worst_case_images() -> None:
    text = (
        "WARNING 05-22 10:00:00 profiling.py:200] The sequence length used for profiling "
        "(max_num_batched_tokens / "
        "max_num_seqs = 32768) is too short to hold the multi-modal embeddings in the worst case "
        "(196608 tokens in "
        "total, out of which {'image': 196608} are reserved for multi-modal embeddings).\n"
        f"{traceback('determine_available_memory', 'profile_run', '_process_image_input')}\n"
        f"{oom('8.40 GiB', 39.38, '5.10 GiB', 33.2, '300.00 MiB', process=34.1)}"
    )
    answer = diagnose(text)
    assert answer.primary == "multimodal_profiling"
    assert "196,608 tokens" in answer.findings[0].why
    assert any("--limit-mm-per-prompt" in r for r in answer.findings[0].remedy)


@pytest.mark.parametrize("words", ["model's", "models's"])
def test_context_over_the_pool_in_bytes(words: str) -> None:
    text = (
        "(EngineCore pid=8) INFO 01-01 00:00:00 [gpu_worker.py:260] Available KV cache memory: 6.02 GiB\n"
        f"ValueError: To serve at least one request with the {words} max seq len (65536), (9.00 GiB "
        "KV cache is needed, "
        "which is larger than the available KV cache memory (6.02 GiB). Based on the available "
        "memory, the estimated "
        "maximum model length is 43808. Try increasing `gpu_memory_utilization` or decreasing "
        "`max_model_len`."
    )
    answer = diagnose(text)
    assert answer.primary == "max_model_len_exceeds_pool"
    assert "2.98 GiB short" in answer.findings[0].why
    assert "43808" in answer.findings[0].remedy[0]
    assert "lower bound" in answer.findings[0].remedy[0]


def test_v1_prints_only_the_rest() -> None:
    text = (
        "GPU 0: NVIDIA GeForce RTX 3090\n"
        "(EngineCore_DP0 pid=7) INFO 09-20 10:01:31 [gpu_model_runner.py:2653] Model loading took "
        "22.40 GiB and 11.8 "
        "seconds\n(EngineCore_DP0 pid=7) INFO 09-20 10:01:50 [gpu_worker.py:298] Available KV cache "
        "memory: -2.10 GiB\n"
        f"(EngineCore_DP0 pid=7) ERROR 09-20 10:01:50 [core.py:708] {REFUSED}"
    )
    assert diagnose(text).primary == "weights_plus_fixed_too_large"


def test_graphs_of_an_absurd_size() -> None:
    text = (
        "INFO 04-20 10:00:00 [gpu_model_runner.py:5800] Model loading took 11.90 GiB memory and 5.5 seconds\n"
        "INFO 04-20 10:00:20 [gpu_model_runner.py:5900] Estimated CUDA graph memory: 96.20 GiB total\n"
        f"INFO 04-20 10:00:20 [gpu_worker.py:430] Available KV cache memory: -88.00 GiB\n{REFUSED}"
    )
    assert diagnose(text).primary == "engine_accounting_bug"


def test_releases_that_charge_others_to_the_budget() -> None:
    text = (
        "INFO 11-25 10:00:00 model_runner.py:1077] Loading model weights took 7.20 GB\n"
        "INFO 11-25 10:00:03 worker.py:232] Memory profiling results: total_gpu_memory=79.10GiB "
        "initial_memory_usage=31.00GiB peak_torch_memory=9.10GiB memory_usage_post_profile=38.60GiB "
        f"non_torch_memory=31.20GiB kv_cache_size=-16.57GiB gpu_memory_utilization=0.30\n{REFUSED}"
    )
    assert diagnose(text).primary == "engine_accounting_bug"
    full = text.replace("initial_memory_usage=31.00GiB", "initial_memory_usage=70.00GiB")
    assert diagnose(full.replace("non_torch_memory=31.20GiB", "non_torch_memory=70.20GiB")).primary == (
        "other_process_on_gpu"
    )


@pytest.mark.parametrize(
    ("now", "cause"), [(40137523200, "other_process_on_gpu"), (31480217600, "engine_accounting_bug")]
)
def test_the_assertion_of_the_profiler(now: int, cause: str) -> None:
    answer = diagnose(
        "AssertionError: Error in memory profiling. Initial free memory 31480217600, current free "
        f"memory {now}. This "
        "happens when the GPU memory was not properly cleaned up before initializing the vLLM instance."
    )
    assert answer.primary == cause


def test_load_failed_without_numbers_blames_the_weights_and_judges_the_advice() -> None:
    answer = diagnose(
        "(EngineCore pid=3) ERROR 12-01 10:00:00 [gpu_model_runner.py:3500] Failed to load model - "
        "not enough GPU memory. "
        "Try lowering --gpu-memory-utilization to free memory for weights, increasing --tensor-parallel-size"
    )
    assert answer.primary == "weights_plus_fixed_too_large"
    assert "does not help" in answer.findings[0].why


def test_settings_are_read_from_every_form() -> None:
    forms = (
        "vllm serve acme/m --gpu-memory-utilization 0.93 --max-model-len 8192 --max-num-seqs 64",
        "INFO 01-01 00:00:00 [utils.py:1] non-default args: {'model': 'acme/m', 'max_model_len': "
        "8192, 'max_num_seqs': 64, "
        "'gpu_memory_utilization': 0.93}",
        "INFO 01-01 00:00:00 api_server.py:2] args: Namespace(model='acme/m', max_model_len=8192, "
        "gpu_memory_utilization=0.93, max_num_seqs=64)",
        'llm = LLM(model="acme/m", max_model_len=8192, gpu_memory_utilization=0.93, max_num_seqs=64)',
    )
    for form in forms:
        config = first(form, "config")
        assert config["gpu_memory_utilization"] == 0.93, form
        assert (config["max_model_len"], config["max_num_seqs"]) == (8192, 64), form


def test_advice_is_no_setting() -> None:
    answer = diagnose(REFUSED)
    assert answer.primary == "unknown"
    assert "config" not in answer.facts
    assert roles(answer) == {"unknown": "primary"}


def test_graphs_of_an_absurd_size_without_any_other_number() -> None:
    answer = diagnose(
        f"INFO 04-20 10:00:20 [runner.py:5900] Estimated CUDA graph memory: 71.40 GiB total\n{REFUSED}"
    )
    assert answer.primary == "engine_accounting_bug"
