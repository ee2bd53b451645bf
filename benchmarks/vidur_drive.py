#!/usr/bin/env python3
"""Drives vidur, in vidur's own Python: replays a trace in its CSV form and prints what it took, as JSON.

    V/bin/python benchmarks/vidur_drive.py FOLDER SETUP

FOLDER holds `trace.csv` and takes vidur's caches; SETUP is the server as JSON
(`POOL` and `STEP` of `replay_peers.py`).
vidur is configured by its own options and not changed in any way. It reads measured times of kernels from
data sets on a hub, which its wheel does not hold. In their place FOLDER gets profiles that are MADE, NOT
MEASURED: the step times that kvprobe's simulator is told too, laid where vidur looks for what it has
downloaded. So the speed of its event loop is measured, and nothing is said of its accuracy.
"""

from __future__ import annotations

import csv
import importlib
import json
import lzma
import os
import resource
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

MODEL, DEVICE, NETWORK = "meta-llama/Llama-3-8B", "h100", "h100_dgx"
LAYERS = 32
_SHAPE = {"n_kv_head": 8, "n_embd": 4096, "num_tensor_parallel_workers": 1}
_MADE = ("kvprobe/made-compute", "kvprobe/made-network")
LONGEST_TOKENS = 131072
_STEP = (1, *range(64, 16385, 64), LONGEST_TOKENS)
"""Tokens of a step, and lengths and batches of the profiles below: its forest answers with the nearest."""
_KV = range(0, LONGEST_TOKENS + 1, 2048)
_BATCHES = (*range(1, 16), *range(16, 257, 8))
_CHUNKS = (32, 1024, 8192)
_FREE = (
    "attn_pre_proj",
    "attn_post_proj",
    "mlp_down_proj",
    "mlp_act",
    "input_layernorm",
    "post_attention_layernorm",
    "attn_rope",
    "add",
)
"""Kernels that take no time here: the whole step lies in `mlp_up_proj` and in attention."""
_COST = "execution_time_predictor_config"
_FOREST = "random_forrest_execution_time_predictor_config"
_TRACE = "trace_request_generator_config"


def write_profiles(cache: Path, setup: dict[str, Any]) -> None:
    """Both data sets, in the layout of a hub's local cache."""
    layer_ms = 1e3 / LAYERS
    compute = _data_set(cache / "profiling_data/compute", _MADE[0], {"model": MODEL, "device_sku": DEVICE})
    _write(compute / "mlp.csv.xz", [_mlp_row(tokens, setup, layer_ms) for tokens in _STEP])
    kv_ms = setup["kv_token_s"] * layer_ms
    decode = [
        _attention_row(setup, 0, batch, kv, decode=batch * kv * kv_ms) for batch, kv in product(_BATCHES, _KV)
    ]
    prefill = [_attention_row(setup, chunk, 1, kv, prefill=kv * kv_ms) for chunk, kv in product(_CHUNKS, _KV)]
    _write(compute / "attention.csv.xz", decode + prefill)
    _data_set(cache / "profiling_data/network", _MADE[1], {"sku": NETWORK})


def _data_set(cache: Path, name: str, config: dict[str, str]) -> Path:
    repository = cache / f"datasets--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / "made"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("made")
    (snapshot / "config.json").write_text(json.dumps(config))
    return snapshot


def _mlp_row(tokens: int, setup: dict[str, Any], layer_ms: float) -> dict[str, Any]:
    return {
        **_SHAPE,
        "n_head": 32,
        "n_expanded_embd": 14336,
        "use_gated_mlp": True,
        "vocab_size": 128256,
        "num_tokens": tokens,
        "time_stats.mlp_up_proj.median": (setup["fixed_s"] + setup["token_s"] * tokens) * layer_ms,
        **{f"time_stats.{name}.median": 0.0 for name in _FREE},
    }


def _attention_row(
    setup: dict[str, Any], chunk: int, batch: int, kv: int, *, prefill: float = 0.0, decode: float = 0.0
) -> dict[str, Any]:
    return {
        **_SHAPE,
        "n_q_head": 32,
        "block_size": setup["block_size"],
        "prefill_chunk_size": chunk,
        "batch_size": batch,
        "kv_cache_size": kv,
        "time_stats.attn_prefill.median": prefill,
        "time_stats.attn_decode.median": decode,
        "time_stats.attn_kv_cache_save.median": 0.0,
    }


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with lzma.open(path, "wt", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def arguments(folder: Path, setup: dict[str, Any]) -> list[str]:
    """vidur's own options: chunked prefill, one GPU, and nothing written or drawn on the way."""
    cost = {
        "model_profiling_dataset": _MADE[0],
        "network_profiling_dataset": _MADE[1],
        "cache_dir": str(folder / "cache"),
        "prediction_max_prefill_chunk_size": setup["max_num_batched_tokens"],
        "prediction_max_batch_size": setup["max_num_seqs"],
        "prediction_max_tokens_per_request": LONGEST_TOKENS,
        "attention_decode_batching_overhead_fraction": 0,
        "k_fold_cv_splits": 2,
        "num_training_job_threads": 1,
        "num_estimators": 20,
        "max_depth": 16,
        "min_samples_split": 2,
    }
    given: dict[str, Any] = {
        "replica_config_model_name": MODEL,
        "replica_config_device": DEVICE,
        "replica_config_network_device": NETWORK,
        "replica_config_num_pipeline_stages": 1,
        "replica_config_tensor_parallel_size": 1,
        "cache_config_num_blocks": setup["usable_blocks"],
        "cache_config_block_size": setup["block_size"],
        "cache_config_watermark_blocks_fraction": 0,
        "replica_scheduler_config_type": "sarathi",
        "sarathi_scheduler_config_chunk_size": setup["max_num_batched_tokens"],
        "sarathi_scheduler_config_batch_size_cap": setup["max_num_seqs"],
        "request_generator_config_type": "trace_replay",
        f"{_TRACE}_trace_file": str(folder / "trace.csv"),
        f"{_TRACE}_date": "day",
        f"{_TRACE}_prefill_scale_factor": 1,
        f"{_TRACE}_decode_scale_factor": 1,
        f"{_TRACE}_time_scale_factor": 1,
        f"{_TRACE}_max_tokens": LONGEST_TOKENS,
        f"{_COST}_type": "random_forrest",
        "metrics_config_output_dir": str(folder / "output"),
        **{f"{_FOREST}_{name}": value for name, value in cost.items()},
    }
    found = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    found += ["--no-metrics_config_write_metrics", "--no-metrics_config_enable_chrome_trace"]
    return [*found, *setup.get("more", ())]


def replay() -> dict[str, Any]:
    """Builds the simulator (trace read, step times predicted: not timed), then times its run."""
    config = importlib.import_module("vidur.config").SimulationConfig.create_from_cli_args()
    importlib.import_module("vidur.utils.random").set_seeds(config.seed)
    begin = time.process_time()
    simulator = importlib.import_module("vidur.simulator").Simulator(config)
    built = time.process_time() - begin
    requests = [event._request for _, event in simulator._event_queue]
    wall, cpu = time.perf_counter(), time.process_time()
    simulator.run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    batches = importlib.import_module("vidur.entities").Batch
    return {
        "requests": sum(request.completed for request in requests),
        "wall_s": wall,
        "cpu_s": cpu,
        "built_cpu_s": built,
        "steps": batches.generate_id(),
        "restarts": sum(request.num_restarts for request in requests),
        "simulated_s": float(simulator._time),
        "ttft_mean_s": sum(one.prefill_completed_at - one.arrived_at for one in requests) / len(requests),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    folder, setup = Path(sys.argv[1]), json.loads(sys.argv[2])
    os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    write_profiles(folder / "cache", setup)
    sys.argv = ["vidur", *arguments(folder, setup)]
    print(json.dumps(replay()))


if __name__ == "__main__":
    main()
