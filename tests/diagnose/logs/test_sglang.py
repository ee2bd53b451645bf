"""SGLang: the phase decides, its advice is judged, its books are checked."""

from __future__ import annotations

import pytest

from tests.diagnose.logs.enginekit import diagnosis, primary, sglang_decode

NO_ROOM = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."


def _loaded(free: float, weights: float) -> str:
    return (
        f"[2026-03-04 11:59:00 TP0] Load weight end. type=SomeForCausalLM, dtype=torch.bfloat16, avail "
        f"mem={free} GB, mem usage={weights} GB."
    )


def _args(fraction: float) -> str:
    return (
        f"[2026-03-04 11:58:00] server_args=ServerArgs(model_path='m', mem_fraction_static={fraction}, "
        f"tp_size=1)"
    )


def test_init_with_room_on_the_card_is_a_fraction_too_low_and_is_raised() -> None:
    """S7: 60 GB of weights on a card of 80 GB."""
    found = primary("\n".join((_args(0.7), _loaded(19.2, 59.9), NO_ROOM)))
    assert found.cause == "gpu_memory_utilization_too_low"
    assert "Init, not run time" in found.why
    assert found.remedy[0].startswith("raise --mem-fraction-static")


def test_init_without_room_on_the_card_is_the_weights_whatever_the_advice_says() -> None:
    found = primary("\n".join((_args(0.9), _loaded(2.1, 21.2), NO_ROOM, "Killed")))
    assert (found.cause, found.confidence) == ("weights_plus_fixed_too_large", "likely")
    assert found.symptom == "startup_full"


def test_a_negative_profile_is_the_weights() -> None:
    text = (
        "[2026-03-04 12:00:00 TP3] max_total_tokens=65536 is larger than the profiled value -12345. Use it."
    )
    assert primary(text).cause == "weights_plus_fixed_too_large"


def test_run_time_out_of_memory_lowers_the_fraction() -> None:
    oom = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 384.00 MiB. GPU 0 has a total "
        "capacity of 79.10 GiB of which 201.25 MiB is free. Process 9 has 78.89 GiB memory in use. Of the "
        "allocated memory 76.70 GiB is allocated by PyTorch, and 150.00 MiB is reserved by PyTorch but "
        "unallocated."
    )
    text = "\n".join(
        (
            _args(0.93),
            _loaded(47.0, 31.0),
            "[2026-03-04 12:00:00] The server is fired up and ready to roll!",
            *(sglang_decode(n, 20, 0, 0.4) for n in range(3)),
            "[2026-03-04 12:01:00 TP0] Scheduler hit an exception: Traceback (most recent call last):",
            '  File "/srv/sglang/srt/managers/scheduler.py", line 2303, in run_scheduler_process',
            oom,
            "[2026-03-04 12:01:01] Received sigquit from a child process. It usually means the child failed.",
        )
    )
    assert primary(text).cause in {"gpu_memory_utilization_too_high", "runtime_activation_spike"}


@pytest.mark.parametrize(
    ("inner", "cause"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", "cudagraph_memory"),
        ("Ninja build failed: fatal error: cuda_fp8.h: No such file", "not_memory"),
    ],
)
def test_the_inner_text_of_a_failed_capture_decides(inner: str, cause: str) -> None:
    text = (
        f"[2026-03-04 12:00:00 TP0] Capture cuda graph begin.\nException: Capture cuda graph failed: {inner}"
    )
    assert primary(text).cause == cause


def test_pages_run_out_before_tokens_do() -> None:
    text = (
        "[2026-03-04 12:00:00] server_args=ServerArgs(model_path='m', page_size=64)\nRuntimeError: Decode "
        "out of memory. Try to lower your batch size.\nTry to allocate 148 tokens.\nAvaliable tokens: 2048\n"
    )
    found = primary(text)
    assert found.cause == "reservation_policy_waste"
    assert "148" in found.why
    assert "32 pages" in found.why
    assert "kv_pool_pressure" in {f.cause for f in diagnosis(text).findings if f.role == "ruled_out"}


def test_request_slots_are_not_bytes() -> None:
    text = (
        "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for "
        "--max-running-requests."
    )
    assert primary(text).cause == "request_slot_limit"


def test_missing_tokens_are_a_leak_and_too_many_are_a_double_free() -> None:
    form = (
        "ValueError: token_to_kv_pool_allocator memory leak detected! self.max_total_num_tokens=100000, "
        "available_size={}, evictable_size=60000, protected_size=0"
    )
    missing = primary(form.format(39_990))
    assert (missing.cause, missing.confidence) == ("kv_pool_leak", "certain")
    assert "10 tokens of 100,000" in missing.why
    assert primary(form.format(40_005)).cause == "engine_accounting_bug"


def test_a_kill_after_a_failed_check_is_not_the_cause() -> None:
    text = (
        "ValueError: token_to_kv_pool_allocator memory leak detected! self.max_total_num_tokens=5000, "
        "available_size=4000, evictable_size=900, protected_size=0\n[2026-03-04 12:00:00] Received sigquit "
        "from a child process. It usually means the child failed.\n./run.sh: line 9: 4711 Killed     python "
        "-m sglang.launch_server --model-path m"
    )
    assert primary(text).cause == "kv_pool_leak"


def test_a_pool_of_a_few_tokens_beside_gigabytes_free_is_a_defect_not_a_setting() -> None:
    """S8."""
    text = (
        "[2026-03-04 12:00:00 TP0] KV Cache is allocated. #tokens: 1741, K size: 0.04 GB, V size: 0.04 "
        "GB\n[2026-03-04 12:00:09 TP0] max_total_num_tokens=1741, chunked_prefill_size=4096, "
        "max_prefill_tokens=16384, max_running_requests=32, context_len=65536, available_gpu_mem=46.90 GB\n"
    )
    found = primary(text)
    assert found.cause == "engine_accounting_bug"
    assert "1,741" in found.why
    assert "upgrade" in found.why
    assert found.remedy[0] == "upgrade"


def test_a_queue_with_a_pool_mostly_free_is_admission() -> None:
    """S23: token usage 0.19 and a long queue."""
    found = primary("\n".join(sglang_decode(n, 18, 120 - n, 0.19) for n in range(5)))
    assert found.cause == "queue_limit"
    assert "max_new_tokens" in found.why


def test_a_watchdog_that_kills_is_a_hang_not_the_hosts_memory() -> None:
    text = (
        "[2026-03-04 12:00:00 TP4] Watchdog timeout (self.watchdog_timeout=300)\n"
        "[2026-03-04 12:00:05] Received sigquit from a child proces. It usually means the child "
        "failed.\nKilled\n"
    )
    found = primary(text)
    assert (found.cause, found.confidence) == ("not_memory", "suspected")
    assert "300 s" in found.why


def test_two_requests_that_fill_the_pool_and_are_retracted() -> None:
    retracted = (
        "[2026-03-04 12:00:04 TP0] Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: "
        "0.10 -> 0.94"
    )
    text = "\n".join((*(sglang_decode(n, 2, 0, 1.0, tps=11.0) for n in range(4)), retracted))
    assert primary(text).cause == "logical_kv_too_large"


def test_high_usage_and_one_retraction_are_how_sglang_is_meant_to_run() -> None:
    text = "\n".join(
        (
            *(sglang_decode(n, 40, 0, 0.95) for n in range(3)),
            "[2026-03-04 12:00:04 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1, "
            "#new_token_ratio: 0.40 -> 0.99",
            *(sglang_decode(n, 39, 0, 0.93) for n in range(5, 8)),
        )
    )
    assert diagnosis(text).primary == "healthy_baseline"
