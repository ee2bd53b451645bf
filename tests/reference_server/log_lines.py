"""The lines that `docs/server-log.md` lists, as patterns."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "server-log.md"
_NUMBER = r"-?\d+(?:\.\d+)*"
_ID = r"(?:cmpl|chatcmpl)-\S+|r\d+"


def documented() -> list[re.Pattern[str]]:
    """A pattern for each example of the tables."""
    patterns = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("| ") and "`" in line:
            cells = line.strip("| ").split(" | ")
            patterns += [_pattern(example) for example in re.findall(r"`([^`]+)`", cells[-1])]
    return patterns


def _pattern(example: str) -> re.Pattern[str]:
    text = re.escape(example.removeprefix("kvprobe serve: "))
    text = text.replace("cmpl\\-0f…", f"(?:{_ID})").replace("…", ".*")
    text = re.sub(r"(?:\\-)?\d+(?:\\\.\d+)*", lambda _: _NUMBER, text)
    text = text.replace(f"fp{_NUMBER}", "(?:fp32|bf16|fp16|fp8|int8)")
    text = text.replace(f"hits\\ {_NUMBER}%", f"hits\\ (?:no\\ queries|{_NUMBER}%)")
    # Words that stand for one of a few.
    for word, others in _CHOICES.items():
        text = text.replace(re.escape(word), others)
    return re.compile(text)


_CHOICES = {
    "model tiny": r"model \S+",
    "device cpu": "device (?:cpu|cuda)",
    "allocator paged": "allocator (?:paged|paged-reserve|contiguous|contiguous-exact)",
    "preemption recompute": "preemption (?:recompute|swap)",
    "prefix caching on": "prefix caching (?:on|off)",
    "phase serve": "phase (?:load|profile|capture|serve)",
    "phase profile": "phase (?:load|profile|capture|serve)",
    "BadRequestError (messages)": r"\w+Error(?: \(\w+\))?",
}


def undocumented(messages: list[str]) -> list[str]:
    """Messages that no example stands for."""
    patterns = documented()
    return [message for message in messages if not any(p.fullmatch(message) for p in patterns)]
