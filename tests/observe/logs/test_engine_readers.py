"""One line of each kind: the event, its numbers in base units, and nothing that is not declared."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.evidence.events import Event
from kvprobe.observe.logs.intake import read_text
from kvprobe.observe.logs.readers import all_readers
from kvprobe.observe.logs.vocabulary import EVENTS

GIB, MIB = 2**30, 2**20

LINES: list[tuple[str, str, dict[str, Any]]] = [
    (
        "[2026-03-04 12:00:00 TP0] Prefill batch. #new-seq: 2, #new-token: 300, #cached-token: 100, cache "
        "hit "
        "rate: 25.00%, token usage: 0.32, #running-req: 9, #queue-req: 4",
        "engine_stats",
        {"running": 9, "waiting": 4, "kv_usage": 0.32, "new_tokens": 300, "cached_tokens": 100},
    ),
    (
        "[2026-03-04 12:00:00 TP0] Decode batch, #running-req: 6, #full token: 2435072, full token usage: "
        "0.92, "
        "#swa token: 900, swa token usage: 0.09, cuda graph: True, gen throughput (token/s): 24.33, "
        "#queue-req: 0,",
        "engine_stats",
        {"running": 6, "kv_usage": 0.92, "swa_usage": 0.09, "generation_tokens_per_s": 24.33},
    ),
    (
        "new fill batch. #seq: 1. #cached_token: 478. #new_token: 254. #remaining_req: 3. #running_req: 4. "
        "tree_cache_hit_rate: 80.50%.",
        "engine_stats",
        {"running": 4, "waiting": 3, "prefix_hit_rate": 0.805},
    ),
    (
        "[2026-03-04 12:00:00 TP0] KV Cache is allocated. #tokens: 1000, K size: 1.50 GB, V size: 1.50 GB",
        "pool_size",
        {"tokens": 1000, "bytes": 3 * GIB},
    ),
    (
        "[2026-03-04 12:00:00 TP0] Load weight end. elapsed=9.1 s, type=M, dtype=torch.bfloat16, avail "
        "mem=60.50 "
        "GB, mem usage=15.50 GB.",
        "weights_loaded",
        {"free_after": 60.5 * GIB, "weights": 15.5 * GIB},
    ),
    (
        "srv    load_model: initializing, n_slots = 4, n_ctx_slot = 512, kv_unified = 'false'",
        "config",
        {"max_num_seqs": 4, "max_model_len": 512, "kv_unified": False},
    ),
    (
        "llama_kv_cache: size =  144.00 MiB (  4096 cells,  28 layers,  4/4 seqs), K (q8_0):   72.00 MiB, V "
        "(q8_0):   72.00 MiB",
        "kv_size",
        {"size": 144 * MIB, "cells": 4096, "layers": 28, "sequences": 4},
    ),
    (
        "time=2026-01-02T03:04:05Z level=INFO source=server.go:168 msg=offload library=cuda layers.model=49 "
        'layers.offload=4 memory.available="[11.5 GiB 0.5 GiB]" memory.required.full="68.5 GiB" '
        'memory.required.kv="2.0 GiB" memory.weights.total="60.0 GiB"',
        "offload",
        {"required": 68.5 * GIB, "available": 12 * GIB, "layers": 49, "layers_on_gpu": 4, "devices": 2},
    ),
    (
        "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 79.11 GiB, "
        "available: 60.50 GiB",
        "pool_free",
        {"free": 60.5 * GIB},
    ),
    (
        "Out of memory: Killed process 77 (python3) total-vm:4096kB, anon-rss:2048kB, file-rss:4kB, "
        "shmem-rss:0kB",
        "killed",
        {"pid": "77", "process": "python3", "anon": 2 * MIB, "how": "kernel"},
    ),
    (
        "[ 9.1] NVRM: Xid (PCI:0000:3d:00): 43, pid=35, name=python3, Ch 00000008",
        "xid",
        {"code": 43, "device": "0000:3d:00", "pid": "35", "process": "python3"},
    ),
    (
        "INFO 2026-11-30 08:00:00,100 reference_server.statsline: last 10.0 s: computed 800.0 tokens/s, "
        "generated "
        "90.0 tokens/s; running 8, waiting 3; KV usage 93.1% (3812 used + 240 cached + 43 free = 4095 "
        "blocks); "
        "prefix hits 41.2% of queried tokens; preempted 2, swapped out 0; empty 0.5 MiB tail + 0.0 MiB "
        "reserved; "
        "largest free region 1.0 MiB; failed allocations 5",
        "engine_stats",
        {
            "running": 8,
            "waiting": 3,
            "kv_usage": pytest.approx(0.931),
            "prefix_hit_rate": pytest.approx(0.412),
            "preempted": 2,
            "largest_free": MIB,
            "failed_allocations": 5,
        },
    ),
    (
        "Memory on the node (IP: 10.0.0.1, ID: 7) where the task (name=W, pid=3, memory used=11.50GB) was "
        "running "
        "was 30.50GB / 32.00GB (0.953), which exceeds the memory usage threshold of 0.95.",
        "killed",
        {"used": 30.5 * GIB, "total": 32 * GIB, "how": "ray"},
    ),
]


def _events(line: str) -> list[Event]:
    return read_text(line + "\n", "server.log").events


@pytest.mark.parametrize(("line", "name", "values"), LINES)
def test_a_line_becomes_its_event(line: str, name: str, values: dict[str, Any]) -> None:
    event = next(e for e in _events(line) if e.name == name)
    assert (event.source, event.line) == ("server.log", 1)
    for key, value in values.items():
        assert event.get(key) == value, key


@pytest.mark.parametrize("line", [line for line, _, _ in LINES])
def test_only_declared_values_leave_a_reader(line: str) -> None:
    for event in _events(line):
        known = EVENTS[event.name]
        for name, value in event.values.items():
            assert known[name][0] == value.unit, (event.name, name)


@pytest.mark.parametrize(
    "line",
    [
        "Process 12 was killed by the user",
        "Xid is a number that the driver prints",
        "the memory leak detected last week is mended",
        "exit code 1377",
        "listening on port 80",
        "token usage: see the manual",
        "Received 137 requests with exit policy",
        "ulimit is low and may cause Too many open files later",
    ],
)
def test_false_hits_give_nothing_that_kills(line: str) -> None:
    deadly = {"killed", "signal", "xid", "files_exhausted"}
    assert not [e for e in _events(line) if e.name in deadly]


def test_anchors_are_long_enough_to_be_rare() -> None:
    mine = [r for r in all_readers() if r.engine not in {None, "vllm"}]
    assert mine
    for reader in mine:
        assert all(len(a) >= 5 for a in reader.anchors), reader.name
