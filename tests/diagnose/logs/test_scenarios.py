"""Situations that need more than one plain log: a model, a metrics page or several servers beside it."""

from __future__ import annotations

from typing import Any

from kvprobe.cli.diagnose_model import prediction
from kvprobe.diagnose.log_judge import diagnose_log
from kvprobe.diagnose.log_observations import observe
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Observation
from kvprobe.model.read import model_from_config
from kvprobe.observe.dialects import read_page
from kvprobe.observe.logs.from_metrics import events_of, values_of
from kvprobe.observe.logs.intake import read_text
from tests.diagnose.logs.enginekit import diagnosis, primary, vllm_stats
from tests.diagnose.logs.reading import finding

GIB = 2**30
QWQ_32B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "vocab_size": 152064,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
}


def view_of(logs: dict[str, str], pages: dict[str, str] | None = None) -> LogView:
    """Several logs and saved pages, by name, as one incident."""
    reads = [read_text(text, name) for name, text in logs.items()]
    events = [e for read in reads for e in read.events]
    view = LogView(events=events, engine=next((r.engine for r in reads if r.engine), None))
    for name, text in (pages or {}).items():
        page = read_page(text)
        view.events += events_of(page, name)
        view.metrics = values_of(page)
    return view


def told(view: LogView, name: str) -> Observation:
    return next(o for o in observe(view) if o.id == name)


def two_long_requests(pool: str = "") -> LogView:
    """FP8 weights of a 32B on a card of 44.5 GiB; the log shows no pool unless one is given."""
    start = (
        "INFO 03-07 08:00:00 [api_server.py:912] args: Namespace(model='acme/QwQ-32B-FP8', "
        "max_model_len=32000, gpu_memory_utilization=0.95)\n"
        "| 30%   45C    P0    80W / 300W |  44012MiB / 45568MiB |     97%      Default |\n"
        "INFO 03-07 08:00:40 [gpu_model_runner.py:1120] Model loading took 30.75 GiB and 38.1 seconds\n"
    )
    stats = "\n".join(vllm_stats(n, 2, 1, 99.4, hit=0.0) for n in range(8))
    view = view_of({"server.log": f"{start}{pool}{stats}\n"})
    spec = model_from_config(QWQ_32B, name="QwQ-32B", source="config.json")
    view.prediction = prediction(view.engine, None, view.events, "config.json", spec)
    return view


def test_s17_two_requests_fill_the_pool_of_a_model_beside_the_log() -> None:
    """2 x 64 layers x 8 heads x 128 x 2 B = 256 KiB; 42.3 - 30.75 - 2 GiB assumed = 39k tokens."""
    view = two_long_requests()
    seen = told(view, "token_cost")
    assert seen.facts["bytes_per_token_per_gpu"].value == 256 * 1024
    tokens = (44.5 * 0.95 - 30.75 - 2) * GIB / (256 * 1024)
    assert seen.facts["pool_tokens"].value == round(tokens)
    assert 38_000 < tokens < 40_000
    assert "256 KiB" in seen.text
    assert "2.00 GiB assumed for activations" in seen.text
    assert "= 1.2 x 32,000" in seen.text
    assert diagnose_log(view).primary == "logical_kv_too_large"


def test_s17_a_printed_pool_needs_no_assumption() -> None:
    pool = "INFO 03-07 08:00:50 [kv_cache_utils.py:634] GPU KV cache size: 38,400 tokens\n"
    view = two_long_requests(pool)
    seen = told(view, "token_cost")
    assert seen.facts["pool_tokens"].value == 38_400
    assert "printed" in seen.text
    assert "assumed" not in seen.text
    assert "19,085 tokens each" in diagnose_log(view).findings[0].why  # 0.994 x 38,400 / 2


def test_s17_a_pool_with_windows_or_states_has_no_plain_count() -> None:
    view = two_long_requests()
    view.prediction = {"kv": {"bytes_per_token_per_gpu": 24_576, "layout": "linear_full"}}
    assert set(told(view, "token_cost").facts) == {"bytes_per_token_per_gpu"}


def test_s17_without_a_model_a_token_has_no_price() -> None:
    view = two_long_requests()
    view.prediction = None
    assert not [o for o in observe(view) if o.id == "token_cost"]


def _cancelled(prompt: float) -> str:
    return (
        "\n".join(vllm_stats(n, 3, 0, 33.0) for n in range(2))
        + "\nINFO 05-06 09:00:25 [async_llm.py:411] Aborted request chatcmpl-7c.\n"
        + "".join(
            f"INFO 05-06 09:00:25 [async_llm.py:411] Aborted request chatcmpl-{n}d.\n" for n in range(2)
        )
        + "\n".join(vllm_stats(n, 3, 0, 34.0, prompt=prompt) for n in range(3, 12))
    )


def test_s21_the_advice_names_the_cancel_probe() -> None:
    found = primary(_cancelled(0.0))
    assert (found.cause, found.confidence) == ("cancellation_ignored", "suspected")
    assert any("cancel probe" in c and "non-streamed" in c for c in found.check_first)
    assert "cancellation_ignored" not in {f.cause for f in diagnosis(_cancelled(55.0)).findings}


def _page(queried: int, hit: int) -> str:
    return (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{model_name="m"} 2\n'
        "# TYPE vllm:prefix_cache_queries_total counter\n"
        f'vllm:prefix_cache_queries_total{{model_name="m"}} {queried}\n'
        "# TYPE vllm:prefix_cache_hits_total counter\n"
        f'vllm:prefix_cache_hits_total{{model_name="m"}} {hit}\n'
    )


ROUNDS = {"server.log": "\n".join(vllm_stats(n, 2, 0, 12.0, hit=23.4) for n in range(5))}


def test_s29_the_printed_rate_is_a_window_and_the_counters_tell_the_run() -> None:
    """Between the pages 90,000 tokens were looked up and 58,500 found: 65 %, where the log says 23.4."""
    view = view_of(ROUNDS, {"before.txt": _page(400_000, 60_000), "after.txt": _page(490_000, 118_500)})
    seen = told(view, "hit_rate_is_a_window")
    assert "23.4 %" in seen.text
    assert "window over the last 1,000 requests" in seen.text
    assert "58,500 of 90,000 tokens = 65.0 %" in seen.text
    assert "last token of a prompt is always recomputed" in seen.text
    assert (seen.facts["queried"].value, seen.facts["hit"].value) == (90_000, 58_500)


def test_s29_one_page_tells_since_the_start_and_none_says_what_to_save() -> None:
    one = told(view_of(ROUNDS, {"metrics.txt": _page(50_000, 20_000)}), "hit_rate_is_a_window")
    assert "since the server's start: 20,000 of 50,000 tokens = 40.0 %" in one.text
    assert "before and after" in told(view_of(ROUNDS), "hit_rate_is_a_window").text


def _replicas(*rates: float) -> dict[str, str]:
    return {
        f"replica{i}.log": "\n".join(vllm_stats(n, 4, 0, 20.0, hit=rate) for n in range(5))
        for i, rate in enumerate(rates)
    }


def test_s31_replicas_share_what_one_cache_would_hit() -> None:
    """Ideal / replicas: 25.5 + 27.0 + 28.5 = 81 % on one, 27 % each behind round robin over 3."""
    seen = told(view_of(_replicas(25.5, 27.0, 28.5)), "replica_hit_rates")
    assert "27.0 % on average" in seen.text
    assert "up to 81.0 %" in seen.text
    assert seen.facts["replicas"].value == 3


def test_s31_with_the_routers_word_it_is_a_finding_with_the_numbers() -> None:
    router = "INFO 05-06 08:59:00 [router.py:77] starting router, policy: round_robin\n"
    view = view_of({"router.log": router, **_replicas(25.5, 27.0, 28.5)})
    found = finding(diagnose_log(view), "prefix_routing_spread")
    assert found.role != "ruled_out"
    assert "(3 seen)" in found.why
    assert "27.0 % on average (affinity: up to 81.0 %)" in found.why
    assert "replica_hit_rates" not in {o.id for o in observe(view)}


def test_s31_rates_that_no_spreading_explains_and_pieces_of_one_log_say_nothing() -> None:
    """3 x 70 % would need an ideal of 210 %; a rotated piece is no other server."""
    for logs in (_replicas(70.0, 71.0, 69.0), _replicas(0.0, 0.0), _replicas(30.0)):
        assert "replica_hit_rates" not in {o.id for o in observe(view_of(logs))}
    text = _replicas(30.0)["replica0.log"]
    pieces = view_of({"server.log.1": text, "server.log": text})
    assert "replica_hit_rates" not in {o.id for o in observe(pieces)}


def test_s14_the_token_budget_is_a_bound_and_no_batch_that_was_tried() -> None:
    """406,560 / 4,096 = 99."""
    at = "2026-01-02T03:04:05.123456Z"
    view = view_of(
        {
            "tgi.log": f"{at}  INFO text_generation_launcher: Args {{ max_total_tokens: Some(4096) }}\n"
            f"{at}  INFO text_generation_router: router/src/main.rs:354: Setting max batch total tokens to "
            f"406560\n{at} ERROR batch{{batch_size=32}}:prefill{{id=9 size=32}}: text_generation_client: "
            "router/client/src/lib.rs:33: Server error: CUDA out of memory. Tried to allocate 512.00 MiB. "
            "GPU 0 has a total capacity of 79.15 GiB of which 40.00 MiB is free. Process 7 has 79.10 GiB "
            "memory in use. Of the allocated memory 77.90 GiB is allocated by PyTorch, and 300.00 MiB is "
            "reserved by PyTorch but unallocated.\n"
        }
    )
    seen = told(view, "token_budget_is_a_bound")
    assert "406,560 / 4,096 = 99" in seen.text
    assert "at a batch of 32" in seen.text
    assert diagnose_log(view).primary == "gpu_memory_utilization_too_high"


def test_s28_units_that_no_short_prompt_reaches() -> None:
    """LCM(128, 4096, 32, 2, 8) = 4,096."""
    text = "INFO 01-02 03:04:05 [kv_cache_utils.py:9] KV cache groups block_sizes=[128, 4096, 32, 2, 8]\n"
    found = primary(text + "\n".join(vllm_stats(n, 3, 0, 4.0, hit=0.0) for n in range(4)) + "\n")
    assert found.cause == "prefix_block_granularity"
    assert "LCM(128, 4096, 32, 2, 8) = 4,096" in found.why
    assert "prompts under 4,096 can never hit" in found.why


def test_s22_four_slots_that_each_advertise_the_whole_pool() -> None:
    text = (
        "srv    load_model: initializing, n_slots = 4, n_ctx_slot = 131072, kv_unified = 'true'\n"
        "srv        decode: Context size has been exceeded. off = 511, n_batch = 1, ret = 1\n"
    )
    assert "4.0x oversubscribed" in primary(text).why
