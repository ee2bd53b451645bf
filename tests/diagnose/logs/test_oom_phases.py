"""The same full card, in each phase: the frames of the traceback name the cause."""

from __future__ import annotations

import pytest

from tests.diagnose.logs.reading import diagnose, finding, oom, roles, traceback

FULL = oom("96.00 MiB", 39.38, "44.00 MiB", 38.4, "30.00 MiB", process=39.2)
LARGE = oom("3.10 GiB", 39.38, "1.90 GiB", 36.2, "200.00 MiB", process=37.4)
PLAIN = "/opt/venv/lib/python3.12/site-packages"
HF = f"{PLAIN}/transformers"


@pytest.mark.parametrize(
    ("frames", "message", "cause"),
    [
        (("load_model", "create_weights"), FULL, "weights_plus_fixed_too_large"),
        (("load_model", "process_weights_after_loading"), LARGE, "loading_peak"),
        (("load_model", "process_weights_after_loading", "gptq_marlin_repack"), FULL, "loading_peak"),
        (("determine_available_memory", "profile_run", "_dummy_run"), LARGE, "startup_activation_peak"),
        (
            ("determine_num_available_blocks", "profile_run", "execute_model"),
            LARGE,
            "startup_activation_peak",
        ),
        (("profile_run", "get_multimodal_embeddings"), LARGE, "multimodal_profiling"),
        (
            ("profile_run", f"{PLAIN}/vllm/model_executor/models/siglip.py:forward"),
            LARGE,
            "multimodal_profiling",
        ),
        (("profile_run", f"{PLAIN}/x/moe.py:allocate_dynamic_workspace"), LARGE, "fixed_workspace_missized"),
        (("compile_or_warm_up_model", "capture_model", "_dummy_run"), FULL, "cudagraph_memory"),
        (("initialize_cache", "warm_up_model", "capture_model"), FULL, "cudagraph_memory"),
        (("compile_or_warm_up_model", "_dummy_sampler_run"), FULL, "gpu_memory_utilization_too_high"),
        (("initialize_from_config", "initialize_kv_cache_tensors"), FULL, "gpu_memory_utilization_too_high"),
        (("run_busy_loop", "execute_model"), FULL, "gpu_memory_utilization_too_high"),
        (("run_busy_loop", "execute_model"), LARGE, "runtime_activation_spike"),
        (
            ("execute_model", "_get_prompt_logprobs_dict", "compute_logprobs"),
            LARGE,
            "runtime_activation_spike",
        ),
        (("execute_model", "_execute_mm_encoder"), FULL, "runtime_activation_spike"),
        (
            ("init_device", "init_worker_distributed_environment", "init_custom_ar"),
            FULL,
            "nccl_or_runtime_buffers",
        ),
        ((f"{PLAIN}/vllm/device_allocator/cumem.py:wake_up", "create_and_map"), FULL, "other_process_on_gpu"),
        (
            (f"{HF}/modeling_utils.py:from_pretrained", f"{PLAIN}/torch/nn/modules/module.py:convert"),
            FULL,
            "weights_plus_fixed_too_large",
        ),
        ((f"{HF}/generation/utils.py:generate", f"{HF}/cache_utils.py:update"), FULL, "logical_kv_too_large"),
        (
            (
                f"{HF}/generation/utils.py:generate",
                f"{HF}/models/qwen2/modeling_qwen2.py:eager_attention_forward",
            ),
            LARGE,
            "runtime_activation_spike",
        ),
        (
            (f"{PLAIN}/exllamav2/cache.py:create_state_tensors",),
            FULL,
            "reservation_policy_waste",
        ),
        (
            (f"{HF}/trainer.py:training_step", f"{PLAIN}/torch/_tensor.py:backward"),
            FULL,
            "capacity_exhausted",
        ),
    ],
)
def test_the_traceback_tells(frames: tuple[str, ...], message: str, cause: str) -> None:
    answer = diagnose(f"{traceback(*frames)}\n{message}\n")
    assert answer.primary == cause
    assert answer.findings[0].evidence[0].line == message_line(frames)
    for found in answer.findings:
        if found.role != "ruled_out":
            assert found.why
            assert found.evidence
            assert found.check_first
            assert found.remedy
            assert found.would_change_my_mind


def message_line(frames: tuple[str, ...]) -> int:
    return 2 + 2 * len(frames)


@pytest.mark.parametrize(
    ("above", "cause"),
    [
        (
            "INFO 03-01 10:00:00 [gpu_model_runner.py:1500] Starting to load model acme/model-13b...",
            "weights_plus_fixed_too_large",
        ),
        (
            "INFO 03-01 10:00:00 [gpu_model_runner.py:1600] Model loading took 24.40 GiB and 8.1 seconds",
            "startup_activation_peak",
        ),
        (
            "INFO 03-01 10:00:00 [gpu_model_runner.py:1600] Model loading took 36.10 GiB and 8.1 seconds",
            "weights_plus_fixed_too_large",
        ),
        (
            "INFO 03-01 10:00:00 model_runner.py:1400] Capturing the model for CUDA graphs. This may "
            "lead to unexpected "
            "consequences if the model is not static.",
            "cudagraph_memory",
        ),
        (
            "(Worker pid=9) ERROR 03-01 10:00:00 [worker_base.py:600] Error executing method "
            "'load_model'. This might cause "
            "deadlock in distributed execution.",
            "weights_plus_fixed_too_large",
        ),
    ],
)
def test_without_frames_the_lines_above_tell(above: str, cause: str) -> None:
    assert diagnose(f"{above}\n{FULL}\n").primary == cause


def test_a_message_alone_is_no_more_than_a_full_card() -> None:
    answer = diagnose(FULL)
    assert answer.primary == "capacity_exhausted"
    assert answer.findings[0].confidence == "suspected"
    assert roles(answer)["allocator_fragmentation"] == "ruled_out"


def test_a_model_that_is_larger_than_the_card_by_its_name() -> None:
    answer = diagnose(f"vllm serve acme/tower-72b-chat --tensor-parallel-size 2\n{FULL}\n")
    assert answer.primary == "weights_plus_fixed_too_large"
    assert "72 billion" in answer.findings[0].why


def test_frames_of_one_line_as_a_collector_writes_them() -> None:
    one = traceback("execute_model", "_get_prompt_logprobs_dict").replace("\n", " ")
    assert diagnose(f"{one}\n{LARGE}\n").primary == "runtime_activation_spike"


def test_the_echo_in_another_process_lends_its_frames() -> None:
    echo = traceback("determine_num_available_blocks", "profile_run", "_process_image_input")
    prefix = "(VllmWorkerProcess pid=81) ERROR 03-01 10:00:00 [multiproc_worker_utils.py:238] "
    answer = diagnose(f"{prefix}{LARGE}\n{echo}\n{LARGE}\n")
    assert answer.primary == "multimodal_profiling"


def test_others_decide_before_any_phase() -> None:
    held = " Process 811 has 14.00 GiB memory in use."
    message = oom("512.00 MiB", 39.38, "300.00 MiB", 24.0, "20.00 MiB", process=24.9, others=held)
    answer = diagnose(f"{traceback('determine_available_memory', 'profile_run')}\n{message}\n")
    assert answer.primary == "other_process_on_gpu"
    assert "14.2 GiB" in answer.findings[0].why
    assert roles(answer)["allocator_fragmentation"] == "ruled_out"


def test_a_display_does_not_explain_weights_that_do_not_fit() -> None:
    held = " Process 811 has 600.00 MiB memory in use."
    message = oom("512.00 MiB", 23.64, "300.00 MiB", 22.0, "20.00 MiB", process=22.7, others=held)
    assert diagnose(f"{traceback('load_model')}\n{message}\n").primary == "weights_plus_fixed_too_large"


def test_more_than_the_card_can_never_fit() -> None:
    huge = oom("96.00 GiB", 39.38, "20.00 GiB", 18.0, "300.00 MiB", process=19.0)
    answer = diagnose(huge)
    assert answer.primary == "runtime_activation_spike"
    assert roles(answer)["capacity_exhausted"] == "ruled_out"
    assert diagnose(f"{traceback('profile_run')}\n{huge}\n").primary == "startup_activation_peak"


def test_free_above_the_request_is_a_limit_of_the_driver() -> None:
    answer = diagnose(oom("20.00 MiB", 5.99, "3.40 GiB", 1.1, "40.00 MiB"))
    assert answer.primary == "driver_limit_not_capacity"
    assert roles(answer)["capacity_exhausted"] == "ruled_out"


def test_an_apu_that_shows_its_carve_out() -> None:
    text = oom("18.00 GiB", 15.24, "15.10 GiB", 0.0, "0 bytes").replace("CUDA out", "HIP out")
    assert diagnose(text).primary == "driver_limit_not_capacity"


def test_the_flags_are_those_of_the_engine() -> None:
    frames = traceback("event_loop_normal", "forward_batch_generation", package=f"{PLAIN}/sglang/srt")
    answer = diagnose(f"{frames}\n{FULL}\n")
    texts = " ".join(t for f in answer.findings for t in f.remedy)
    assert "--gpu-memory-utilization" not in texts


def test_fragmentation_behind_a_full_card_is_secondary() -> None:
    message = oom("120.00 MiB", 39.38, "6.00 MiB", 38.2, "500.00 MiB", process=39.3)
    answer = diagnose(f"{traceback('run_busy_loop', 'execute_model')}\n{message}\n")
    assert answer.primary == "gpu_memory_utilization_too_high"
    assert finding(answer, "allocator_fragmentation").role == "secondary"


def test_who_holds_most_of_the_card_is_the_root_of_a_request_that_pieces_decide() -> None:
    message = oom("22.00 MiB", 60.97, "19.79 MiB", 10.24, "420.00 MiB")
    answer = diagnose(message)
    assert answer.primary == "other_process_on_gpu"
    assert roles(answer)["allocator_fragmentation"] == "secondary"


def test_an_exception_that_is_printed_before_its_traceback() -> None:
    prefix = "ERROR 03-05 07:15:39 [engine.py:387] "
    frames = traceback("run_mp_engine", "determine_num_available_blocks", "profile_run")
    below = "\n".join(prefix + line for line in frames.splitlines())
    assert diagnose(f"{prefix}{LARGE}\n{below}\n").primary == "startup_activation_peak"


def test_boxed_frames() -> None:
    box = "│ /opt/venv/lib/python3.11/site-packages/vllm/worker/model_runner.py:940 in profile_run          │"
    assert diagnose(f"{box}\n{LARGE}\n").primary == "startup_activation_peak"


def test_unified_memory_counts_the_page_cache() -> None:
    answer = diagnose(
        "ValueError: Free memory on device cuda:0 (58.40/121.69 GiB) on startup is less than desired "
        "GPU memory "
        "utilization (0.8, 97.35 GiB). Decrease GPU memory utilization or reduce GPU memory used by "
        "other processes."
    )
    assert answer.primary == "engine_accounting_bug"
    assert answer.findings[0].confidence == "suspected"


def test_what_an_engine_holds_outside_pytorch_is_not_blamed_on_others() -> None:
    message = oom("1.47 GiB", 79.11, "1.25 GiB", 70.03, "22.00 MiB").replace(
        " Of the allocated",
        " Including non-PyTorch memory, this process has 0 bytes memory in use. Of the allocated",
    )
    answer = diagnose(f"{traceback('compile_or_warm_up_model', '_dummy_sampler_run')}\n{message}")
    assert answer.primary == "gpu_memory_utilization_too_high"
