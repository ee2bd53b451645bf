"""Which test holds which reported situation, S1 to S37 and some beyond; a name that is gone fails."""

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
    "S35": (
        "summary/test_sweep.py::test_s35_offered_above_served",
        "summary/test_sweep_simulated.py::test_the_interval_holds_the_capacity",
    ),
    "S36": ("summary/test_sweep.py::test_s36_knee",),
    "S37": ("summary/test_sweep.py::test_s37_interval",),
    "S41": ("diagnose/test_live_rules.py::test_a_pegged_process_beside_an_idle_device_is_suspected",),
    "S43": (
        "summary/test_latency.py::test_instants_become_the_latencies_of_the_definitions",
        "load/test_worker.py::test_open_loop_without_a_free_user_is_late_and_counts_what_it_never_sent",
    ),
    "S44": (
        "e2e/test_run.py::test_a_distinct_run_that_meets_a_warm_cache_is_invalid",
        "diagnose/test_validity.py::test_more_hits_than_the_prompts_allow_is_a_warm_cache",
    ),
    "S45": (
        "load/test_worker.py::test_open_loop_without_a_free_user_is_late_and_counts_what_it_never_sent",
        "faults/test_validity_real.py::test_f25_a_client_at_a_full_core_is_out_of_cpu_or_late",
    ),
    "S46": (
        "load/test_stream_traps.py::test_several_tokens_in_a_chunk",
        "gates/test_judge.py::test_tpot_counts_tokens_not_chunks_and_says_what_is_missing",
    ),
    "S47": (
        "load/test_stream_traps.py::test_role_chunk",
        "faults/test_stream_faults.py::test_f23_reasoning_then_answer",
        "summary/test_latency.py::test_reasoning_only_stream_has_ttft_and_no_ttfo",
    ),
    "S49": (
        "observe/test_engines.py::test_a_rename_is_said_with_the_name_that_a_dashboard_may_still_ask_for",
        "observe/test_aggregate.py::test_shares_are_averaged_and_counts_summed_never_the_other_way",
    ),
    "S50": (
        "compare/test_compare.py::test_a_real_difference_is_shown_with_an_interval_that_holds_it",
        "compare/test_compare.py::test_other_work_is_refused_by_the_keys_that_differ",
        "compare/test_compare.py::test_settings_come_with_both_values",
    ),
    "S51": (f"{PLAN}::test_s51_how_many_users_on_one_a100",),
    "S53": (f"{PLAN}::test_s53_70b_is_not_80_gb_but_21_5",),
    "S57": (f"{PLAN}::test_s57_price_of_a_million_tokens",),
}
LATER = (41, 43, 44, 45, 46, 47, 49, 50, 51, 53, 57)
"""Beyond S37: the situations whose answer a test holds so far."""


def test_every_situation_has_a_test() -> None:
    assert list(SCENARIOS) == [f"S{n}" for n in (*range(1, 38), *LATER)]
    assert all(SCENARIOS.values())


@pytest.mark.parametrize("name", sorted({t for tests in SCENARIOS.values() for t in tests}))
def test_the_named_test_exists(name: str) -> None:
    path, _, function = name.partition("::")
    text = (TESTS / path).read_text(encoding="utf-8")
    assert re.search(rf"^def {function}\(", text, re.MULTILINE)
