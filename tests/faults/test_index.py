"""Which test holds which fault (F1-F29, F34-F38, F41); a name that no longer exists fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TRANSPORT = "faults/test_transport_faults.py"
STREAM = "faults/test_stream_faults.py"
RUNS = "faults/test_runs.py"
REAL = "faults/test_validity_real.py"
GUARDS = "gates/test_guards.py"
TARGET = "cli/test_target.py"
FAULTS: dict[str, tuple[str, ...]] = {
    "F1": (f"{TARGET}::test_f1_connection_refused", f"{TRANSPORT}::test_refused_connection"),
    "F2": (f"{TARGET}::test_a_name_that_does_not_resolve", f"{TRANSPORT}::test_unknown_name"),
    "F3": (
        "faults/test_tls_faults.py::test_f3_what_is_wrong_with_a_certificate_is_told_apart",
        "faults/test_tls_faults.py::test_insecure_accepts_any_certificate",
        "faults/test_tls_faults.py::test_f3_insecure_is_recorded_in_the_run",
    ),
    "F4": (f"{TRANSPORT}::test_f4_reset_before_headers",),
    "F5": (f"{TRANSPORT}::test_f5_reset_mid_stream_keeps_the_partial_tokens",),
    "F6": (
        f"{TRANSPORT}::test_f6_clean_end_without_finish_is_truncated",
        f"{TRANSPORT}::test_f6_half_an_event_at_the_end_is_truncated_and_not_a_token",
    ),
    "F7": (
        f"{TRANSPORT}::test_f7_hang_before_the_first_byte",
        f"{TRANSPORT}::test_f7_a_role_chunk_or_a_comment_is_no_first_token",
        "gates/test_judge.py::test_waits_that_were_cut_short_are_not_left_out",
    ),
    "F8": (
        f"{TRANSPORT}::test_f8_hang_mid_stream",
        f"{TRANSPORT}::test_f8_comments_do_not_keep_a_stream_alive",
    ),
    "F9": (
        f"{TRANSPORT}::test_statuses",
        f"{RUNS}::test_f9_failures_are_grouped_by_status_with_a_few_samples_cut_short",
    ),
    "F10": (
        f"{RUNS}::test_f10_throttled_requests_are_counted_and_never_sent_again",
        f"{RUNS}::test_f10_a_workload_may_obey_retry_after_and_says_so",
    ),
    "F11": (
        f"{RUNS}::test_f11_a_refused_key_ends_the_run_at_once",
        "load/test_worker.py::test_a_refused_key_ends_the_load_at_once",
    ),
    "F12": (f"{TARGET}::test_an_unknown_model_lists_what_is_served",),
    "F13": (
        f"{STREAM}::test_f13_a_200_that_is_no_stream",
        f"{STREAM}::test_f13_an_error_in_the_stream",
    ),
    "F14": (f"{STREAM}::test_f14_data_that_is_no_json_object_fails_the_stream_with_its_offset",),
    "F15": (f"{STREAM}::test_f15_unicode_line_separators_are_text",),
    "F16": (f"{STREAM}::test_f16_framing",),
    "F17": (
        f"{STREAM}::test_f17_a_line_without_end_is_cut_off",
        f"{STREAM}::test_f17_the_limit_is_of_one_event_not_of_the_stream",
    ),
    "F18": (f"{TRANSPORT}::test_f18_broken_http",),
    "F19": (f"{TRANSPORT}::test_f19_endless_stream_is_stopped_by_its_chunks",),
    "F20": (
        "faults/test_server_killed.py::test_f20_a_killed_server_trips_the_breaker_with_exact_counts",
        "e2e/test_endings.py::test_a_server_that_is_killed_trips_the_breaker",
    ),
    "F21": (f"{RUNS}::test_f21_a_server_that_restarts_and_returns",),
    "F22": (
        f"{TRANSPORT}::test_f22_a_redirect_is_refused_and_not_followed",
        f"{RUNS}::test_f22_a_redirect_into_a_private_range_is_refused_before_the_load",
        f"{GUARDS}::test_f22_the_metrics_page_is_guarded_too",
    ),
    "F23": (
        f"{STREAM}::test_f23_reasoning_only",
        f"{STREAM}::test_f23_role_and_empty_chunks_are_no_tokens",
        f"{STREAM}::test_f23_tool_calls_only",
        f"{STREAM}::test_f23_usage",
        f"{STREAM}::test_f23_several_choices",
        f"{STREAM}::test_f23_chunks_of_several_tokens_and_shared_receives",
    ),
    "F24": (
        f"{TRANSPORT}::test_f24_no_descriptor_left_is_the_clients_fault",
        f"{REAL}::test_f24_no_descriptors_left_is_the_client_s_fault",
    ),
    "F25": (
        f"{REAL}::test_f25_a_starved_client_is_late",
        f"{REAL}::test_f25_a_client_at_a_full_core_is_out_of_cpu_or_late",
    ),
    "F26": ("e2e/test_run.py::test_a_distinct_run_that_meets_a_warm_cache_is_invalid",),
    "F27": (f"{REAL}::test_f27_a_clock_that_jumps_is_noted_and_no_duration_moves",),
    "F28": (f"{REAL}::test_f28_a_stopped_client_is_told_and_the_target_is_not_blamed",),
    "F29": (
        f"{RUNS}::test_f29_ipv6",
        f"{GUARDS}::test_f29_proxies_that_are_set_are_stated_without_their_values",
    ),
    "F34": (
        "e2e/test_endings.py::test_a_full_disk_ends_the_run_with_6_and_loses_nothing",
        f"{RUNS}::test_f34_a_file_that_may_not_grow_ends_the_run_with_6_and_touches_no_other",
    ),
    "F35": (
        "e2e/test_endings.py::test_a_folder_that_cannot_be_written",
        "evidence/test_rundir.py::test_a_read_only_disk_is_a_storage_error_before_anything_else",
    ),
    "F36": (
        "evidence/test_spool.py::test_any_cut_and_any_junk_leaves_the_lines_before_it",
        "evidence/test_rundir.py::test_a_cut_requests_parquet_is_a_clear_error_never_an_empty_run",
    ),
    "F37": (f"{RUNS}::test_f37_two_runs_of_one_name_at_once_have_each_their_own_directory",),
    "F38": (
        "evidence/test_rundir.py::test_a_name_that_could_escape_is_refused",
        "evidence/test_rundir.py::test_links_that_leave_the_folder_are_refused",
    ),
    "F41": (
        "load/test_distributed.py::test_f41_a_worker_that_is_killed_is_named_and_the_rest_is_kept",
        "load/test_distributed.py::test_f41_a_worker_that_loses_its_master_keeps_its_rows",
        "e2e/test_processes.py::test_f41_a_process_that_is_killed_is_named_and_all_rows_are_kept",
    ),
}


def test_every_fault_has_a_test() -> None:
    assert list(FAULTS) == [f"F{n}" for n in (*range(1, 30), *range(34, 39), 41)]
    assert all(FAULTS.values())


@pytest.mark.parametrize("name", sorted({t for tests in FAULTS.values() for t in tests}))
def test_the_named_test_exists(name: str) -> None:
    path, _, function = name.partition("::")
    text = (TESTS / path).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {function}\(", text, re.MULTILINE)
