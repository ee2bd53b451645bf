"""Tool definitions as JSON lines in a system message, in an order that changes from request to request.

The same tools with the same texts every time: only the order of the tools, or of the keys of each, is
different, as it is where an application builds them from a set or a map without an order.
"""

from __future__ import annotations

import random
from itertools import permutations

from kvprobe.load.prompt_texts import Texts
from kvprobe.load.words import NEWLINE, WORDS
from kvprobe.load.workload_prompts import ToolCallsPrompt

_EXAMPLE = WORDS[0]
_KEYS = ("name", "description", "parameters")
_ORDERS = tuple(permutations(_KEYS))


def _line(order: tuple[str, ...], name: str, description: str) -> str:
    """A definition; the words stand behind a space, so that their tokens are those of running text."""
    values = {
        "name": f'"{name}"',
        "description": f'"{description}"',
        "parameters": '{"type": "object", "properties": {"query": {"type": "string"}}}',
    }
    return "{" + ", ".join(f'"{key}": {values[key]}' for key in order) + "}" + NEWLINE


TOOL_LINES: tuple[str, ...] = tuple(_line(order, _EXAMPLE, _EXAMPLE) for order in _ORDERS)
"""The frame of a definition in each order of its keys, for the calibration to measure."""


class ToolList:
    """The tools of one run."""

    def __init__(self, prompt: ToolCallsPrompt, texts: Texts) -> None:
        self._prompt = prompt
        self._texts = texts
        known = texts.calibration.word_tokens
        inner = 2 * texts.filler.word_tokens(WORDS.index(_EXAMPLE))
        self._frames = [max(known.get(line, texts.count(line)) - inner, 0) for line in TOOL_LINES]
        usual = self._frames[0]
        self._tools: list[tuple[str, str, float]] = []
        for number in range(prompt.tools):
            name = WORDS[(number + texts.shift) % len(WORDS)]
            name_tokens = texts.filler.word_tokens(WORDS.index(name))
            # The first word of each text tells tools apart that have come to share a name.
            rest = prompt.tool_tokens - usual - name_tokens
            text, tokens = texts.filler.fill(texts.key("tool", number), rest)
            self._tools.append((name, text, name_tokens + tokens))

    @property
    def mean_tokens(self) -> int:
        """Tokens of the list in its usual order."""
        return round(sum(tokens + self._frames[0] for _, _, tokens in self._tools))

    def ordered(self, index: int) -> tuple[str, float]:
        """The list as request `index` has it, and its tokens."""
        shuffle = self._prompt.shuffle
        rng = random.Random(f"{self._texts.draw('tools', index)}")
        places = list(range(len(self._tools)))
        if shuffle in ("tools", "both"):
            rng.shuffle(places)
        lines: list[str] = []
        total = 0.0
        for place in places:
            name, text, tokens = self._tools[place]
            order = rng.randrange(len(_ORDERS)) if shuffle in ("keys", "both") else 0
            lines.append(_line(_ORDERS[order], name, text))
            total += tokens + self._frames[order]
        return "".join(lines), total
