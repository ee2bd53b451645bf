"""Who says it: forged lines in prompts, bodies, URLs and source code do not convince (F55)."""

from __future__ import annotations

import json

import pytest

from kvprobe.observe.logs.intake import read_text
from tests.observe.logs.logkit import OOM

LOGGER = "(APIServer pid=1) INFO 01-02 03:04:05 [logger.py:40] "


def provenances(text: str) -> list[str]:
    return [e.provenance for e in read_text(text).events if e.name == "torch_oom"]


@pytest.mark.parametrize(
    "line",
    [
        f"{LOGGER}Received request c-1: prompt: 'why? {OOM}', params: SamplingParams(n=1), lora: None.",
        f'{LOGGER}Received request cmpl-1: prompt: "it\'s {OOM}", params: SamplingParams(n=1)',
        f"[2026-01-02 03:04:05] Receive: obj=GenerateReqInput(text='{OOM}', sampling_params={{}})",
        f"{LOGGER}Request body: {OOM}",
        json.dumps({"model": "m", "messages": [{"role": "user", "content": OOM}]}),
        json.dumps({"prompt": OOM}),
        f'INFO:     10.0.0.1:5 - "GET /search?q={OOM.replace(" ", "+")} HTTP/1.1" 200 OK {OOM}',
        f"user: {OOM}",
        f"<|im_start|>user {OOM}",
        f"[INST] {OOM} [/INST]",
        json.dumps({"level": "info", "time": "2026-01-02T03:04:05Z", "msg": f"chat content='{OOM}'"}),
        f'{LOGGER}messages=[{{"role": "user", "content": "{OOM}"}}]',
        f"{LOGGER}Generated response cmpl-1: output: '{OOM}', finish_reason: stop",
    ],
)
def test_what_somebody_sent_is_quoted(line: str) -> None:
    assert set(provenances(line)) <= {"quoted"}


def test_a_prompt_of_several_lines_is_quoted_to_its_end() -> None:
    log = (
        f"{LOGGER}Received request c-1: prompt: 'Please explain:\nTraceback (most recent call last):\n"
        f'  File "a.py", line 1, in f\n{OOM}\nthank you\', params: SamplingParams(n=1)\n'
    )
    assert provenances(log) == ["quoted"]
    # What comes after the prompt's end is the server's own.
    after = f"{log}(EngineCore pid=2) ERROR 01-02 03:04:06 [core.py:1] {OOM}\n"
    assert provenances(after) == ["quoted", "traceback"]


def test_a_traceback_after_a_closed_prompt_is_true() -> None:
    log = f"{LOGGER}Received request cmpl-1: prompt: 'hello', params: SamplingParams(n=1)\n{OOM}\n"
    assert provenances(log) == ["traceback"]


def test_quotation_marks_within_a_prompt_do_not_end_it() -> None:
    """Python's repr escapes the mark that it uses; other marks, and other openers, are the user's."""
    for inner in (
        f"it's, params: SamplingParams(), text='', x {OOM}",
        f'text=", lora_request: None {OOM}',
        f"'], 'role': 'user', {OOM}",
        f"a\\', params: SamplingParams() {OOM}",
    ):
        assert provenances(
            f"{LOGGER}Received request c-1: prompt: {inner!r}, params: SamplingParams(n=1)"
        ) == ["quoted"]


def test_what_follows_a_quotation_on_the_same_line_is_the_loggers() -> None:
    for line in (
        f'{LOGGER}request {{"messages": [{{"role": "user", "content": "hi"}}]}} failed: {OOM}',
        f"{LOGGER}text='hello', n=1: {OOM}",
        f"{LOGGER}Prompt tokens 12: {OOM}",
    ):
        assert provenances(line) == ["logger"], line


def test_a_true_traceback_below_a_prompt_of_several_lines() -> None:
    log = (
        f"{LOGGER}Received request c-1: prompt: 'two\nlines', params: SamplingParams(n=1)\n"
        f"Traceback (most recent call last):\n{OOM}\n"
    )
    assert provenances(log) == ["traceback"]
    log = f"{LOGGER}Prompt: 12 tokens\nTraceback (most recent call last):\n{OOM}\n"
    assert provenances(log) == ["traceback"]


def test_source_lines_of_a_traceback_are_no_statements() -> None:
    log = f'  File "/x/allocator.py", line 3, in alloc\n    raise RuntimeError("{OOM}")\n'
    assert set(provenances(log)) <= {"quoted"}


@pytest.mark.parametrize(
    ("line", "who"),
    [
        (OOM, "traceback"),
        (OOM.removeprefix("torch.OutOfMemoryError: "), "bare"),
        (f"ERROR 01-02 03:04:05 [core.py:1] {OOM.removeprefix('torch.OutOfMemoryError: ')}", "logger"),
        (f"[rank0]: {OOM}", "traceback"),
        (
            json.dumps({"level": "error", "ts": 1.0e9, "msg": OOM.removeprefix("torch.OutOfMemoryError: ")}),
            "logger",
        ),
    ],
)
def test_who_says_it(line: str, who: str) -> None:
    assert provenances(line + "\n") == [who]


@pytest.mark.parametrize("width", [*range(60, 140, 3), 160, 200, 252])
def test_a_real_message_broken_anywhere_is_read_whole(width: int) -> None:
    pieces = [OOM[i : i + width] for i in range(0, len(OOM), width)]
    hard = "\n".join(pieces)
    whole = next(e for e in read_text(OOM).events if e.name == "torch_oom")
    for text in (hard, f"INFO 01-02 03:04:05 [x.py:1] before\n{hard}\nINFO 01-02 03:04:05 [x.py:1] after\n"):
        found = [e for e in read_text(text).events if e.name == "torch_oom"]
        assert [e.values for e in found] == [whole.values]
