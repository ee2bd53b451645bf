"""`kvprobe diagnose`: what goes in, what comes out, and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvprobe.cli import diagnose_inputs
from kvprobe.cli.main import main
from kvprobe.errors import Exit
from kvprobe.report.document import diagnosis_schema, error_schema
from tests.observe.logs.logkit import OOM

PAGE = """\
# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 12
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m"} 3
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="m"} 0.42
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_text(f"INFO 01-02 03:04:05 [core.py:58] start\nTraceback (most recent call last):\n{OOM}\n")
    return path


def document(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> dict[str, Any]:
    assert main(["diagnose", *map(str, argv), "--json"]) == code
    out = capsys.readouterr().out
    found: dict[str, Any] = json.loads(out)
    jsonschema.validate(found, error_schema() if found["schema"] == "kvprobe.error/1" else diagnosis_schema())
    return found


def test_a_log_gives_a_cause_with_its_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, log)
    first = found["findings"][0]
    assert (first["role"], first["cause"]) == ("primary", found["primary"])
    assert found["primary"] != "unknown"
    assert {"source": str(log), "line": 3}.items() <= first["evidence"][0].items()
    assert first["evidence"][0]["facts"]["requested"] == {"value": 1610612736, "unit": "B"}
    assert found["read"]["lines"] == 3
    assert found["read"]["bytes"] == log.stat().st_size
    assert {"engine", "engine_version", "skipped"} <= set(found["read"])


def test_the_page_for_a_person_fits_eighty_columns(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(log.parent)
    assert main(["diagnose", "server.log"]) == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 80 for line in text.splitlines())
    for word in ("cause", "why", "proof", "server.log:3", "look first", "remedy", "refuted by", "read", "\n"):
        assert word in text
    assert "\x1b" not in text


@pytest.mark.parametrize("text", ["", "\n", "nothing of ours\nstands here\n", "{}\n", "\x00\xff" * 50])
def test_f56_an_empty_or_foreign_log_is_unknown_and_ok(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.log"
    path.write_text(text)
    found = document(capsys, path)
    assert found["primary"] == "unknown"
    assert found["findings"][0]["remedy"], "what to collect"
    assert main(["diagnose", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no known signature" in shown.lower()
    assert "line" in shown


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["none.log"], "no_log"),
        ([], "usage"),
        (["server.log", "--fail-on", "kv_pool_presure"], "unknown_cause"),
        (["server.log", "--tail", "5"], None),
        (["server.log", "--tail", "0B"], "bad_value"),
        (["server.log", "--metrics", "none.txt"], "no_metrics"),
        (["server.log", "--metrics", "server.log"], "no_metrics"),
        (["server.log", "--model", "none.json"], None),
        (["server.log", "--nonsense"], "unknown_option"),
        (["."], "is_directory"),
    ],
)
def test_mistakes_are_usage_errors_with_a_fix(
    argv: list[str],
    code: str | None,
    log: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(log.parent)
    found = document(capsys, *argv, code=Exit.USAGE)
    problem = found["errors"][0]
    assert code in (None, problem["code"])
    assert problem["fix"]


def test_a_cause_that_is_misspelt_is_guessed(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(log), "--fail-on", "kv_pool_presure"]) == Exit.USAGE
    assert "did you mean `kv_pool_pressure`?" in capsys.readouterr().err


def test_fail_on(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, log)
    others = [f["cause"] for f in found["findings"] if f["role"] == "secondary"]
    ruled_out = [f["cause"] for f in found["findings"] if f["role"] == "ruled_out"]
    for cause in (found["primary"], "any", *others):
        document(capsys, log, "--fail-on", cause, code=Exit.CHECK_FAILED)
    for cause in (*ruled_out, "gpu_hw_fault"):
        document(capsys, log, "--fail-on", cause)
    document(capsys, log, "--fail-on", "gpu_hw_fault", "--fail-on", found["primary"], code=Exit.CHECK_FAILED)
    document(capsys, log, "--fail-on", f"gpu_hw_fault,{found['primary']}", code=Exit.CHECK_FAILED)
    empty = tmp_path / "empty.log"
    empty.write_text("")
    document(capsys, empty, "--fail-on", "any")
    document(capsys, empty, "--fail-on", "unknown", code=Exit.CHECK_FAILED)


def test_markdown_for_a_ticket(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ticket.md"
    found = document(capsys, log, "--md", path)
    text = path.read_text()
    assert f"`{found['primary']}`" in text
    assert "### Remedies, in order" in text
    assert "server.log:3" in text
    assert main(["diagnose", str(log), "--md", str(tmp_path / "no" / "such.md")]) == Exit.STORAGE


def test_stdin(log: Path) -> None:
    for packed in (False, True):
        import gzip

        data = gzip.compress(log.read_bytes()) if packed else log.read_bytes()
        done = subprocess.run(
            [sys.executable, "-m", "kvprobe", "diagnose", "-", "--json"],
            input=data,
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["findings"][0]["evidence"][0]["source"] == "stdin"
        assert done.stderr == b"", "progress is for terminals"


def test_a_closed_stdin_is_an_empty_log() -> None:
    command = f"{sys.executable} -m kvprobe diagnose - --json <&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["primary"] == "unknown"


def test_metrics_from_a_file_and_from_among_the_paths(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "metrics.txt"
    page.write_text(PAGE)
    for argv in ((log, "--metrics", page), (log, page), ("--metrics", page), (page,)):
        found = document(capsys, *argv)
        assert found["read"]["metrics"] == [str(page)]
    assert found["read"]["engine"] == "vllm"


@contextmanager
def serving(body: str) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_metrics_of_a_live_server_are_only_read(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnose_inputs, "SCRAPE_EVERY_S", 0.01)
    with serving(PAGE) as (url, asked):
        found = document(capsys, log, "--metrics", f"{url}/metrics?token=secret")
        assert asked == ["GET /metrics?token=secret"] * diagnose_inputs.SCRAPES
        assert found["read"]["metrics"] == [f"{url}/metrics"]
        assert "secret" not in json.dumps(found)
    with serving("<html>") as (url, _):
        document(capsys, log, "--metrics", f"{url}/metrics", code=Exit.TARGET)
    document(capsys, log, "--metrics", "http://127.0.0.1:9/metrics", code=Exit.TARGET)
    refused = document(capsys, log, "--metrics", "http://192.0.2.1:8000/metrics", code=Exit.TARGET)
    assert refused["errors"][0]["code"] == "guard"


def test_a_model_beside_the_log_gives_the_bytes_of_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 GiB at 131,072 B a token are 16,384 tokens; with a version named, the planner's rounding too."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    log = tmp_path / "a.log"
    start = "INFO 01-02 03:04:04 [core.py:58] Initializing a V1 LLM engine (v0.11.0) with config: model='m'\n"
    for begin in ("", start):
        for tokens, told in (("16,384", "model_agrees"), ("20,000", "model_disagrees")):
            log.write_text(
                f"{begin}INFO 01-02 03:04:05 [gpu_worker.py:298] Available KV cache memory: 2.00 GiB\n"
                f"INFO 01-02 03:04:06 [kv_cache_utils.py:864] GPU KV cache size: {tokens} tokens\n"
            )
            found = document(capsys, log, "--model", config)
            assert told in {o["id"] for o in found["observations"]}, (begin, tokens)


def test_s15_s16_what_the_concurrency_line_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """37,765 = 4.61 x 8,192; 33.04 x 32,768 = 1,082,655 against 290,864 tokens."""
    log = tmp_path / "a.log"
    line = "INFO 01-02 03:04:05 [kv_cache_utils.py:864] "
    log.write_text(
        f"{line}GPU KV cache size: 37,760 tokens\n"
        f"{line}Maximum concurrency for 8,192 tokens per request: 4.61x\n"
    )
    about = {o["id"]: o["facts"] for o in document(capsys, log)["observations"]}
    assert about["concurrency_is_worst_case"]["concurrency_tokens"]["value"] == 37765
    log.write_text(
        f"{line}GPU KV cache size: 290,864 tokens\n"
        f"{line}Maximum concurrency for 32,768 tokens per request: 33.04x\n"
    )
    about = {o["id"]: o["facts"] for o in document(capsys, log)["observations"]}
    assert about["token_line_is_not_capacity"]["concurrency_tokens"]["value"] == 1082655


def test_diagnose_is_light_and_needs_no_run_time_of_others(log: Path) -> None:
    code = (
        "import sys\nfrom kvprobe.cli.main import main\n"
        f"assert main(['diagnose', {str(log)!r}, '--json']) == 0\n"
        "heavy = {'torch', 'pandas', 'numpy', 'pyarrow', 'locust', 'gevent', 'httpx', 'pydantic'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_closed_stdout_and_a_broken_terminal(log: Path) -> None:
    for command in (
        f"diagnose {log} | true",
        f"diagnose {log} --json 2>/dev/full",
        f"TERM=dumb diagnose {log}",
    ):
        before, _, rest = command.partition("diagnose")
        done = subprocess.run(
            ["bash", "-c", f"{before}{sys.executable} -m kvprobe diagnose{rest}"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode in (0, Exit.STDOUT_CLOSED)
        assert "Traceback" not in done.stderr
        assert "\x1b" not in done.stdout


def test_hostile_words_of_a_log_are_shown_as_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "x\x1b[2J.log"
    log.write_bytes(
        OOM.replace("Process 4711", "Process 4711\u202e\u200b").encode()
        + b" \x9b2J \x07 @everyone <img src=x>\n"
    )
    md = tmp_path / "x.md"
    assert main(["diagnose", str(log), "--md", str(md)]) == 0
    shown = capsys.readouterr().out + md.read_text().replace("@\u200b", "@")
    assert not {"\x1b", "\u202e", "\x9b", "\x07"} & set(shown)


def test_a_run_directory_is_diagnosed_by_its_own_evidence(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvprobe.evidence.rundir import RunDir

    run = RunDir.create(tmp_path / "runs", "probe", "1a2b3c4d")
    (run.spool_dir / "worker-0.jsonl").write_text("")
    found = document(capsys, run.path)
    assert found["validity"] is not None
    assert found["read"]["requests"] == 0
    assert main(["diagnose", str(run.path)]) == 0
    assert "cause" in capsys.readouterr().out
    beside = document(capsys, run.path, log)
    assert beside["read"]["lines"] > 0
    assert any(f["evidence"][0]["source"] == str(log) for f in beside["findings"])
    missing = document(capsys, run.path, tmp_path / "no.log", code=Exit.USAGE)
    assert missing["errors"]
    two = document(capsys, run.path, run.path, code=Exit.USAGE)
    assert two["errors"][0]["code"] == "conflict"
    beside = document(capsys, run.path, "--tail", "1MiB", code=Exit.USAGE)
    assert beside["errors"][0]["code"] == "conflict"
