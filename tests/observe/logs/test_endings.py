"""How a log ends decides what may be said of it."""

from __future__ import annotations

import pytest

from kvprobe.observe.logs.intake import read_text
from tests.observe.logs.logkit import OOM

INFO = "INFO 01-02 03:04:{:02d} [loggers.py:127] Engine 000: Running: 1 reqs\n"
LIFE = "".join(INFO.format(i) for i in range(40))


def ended(text: str) -> str:
    return read_text(text, "s").ended["s"]


@pytest.mark.parametrize(
    ("text", "how"),
    [
        (LIFE, "cut"),
        (LIFE + f"Traceback (most recent call last):\n{OOM}\n", "traceback"),
        (LIFE + f"Traceback (most recent call last):\n{OOM}\nINFO:     Shutting down\n", "traceback"),
        (LIFE + f"Traceback (most recent call last):\n{OOM}\n" + LIFE, "cut"),
        (LIFE + "INFO:     Shutting down\nINFO:     Finished server process [1]\n", "shutdown"),
        (
            LIFE + "INFO:     Shutting down\nTraceback (most recent call last):\nasyncio.CancelledError\n",
            "shutdown",
        ),
        (
            LIFE + "INFO:     Shutting down\nTraceback (most recent call last):\nEngineDeadError: x\n",
            "shutdown",
        ),
        (LIFE + "KeyboardInterrupt\n", "cut"),
        (LIFE + "terminate called after throwing an instance of 'std::bad_alloc'\n", "traceback"),
        (
            "".join(f"Loading shards: {i}% Completed | {i}/100 [00:01<00:02,  1.0it/s]\n" for i in range(45)),
            "cut",
        ),
        (f"{OOM}\n", "traceback"),
        ("It does not work on my machine.\nPlease help.\n", "excerpt"),
        ("INFO 01-02 03:04:05 [x.py:1] GPU KV cache size: 1,000 tokens\n", "excerpt"),
        ("", "excerpt"),
    ],
)
def test_how_a_log_ends(text: str, how: str) -> None:
    assert ended(text) == how


def test_an_empty_source_is_an_excerpt_of_nothing() -> None:
    read = read_text("", "s")
    assert (read.lines, read.bytes, read.events, read.engine) == (0, 0, [], None)
