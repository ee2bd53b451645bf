"""`kvprobe replay` on the command line: text, JSON that keeps its schema, bad traces with their line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from kvprobe.cli.main import main
from kvprobe.errors import Exit
from kvprobe.plan.simulate.replay import replay_schema

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 100 * i, "input_length": 1024, "output_length": 50, "hash_ids": [0, 1 + i % 3]}
        for i in range(30)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def called(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["replay", *argv])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_json_keeps_its_schema(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep, limit = "block-size=8,16", "preempted <= 1%"
    code, out, _ = called(
        capsys,
        str(trace),
        "--blocks",
        "500",
        "--json",
        "--sweep",
        sweep,
        "--find-pool",
        limit,
        "--beside",
        str(trace),
    )
    assert code == Exit.OK
    found = json.loads(out)
    jsonschema.validate(found, replay_schema())
    assert found["schema"] == "kvprobe.replay/1"
    assert found["requests"] == {"total": 30, "ok": 30, "refused": 0, "failed": 0}
    assert found["prefix"]["hit_rate"] > 0.8
    assert found["beside"]["requests"] == found["requests"]
    assert found["step_time"]["source"] == "assumed"
    assert found["pool"]["usable_blocks"] == 499  # the null block
    assert found["pool"]["bytes"] is None


def test_text_says_what_fits_and_what_was_assumed(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = called(capsys, str(trace), "--bytes-per-token", "131072", "--pool", "1GiB")
    assert code == Exit.OK
    assert "30 of 30 served" in out
    assert "8,176 tokens" in out
    assert "order of magnitude" in out
    assert err == ""


def test_a_model_and_a_gpu_give_the_pool_and_the_times(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    code, out, _ = called(
        capsys, str(trace), "--model", str(config), "--pool", "2GiB", "--gpu", "H100", "--json"
    )
    assert code == Exit.OK
    found = json.loads(out)
    assert found["settings"]["bytes_per_token"] == 131072
    assert found["pool"]["usable_blocks"] == 1023
    assert found["step_time"]["source"] == "gpu table: H100 SXM 80GB"
    # 16.06 GB of weights at three quarters of 3,350 GB/s, and 2 ms.
    assert found["step_time"]["fixed_s"] == pytest.approx(16.06e9 / (0.75 * 3350e9) + 0.002, rel=0.01)


@pytest.mark.parametrize(
    ("second", "word"),
    [
        (
            '{"timestamp": 50, "input_length": 10, "output_length": 5, "hash_ids": [1]}',
            "before the one",
        ),
        ('{"timestamp": 200, "input_length": -1, "output_length": 5, "hash_ids": [1]}', ""),
        ('{"timestamp": 200, "input_length": 10, "hash_ids": [1]}', ""),
        ('{"timestamp": 200, "input_length": 10, "output_length": 5, "hash_ids": [1, 2, 3]}', ""),
        ("garbage", ""),
    ],
)
def test_a_bad_line_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], second: str, word: str
) -> None:
    path = tmp_path / "bad.jsonl"
    good = '{"timestamp": 100, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}'
    path.write_text(f"{good}\n{second}\n")
    code, out, _ = called(capsys, str(path), "--blocks", "500", "--json")
    assert code == Exit.USAGE
    problem = json.loads(out)["errors"][0]
    assert problem["line"] == 2
    assert word in problem["message"]


def test_a_trace_that_is_not_there_or_has_no_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = called(capsys, str(tmp_path / "none"), "--blocks", "5")
    assert code == Exit.USAGE
    assert "no trace file" in err
    empty = tmp_path / "empty.csv"
    empty.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    code, _, err = called(capsys, str(empty), "--blocks", "500")
    assert code == Exit.USAGE
    assert "no row" in err


def test_help_imports_nothing_heavy() -> None:
    code = (
        "from kvprobe.cli.main import main\nassert main(['replay', '--help']) == 0\nimport sys, json\n"
        "print()\nprint(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert loaded.isdisjoint({"numpy", "numba", "pandas", "torch", "msgspec", "rich"})
