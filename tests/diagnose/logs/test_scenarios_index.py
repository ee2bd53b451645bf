"""Which test holds which reported situation, S1 to S34; a name that no longer exists fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
HERE = "diagnose/logs"
PLAN = "plan/test_goldens.py"
SCENARIOS: dict[str, tuple[str, ...]] = {
    "S1": (
        f"{PLAN}::test_s1_a_7b_on_an_8_gib_card",
        f"{HERE}/test_vllm_start.py::test_s1_a_budget_that_is_too_small_for_the_card",
    ),
    "S2": (f"{HERE}/test_vllm_start.py::test_s2_context_over_the_pool_in_blocks",),
    "S3": (f"{HERE}/test_vllm_start.py::test_s3_the_activations_moved_not_the_cache",),
    "S4": (f"{HERE}/test_vllm_start.py::test_s4_memory_that_is_already_held",),
    "S5": (f"{HERE}/test_vllm_start.py::test_s5_the_sampler_warm_up",),
    "S6": (f"{HERE}/test_vllm_start.py::test_s6_raising_the_utilisation_cannot_help",),
    "S7": (
        f"{HERE}/test_sglang.py::test_init_with_room_on_the_card_is_a_fraction_too_low_and_is_raised",
        f"{HERE}/test_sglang.py::test_run_time_out_of_memory_lowers_the_fraction",
    ),
    "S8": (
        f"{HERE}/test_sglang.py::test_a_pool_of_a_few_tokens_beside_gigabytes_free_is_a_defect_not_a_setting",
    ),
    "S9": (f"{HERE}/test_vllm_start.py::test_s9_worst_case_images",),
    "S10": (f"{HERE}/test_vllm_serve.py::test_s10_fragmentation_decides_but_the_budget_is_the_root",),
    "S11": (f"{HERE}/test_host.py::test_growth_and_a_kill_are_a_leak",),
    "S12": (f"{HERE}/test_vllm_serve.py::test_s12_the_first_cause_and_not_its_echoes",),
    "S13": (f"{HERE}/test_gpu_driver.py::test_a_collective_timeout_with_nvml_gone_is_hardware",),
    "S14": (
        f"{HERE}/test_other_engines.py::test_tgi_warm_up",
        f"{HERE}/test_scenarios.py::test_s14_the_token_budget_is_a_bound_and_no_batch_that_was_tried",
    ),
    "S15": (
        f"{PLAN}::test_s15_what_maximum_concurrency_means",
        f"{HERE}/test_vllm_serve.py::test_s15_the_worst_case_is_said_as_such",
    ),
    "S16": (f"{HERE}/test_vllm_serve.py::test_s16_two_lines_that_contradict_each_other",),
    "S17": (f"{HERE}/test_scenarios.py::test_s17_two_requests_fill_the_pool_of_a_model_beside_the_log",),
    "S18": (f"{HERE}/test_vllm_serve.py::test_s18_the_count_is_in_the_line_not_the_lines",),
    "S19": (
        f"{HERE}/test_pool.py::test_full_without_tokens_is_told_as_stuck",
        f"{HERE}/test_vllm_serve.py::test_s19_full_and_streaming_is_not_stuck",
    ),
    "S20": (f"{HERE}/test_pool.py::test_usage_that_stays_with_nothing_running_is_a_leak",),
    "S21": (f"{HERE}/test_scenarios.py::test_s21_the_advice_names_the_cancel_probe",),
    "S22": (
        f"{HERE}/test_llamacpp.py::test_the_recording_of_a_divided_context",
        f"{HERE}/test_scenarios.py::test_s22_four_slots_that_each_advertise_the_whole_pool",
    ),
    "S23": (f"{HERE}/test_sglang.py::test_a_queue_with_a_pool_mostly_free_is_admission",),
    "S24": (
        f"{PLAN}::test_s24_fp8_is_twice_the_capacity_and_promises_no_speed",
        f"{HERE}/test_vllm_serve.py::test_s24_no_finding_promises_speed_of_a_smaller_cache",
    ),
    "S25": (f"{HERE}/test_vllm_serve.py::test_s25_lora_buffers_above_the_rank_in_use",),
    "S26": (f"{HERE}/test_other_engines.py::test_a_block_larger_than_the_prefix",),
    "S27": (f"{HERE}/test_other_engines.py::test_a_block_larger_than_the_prefix",),
    "S28": (f"{HERE}/test_scenarios.py::test_s28_units_that_no_short_prompt_reaches",),
    "S29": (
        f"{HERE}/test_scenarios.py::test_s29_the_printed_rate_is_a_window_and_the_counters_tell_the_run",
    ),
    "S30": (f"{HERE}/test_llamacpp.py::test_prompts_that_diverge_at_the_same_token",),
    "S31": (
        f"{HERE}/test_scenarios.py::test_s31_replicas_share_what_one_cache_would_hit",
        f"{HERE}/test_scenarios.py::test_s31_with_the_routers_word_it_is_a_finding_with_the_numbers",
    ),
    "S32": (f"{HERE}/test_llamacpp.py::test_memory_that_cannot_rewind_is_the_models",),
    "S33": (f"{HERE}/test_layers.py::test_s33_an_offload_that_finds_what_the_gpu_holds",),
    "S34": (f"{HERE}/test_other_engines.py::test_a_hit_rate_that_falls_while_the_pool_fills",),
}


def test_every_situation_has_a_test() -> None:
    assert list(SCENARIOS) == [f"S{n}" for n in range(1, 35)]
    assert all(SCENARIOS.values())


@pytest.mark.parametrize("name", sorted({t for tests in SCENARIOS.values() for t in tests}))
def test_the_named_test_exists(name: str) -> None:
    path, _, function = name.partition("::")
    text = (TESTS / path).read_text(encoding="utf-8")
    assert re.search(rf"^def {function}\(", text, re.MULTILINE)
