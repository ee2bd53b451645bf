"""llama.cpp and Ollama: which buffer failed, and what serving ran into."""

from __future__ import annotations

import pytest

from tests.diagnose.logs.enginekit import diagnosis, primary

LOADING = "load_tensors: loading model tensors, this can take a while... (mmap = true)\n"


def _failed(mib: float, device: int = 0) -> str:
    return (
        f"ggml_backend_cuda_buffer_type_alloc_buffer: allocating {mib:.2f} MiB on device {device}: "
        f"cudaMalloc failed: out of memory\n"
    )


def test_weights_that_do_not_fit() -> None:
    text = (
        "  - CUDA0   : SOME GPU (24123 MiB, 23755 MiB free)\n"
        + LOADING
        + _failed(40_100)
        + "alloc_tensor_range: failed to allocate CUDA0 buffer of size 42047897600\n"
        + "llama_model_load: error loading model: unable to allocate CUDA0 buffer\n"
    )
    found = primary(text)
    assert (found.cause, found.confidence) == ("weights_plus_fixed_too_large", "certain")
    assert "39.2 GiB" in found.why
    assert "23.2 GiB" in found.why


def test_free_memory_above_the_request_is_the_driver_not_capacity() -> None:
    text = (
        "  - ROCm0   : SOME APU (98304 MiB, 97000 MiB free)\n"
        + LOADING
        + _failed(61_000)
        + "alloc_tensor_range: failed to allocate ROCm0 buffer of size 63963136000\n"
        + "llama_model_load: error loading model: unable to allocate ROCm0 buffer\n"
    )
    found = primary(text)
    assert (found.cause, found.confidence) == ("driver_limit_not_capacity", "suspected")


@pytest.mark.parametrize(
    ("slots", "cause"), [(1, "max_model_len_exceeds_pool"), (4, "reservation_policy_waste")]
)
def test_a_kv_buffer_is_reserved_whole_at_start(slots: int, cause: str) -> None:
    text = (
        f"llama_context: n_seq_max     = {slots}\nllama_context: n_ctx         = 131072\n"
        + _failed(20_480)
        + "llama_kv_cache_init: failed to allocate buffer for kv cache\n"
    )
    found = primary(text)
    assert found.cause == cause
    assert "131,072" in found.why


def test_a_compute_buffer_is_the_start_up_peak() -> None:
    text = (
        "llama_context: KV self size  = 5120.00 MiB, K (f16): 2560.00 MiB, V (f16): 2560.00 MiB\n"
        + _failed(9_866, 1)
        + "ggml_gallocr_reserve_n: failed to allocate CUDA1 buffer of size 10345253120\n"
        + "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers\n"
    )
    found = primary(text)
    assert found.cause == "startup_activation_peak"
    assert "5.00 GiB" in found.why


def test_a_retry_that_works_is_no_death() -> None:
    text = (
        _failed(51_700, 1)
        + "ggml_gallocr_reserve_n_impl: failed to allocate CUDA1 buffer of size 54211379200\n"
        + "sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n"
        + "main: server is listening on http://127.0.0.1:8080 - starting the main loop\n"
    )
    assert not [f for f in diagnosis(text).findings if f.confidence == "certain"]


def test_a_limit_of_one_allocation_is_the_drivers() -> None:
    text = (
        "ggml_vulkan: Device memory allocation of size 2266360064 failed.\nggml_vulkan: Requested "
        "buffer size exceeds device memory allocation limit: "
        "ErrorOutOfDeviceMemory\nggml_gallocr_reserve_n: failed to allocate Vulkan0 buffer of size "
        "2266360064\n"
    )
    found = primary(text)
    assert (found.cause, found.confidence) == ("driver_limit_not_capacity", "certain")
    assert "capacity_exhausted" in {f.cause for f in diagnosis(text).findings if f.role == "ruled_out"}


def test_a_host_buffer_is_never_told_as_the_gpus() -> None:
    text = (
        LOADING + "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 60129542144\n"
    )
    found = primary(text)
    assert found.cause == "host_memory_exhausted"
    assert "CUDA" not in found.why


def test_the_recording_of_a_divided_context() -> None:
    """S22; lines of a real llama-server with -c 2048 -np 4."""
    text = """\
0.00.988.609 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 512, kv_unified = 'false'
0.00.997.020 I srv  llama_server: model loaded
0.42.444.157 E srv    send_error: task id = 27, error: request (901 tokens) exceeds the \
available context size (512 tokens), try increasing it
0.42.444.172 I slot      release: id  1 | task 27 | stop processing: n_tokens = 0, truncated = 0
0.55.171.968 I slot      release: id  2 | task 33 | stop processing: n_tokens = 511, truncated = 1
"""
    found = diagnosis(text)
    assert found.primary == "context_limit_truncation"
    assert "901" in found.findings[0].why
    assert "2,048 tokens in all, 512 a request" in next(
        f.why for f in found.findings if f.cause == "reservation_policy_waste"
    )


def test_the_recording_of_a_unified_cache_that_ran_full() -> None:
    """S22; lines of a real llama-server with -c 1024 -np 4 and a unified cache."""
    text = """\
0.01.235.612 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 1024, kv_unified = 'true'
0.22.414.479 W decode: failed to find a memory slot for batch of size 2
0.22.414.539 W srv        decode: failed to find free space in the KV cache, retrying with smaller \
batch size, off = 623, n_batch = 1, ret = 1
0.22.414.691 E srv        decode: Context size has been exceeded. off = 623, n_batch = 1, ret = 1
0.22.414.719 E srv    send_error: task id = 5, error: Context size has been exceeded.
"""
    found = primary(text)
    assert (found.cause, found.confidence) == ("kv_pool_pressure", "certain")
    assert "4.0x oversubscribed" in found.why
    assert "4,096" in found.why


def test_a_retry_that_found_room_is_only_suspected() -> None:
    text = (
        "srv  update_slots: failed to find free space in the KV cache, retrying with smaller batch "
        "size, i = 0, n_batch = 256, ret = 1\n"
    )
    assert primary(text).confidence == "suspected"


def test_memory_that_cannot_rewind_is_the_models() -> None:
    """S32."""
    text = (
        "slot update_slots: id  2 | task 9 | forcing full prompt re-processing due to lack of cache "
        "data (likely due to SWA or hybrid/recurrent memory)\n"
    )
    found = primary(text)
    assert (found.cause, found.confidence) == ("prefix_disabled_for_model", "certain")
    assert found.symptom == "prefix_not_reused"


def test_prompts_that_diverge_at_the_same_token() -> None:
    """S30."""
    text = "\n".join(
        f"slot update_slots: id  0 | task {t} | new prompt, n_ctx_slot = 8192, n_keep = 0, task.n_tokens = "
        f"2187\nslot update_slots: id  0 | task {t} | n_tokens = 7, memory_seq_rm [7, end)"
        for t in (1, 20, 40, 60)
    )
    found = primary(text)
    assert found.cause == "prefix_layout_unstable"
    assert "token 7" in found.why


def test_ollama_truncation_with_its_numbers() -> None:
    text = (
        'time=2026-01-02T03:04:05.678Z level=WARN source=runner.go:131 msg="truncating input prompt" '
        "limit=4096 "
        "prompt=9065 keep=5 new=4096\n"
    )
    found = primary(text)
    assert found.cause == "context_limit_truncation"
    assert "9,065" in found.why
    assert "4,096" in found.why


def test_ollama_needs_more_host_memory() -> None:
    text = "Error: model requires more system memory (64.8 GiB) than is available (13.4 GiB)\n"
    found = primary(text)
    assert (found.cause, found.confidence) == ("host_memory_exhausted", "likely")
    machine = 'msg="system memory" total="15.4 GiB" free="13.4 GiB" free_swap="0 B"\n'
    never = primary(machine + text)
    assert (never.cause, never.confidence) == ("weights_plus_fixed_too_large", "suspected")
    assert "4.2 times" in never.why
    near = primary(text.replace("64.8", "17.3"))
    assert (near.cause, near.confidence) == ("host_memory_exhausted", "likely")
    assert "CUDA" not in near.why


def test_ollama_within_the_machines_total_is_other_programs_memory() -> None:
    text = (
        'time=2026-02-01T08:00:00Z level=WARN source=server.go:540 msg="model request too large for system" '
        'requested="21.5 GiB" available="4.1 GiB" total="31.2 GiB" free="4.1 GiB" swap="0 B"\n'
    )
    found = primary(text)
    assert (found.cause, found.confidence) == ("host_memory_exhausted", "likely")
    assert "31.2 GiB" in found.why


def test_perplexity_tells_a_cache_format_that_damages() -> None:
    def run(kind: str, value: float) -> str:
        return (
            f"llama_kv_cache: size =  512.00 MiB (  4096 cells,  28 layers,  1/1 seqs), K ({kind}):  "
            f"256.00 MiB, V ({kind}):  256.00 MiB\nFinal estimate: PPL = {value} +/- 0.04\n"
        )

    assert primary(run("f16", 7.52) + run("q4_0", 9410.1)).cause == "kv_quant_error"
    assert primary(run("f16", 7.520) + run("q8_0", 7.524)).cause == "kv_quant_warning_harmless"


@pytest.mark.parametrize(
    "error",
    [
        "the request exceeds the available context size. try increasing the context size",
        "context shift is disabled",
    ],
)
def test_refusals_without_numbers(error: str) -> None:
    found = primary(f"srv    send_error: task id = 20, error: {error}\n")
    assert (found.cause, found.confidence) == ("context_limit_truncation", "likely")
