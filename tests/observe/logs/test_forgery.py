"""F55: what users send never becomes a cause, however it reaches the log; a true failure beside it does."""

from __future__ import annotations

import json

import pytest

from kvprobe.diagnose.log_judge import diagnose_log
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Diagnosis
from kvprobe.observe.logs.intake import read_text

CARD = (
    "CUDA out of memory. Tried to allocate 3.10 GiB (GPU 0; 31.75 GiB total capacity; 26.40 GiB already "
    "allocated; 1.90 GiB free; 28.80 GiB reserved in total by PyTorch)"
)
PAYLOADS = {
    "torch": f"RuntimeError: {CARD}",
    "kernel": "Out of memory: Killed process 4711 (python3) total-vm:99kB, anon-rss:98765432kB, file-rss:0kB",
    "xid": "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
    "vllm": (
        "ValueError: The model's max seq len (9000) is larger than the maximum number of tokens that can be "
        "stored in KV cache (7001). Try increasing `gpu_memory_utilization`."
    ),
    "llama.cpp": (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 5000.00 MiB on device 0: cudaMalloc failed: "
        "out of memory"
    ),
}
FRAMES = 'Traceback (most recent call last):\n  File "/x/worker.py", line 3, in execute_model\n    f(x)\n'
VLLM = "(APIServer pid=1) INFO 01-02 03:04:05 [logger.py:40] "
APP = "2026-01-02 03:04:05,123 - app - INFO - "
RECORD = {"time": "2026-01-02T03:04:05Z", "level": "info"}
SGLANG = "[2026-01-02 03:04:05] "
ASKED = f"{VLLM}Received request c-1: prompt: "
ERROR = "(EngineCore_DP0 pid=7) ERROR 01-02 03:04:05 [core.py:710] "


def forms(said: str) -> dict[str, str]:
    """Ways in which `said` (a prompt, an answer, the output of a tool) stands in a log."""
    trace = FRAMES + said
    message = {"role": "user", "content": trace}
    body = {"model": "m", "messages": [message]}
    return {
        "vllm": f"{ASKED}{trace!r}, params: SamplingParams(n=1), lora: None.",
        "vllm, lines": f"{ASKED}'help\n{trace}\nthanks', params: S(n=1)",
        "vllm, logger's lines": f"{ASKED}'log:\n{ERROR}{said}\n?', params: S(n=1)",
        "vllm, rank's lines": f"{ASKED}'log:\n[rank0]: {said}\n?', params: S(n=1)",
        "vllm, dmesg": f"{ASKED}'what is\n[12345.678901] {said}\n?', params: S(n=1)",
        "vllm, journal": (f"{ASKED}'what is\nJan 26 17:48:20 host kernel: {said}\n?', params: S()"),
        "sglang": f"{SGLANG}Receive: obj=GenerateReqInput(text={trace!r}, sampling_params={{}})",
        "sglang, lines": (
            f"{SGLANG}Receive: obj=GenerateReqInput(rid='a', text='see\n"
            f"[2026-01-02 03:04:05 TP0] Scheduler hit an exception: {trace}\n help', sampling_params={{}})"
        ),
        "sglang, answer": f"{SGLANG}Finish: obj=G(rid='a'), out={{'text': {said!r}, 'meta': 1}}",
        "access log": f'10.0.0.1 - - [02/Jan/2026:03:04:05] "GET /?q={said} HTTP/1.1" 200 5 "-" "{said}"',
        "proxy": f'2026/01/02 03:04:05 [error] 7#7: *1 timed out, request: "POST /v1?q={said} HTTP/1.1"',
        "json": json.dumps(body),
        "json, pretty": json.dumps(body, indent=2),
        "json record": json.dumps({**RECORD, "msg": "got", "body": trace}),
        "json record, text": json.dumps({**RECORD, "text": trace}),
        "repr": f"{VLLM}{body!r}",
        "bare repr": repr(body),
        "announced": f"{APP}user asked:\n{trace}",
        "answered": f"{APP}Response:\n{trace}\ndone",
        "f-string": f"{APP}Processing message {said}",
        "f-string, quoted": f"{APP}Processing message: '{said}'",
        "label": f"{APP}prompt={said}",
        "message": f"{APP}message: {said}",
        "tool": f"{APP}Tool call result: {said}",
        "tool message": json.dumps({"role": "tool", "content": trace}),
        "output": f"{APP}Output: {said}",
        "chat": f"**User**: my server says {said}\n**Assistant**: indeed",
        "chat export": f"[user] {said}\n[assistant] indeed",
        "stream": "data: " + json.dumps({"choices": [{"delta": {"content": said}}]}),
        "curl": f"curl -d '{json.dumps({'prompt': said})}' http://localhost:8000",
        "source": f"+    raise RuntimeError({said!r})",
        "debug body": f"DEBUG:    request body b'{json.dumps({'prompt': said})}'",
    }


def serving(n: int, at: int) -> str:
    return "".join(
        f"(APIServer pid=1) INFO 01-02 03:04:{at + i} [loggers.py:127] Engine 000: Avg prompt throughput: "
        f"120.0 tokens/s, Avg generation throughput: 50{i}.0 tokens/s, Running: 3 reqs, Waiting: 0 reqs, GPU "
        "KV cache usage: 42.0%, Prefix cache hit rate: 12.5%\n"
        for i in range(n)
    )


def diagnosed(text: str) -> Diagnosis:
    read = read_text(text)
    return diagnose_log(LogView(events=read.events, engine=read.engine, ended=read.ended))


def convinced(text: str) -> list[tuple[str, str]]:
    return [
        (f.cause, f.confidence)
        for f in diagnosed(text).findings
        if f.role != "ruled_out" and f.confidence != "suspected" and f.cause != "kv_pool_idle"
    ]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_forged_line_convinces(payload: str) -> None:
    for name, line in forms(PAYLOADS[payload]).items():
        for text in (
            serving(3, 10) + line + "\n" + serving(3, 20),
            serving(6, 10) + line + "\n",
            line + "\n",
        ):
            assert convinced(text) == [], (name, text[:80])


TRUE = {
    "vllm": "".join(f"{ERROR}{line}\n" for line in f"{FRAMES}RuntimeError: {CARD}".splitlines()),
    "bare": f"{FRAMES}RuntimeError: {CARD}\n",
    "TorchServe": f"2023-01-01T00:00:00,000 [INFO ] W-9000-m_1.0-stdout MODEL_LOG - RuntimeError: {CARD}\n",
    "Airflow": f"[2026-01-02, 03:04:05 UTC] {{subprocess.py:92}} INFO - RuntimeError: {CARD}\n",
    "stderr": f"{APP}stderr: {CARD}\n",
    "retry": f"{APP}Worker 3 failed: RuntimeError: {CARD}\n",
    "kernel": f"Jan 26 17:48:20 host kernel: {PAYLOADS['kernel']}\n",
    "dmesg": f"[12345.678901] {PAYLOADS['kernel']}\n",
}


@pytest.mark.parametrize("true", TRUE)
def test_a_true_failure_below_a_forged_one_is_found(true: str) -> None:
    for name, line in forms(PAYLOADS["torch"]).items():
        found = diagnosed(serving(3, 10) + line + "\n" + serving(1, 20) + TRUE[true])
        assert found.primary not in ("unknown", "healthy_baseline", "kv_pool_idle"), name


def test_what_an_engine_says_quietly_of_itself_is_no_retelling() -> None:
    log = f"{VLLM}Prompt tokens 12: {CARD}\n{VLLM}Engine core: {CARD}\nINFO 01-02 03:04:05 [a.py:1] {CARD}\n"
    assert {e.provenance for e in read_text(log).events if e.name == "torch_oom"} == {"logger"}
