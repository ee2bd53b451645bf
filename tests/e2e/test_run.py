"""`kvprobe run` from end to end: the bundled server really computes, the load really streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import psutil
import pytest

from kvprobe.report.document import diagnosis_schema, run_schema
from tests.e2e.conftest import SMALL_SHARED, Server, kvprobe, valid_run

CONTRACT_COLUMNS = [
    "request_id",
    "kind",
    "session",
    "turn",
    "intended_ns",
    "sent_ns",
    "first_byte_ns",
    "first_chunk_ns",
    "first_token_ns",
    "first_visible_ns",
    "last_token_ns",
    "end_ns",
    "gaps_ns",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "asked_prompt_tokens",
    "asked_completion_tokens",
    "prefix_id",
    "failure",
    "failure_detail",
    "status_code",
    "finish_reason",
    "worker",
    "warmup",
    "server_request_id",
]


def observations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {o["id"]: o for o in document["diagnosis"]["observations"]}


def test_shared_prefix_on_the_bundled_server(out: Path) -> None:
    result = valid_run("shared_prefix", "--out", str(out), "--json", *SMALL_SHARED)
    assert result.code == 0, result.err
    document = result.document
    jsonschema.validate(document, run_schema())
    assert document["status"] == "complete"
    assert document["engine"] == "reference"
    assert document["requests"]["ok"] == 66
    assert document["requests"]["by_failure"] == {}
    assert document["diagnosis"]["primary"] == "healthy_baseline"
    assert document["diagnosis"]["findings"] == []
    assert document["diagnosis"]["validity"]["valid"] is True
    assert "prefix_cache_effect" in observations(document)
    rate = document["metrics"]["prefix_hit_rate"]
    assert rate["got"] == pytest.approx(rate["aimed"], abs=0.05)
    assert rate["got"] <= rate["ceiling"] + 0.01
    assert document["metrics"]["max_active"] == 2
    assert document["metrics"]["ttft_s"]["n"] == 66
    environment = json.loads((Path(document["run_dir"]) / "environment.json").read_text())
    assert not psutil.pid_exists(environment["server_pid"]), "the bundled server ends with the run"
    check_run_directory(Path(document["run_dir"]), document)


def check_run_directory(run_dir: Path, document: dict[str, Any]) -> None:
    names = {p.name for p in run_dir.iterdir()}
    assert {
        "workload.yaml",
        "environment.json",
        "requests.parquet",
        "samples.parquet",
        "facts.jsonl",
    } <= names
    assert {"summary.json", "diagnosis.json", "report.html", "log.txt", "server.log", "STATUS"} <= names
    assert "the load ended: planned" in (run_dir / "log.txt").read_text()
    assert "healthy_baseline" in (run_dir / "report.html").read_text()
    assert (run_dir / "STATUS").read_text().strip() == "complete"
    rows = pd.read_parquet(run_dir / "requests.parquet")
    assert list(rows.columns[: len(CONTRACT_COLUMNS)]) == CONTRACT_COLUMNS
    assert (~rows.warmup).sum() == 66
    assert rows.prompt_tokens.sub(rows.asked_prompt_tokens).abs().max() == 0
    assert (rows.first_token_ns > rows.sent_ns).all()
    samples = pd.read_parquet(run_dir / "samples.parquet")
    assert list(samples.columns) == ["t_ns", "metric", "labels", "value"]
    assert {"engine.kv_usage_ratio", "server.rss_bytes", "client.cpu_ratio"} <= set(samples.metric)
    saved = json.loads((run_dir / "diagnosis.json").read_text())
    jsonschema.validate(saved, diagnosis_schema())
    assert saved == document["diagnosis"]
    again = kvprobe("report", str(run_dir), "--json").document
    assert again == document


def test_a_changing_first_line_is_named_with_its_text(out: Path) -> None:
    result = valid_run("timestamp_first", "--out", str(out), "--json", "--set", "name=banana", *SMALL_SHARED)
    assert result.code == 0, result.err
    diagnosis = result.document["diagnosis"]
    assert diagnosis["primary"] == "prefix_layout_unstable"
    finding = diagnosis["findings"][0]
    assert finding["role"] == "primary"
    assert finding["symptom"] == "prefix_not_reused"
    shown = json.dumps(finding["evidence"])
    assert "Current time" in shown
    assert result.document["metrics"]["prefix_hit_rate"]["got"] < 0.1


def test_prefix_caching_off_is_named(out: Path) -> None:
    result = valid_run(
        "shared_prefix", "--out", str(out), "--json", "--serve-args=--no-prefix-caching", *SMALL_SHARED
    )
    assert result.code == 0, result.err
    assert result.document["diagnosis"]["primary"] == "prefix_caching_off"
    environment = json.loads((Path(result.document["run_dir"]) / "environment.json").read_text())
    assert environment["server_args"] == ["--no-prefix-caching"]


def test_a_distinct_run_that_meets_a_warm_cache_is_invalid(
    out: Path, start_server: Callable[..., Server]
) -> None:
    server = start_server()
    argv = ["distinct", "--target", server.url, "--out", str(out), "--json", "--set", "salt=none"]
    argv += ["--set", "requests=12", "--set", "output.tokens=4", "--set", "prompt.tokens=256"]
    first = kvprobe("run", *argv)
    assert first.code in (0, 4), first.err + first.out
    assert not any("cache" in reason for reason in first.document["diagnosis"]["validity"]["reasons"])
    second = kvprobe("run", *argv)
    assert second.code == 4, second.err
    validity = second.document["diagnosis"]["validity"]
    assert validity["valid"] is False
    assert any("cache" in reason for reason in validity["reasons"])
    salted = valid_run(*argv[:-8], *argv[-6:])
    assert salted.code == 0, salted.err


def test_few_cold_requests_are_too_few_to_speak(out: Path) -> None:
    few = [a.replace("families=22", "families=5").replace("requests=66", "requests=15") for a in SMALL_SHARED]
    result = valid_run("shared_prefix", "--out", str(out), "--json", *few)
    assert result.code == 0, result.err
    effect = observations(result.document)["prefix_cache_effect"]
    assert "too few to compare" in effect["text"]


def test_the_text_report_has_no_escapes_and_survives_ascii(out: Path) -> None:
    plain = {"TERM": "dumb", "NO_COLOR": "1", "LANG": "C", "LC_ALL": "C"}
    plain |= {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    short = ("--set", "requests=8", "--set", "output.tokens=4")
    result = kvprobe("run", "mixed_lengths", "--out", str(out), *short, env=plain)
    assert result.code in (0, 4), result.err  # a busy machine may spoil the numbers, not the text
    assert "\x1b" not in result.out + result.err
    assert result.out.isascii()
    assert "TTFT" in result.out


def test_a_workload_that_does_not_fit_the_model_is_refused_before_traffic(out: Path) -> None:
    result = kvprobe("run", "shared_prefix", "--out", str(out), "--json", "--serve-args=--max-model-len 1024")
    assert result.code == 2
    assert result.document["errors"][0]["code"] == "too_long"
    assert not list(out.glob("*"))


def test_a_server_option_that_does_not_exist(out: Path) -> None:
    result = kvprobe("run", "shared_prefix", "--out", str(out), "--json", "--serve-args=--blok-size 16")
    assert result.code == 2
    assert "--blok-size" in result.document["errors"][0]["message"]
