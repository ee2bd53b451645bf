"""Who says a line: the engine's logger, a traceback, the kernel, nobody known, or foreign text.

A server logs what its users send. A prompt that reads "CUDA out of memory. Tried to allocate 2.34 GiB" is
not an out-of-memory: what stands inside a logged prompt, request body, URL or source line is `quoted`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvprobe.observe.logs.envelopes import is_request_body

# From here on, a line holds what somebody sent (or a model said).
_OPENERS = re.compile(
    r"Received request \S{1,200} prompt"
    r"|\b(?:prompt|prompts|messages|inputs?|input_text|text|content|query|question|instruction|user_message|system_prompt"
    r"|completion|response_text|generated_text|output|body|request_body|payload)"
    r"['\"]?\s?[:=]\s?(?:\[\s?)?(?:\{\s?)?[rbuf]?['\"]"
    r"|['\"]role['\"]\s?:\s?['\"]"
    r"|<\|(?:im_start|start_header_id|user|system|assistant|begin_of_text|endoftext)\|?>?"
    r"|\[INST\]|<start_of_turn>|<s>\[|### (?:Instruction|Human|User|Input):"
    r"|(?:Generated|Sending) (?:response|text)\b"
    r"|\b(?:Request body|request body|Body|Prompt|User message|User prompt|Completion|Chat history)\s?(?::|=)"
)
# Where a logged prompt ends and the logger goes on.
_CLOSERS = re.compile(
    r"['\"](?:,|\})? ?(?:params: SamplingParams|sampling_params=|prompt_token_ids|lora_request|rid=)"
)
_ACCESS = re.compile(r"\"(?:GET|POST|PUT|DELETE|HEAD|PATCH|OPTIONS) [^\"]{0,16384} ?HTTP/\d")
_CHAT_TURN = re.compile(r"(?:user|User|USER|human|Human|assistant|Assistant|ASSISTANT)\s?: ?(?=\S)")
_SOURCE_FRAME = re.compile(r"File \"[^\"\n]{1,500}\", line \d{1,7}")
_SOURCE_LINE = re.compile(
    r"raise |return |self\.|logger\.|log\.|print\(|warnings\.warn|[rbuf]{1,2}[\"']|[\"']|assert |msg = "
    r"|if |elif |except "
)
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|OutOfMemory|Exit)\b(?::|$)"
)


def is_exception_line(text: str) -> bool:
    """`torch.OutOfMemoryError: CUDA out of memory. ...`: the last line of a traceback."""
    return _EXCEPTION.match(text) is not None


def quoted_at(text: str, position: int) -> bool:
    """Whether what stands at `position` of a message is foreign text that the line quotes."""
    if _CHAT_TURN.match(text) is not None or is_request_body(text):
        return True
    if _ACCESS.search(text) is not None:
        return True
    opened = -1
    for found in _OPENERS.finditer(text, 0, min(position + 1, len(text))):
        opened = found.end()
    if opened < 0:
        return False
    return _CLOSERS.search(text, opened, position) is None


def opens_foreign_text(text: str) -> bool:
    """Whether a line begins foreign text that its own end does not close: the next bare lines are it."""
    found = None
    for found in _OPENERS.finditer(text):  # noqa: B007 (the last one is wanted)
        pass
    if found is None or _CLOSERS.search(text, found.end()) is not None:
        return False
    rest = text[found.end() :]
    quote = text[found.end() - 1]
    if quote not in "'\"":
        return True
    return rest.replace(f"\\{quote}", "").count(quote) % 2 == 0


def is_source_code(text: str, before: Sequence[str]) -> bool:
    """A line of source that a traceback shows: what it would print is not what happened.

    `before` are the (one to three) lines above, nearest last.
    """
    if _SOURCE_LINE.match(text) is None:
        return False
    return any(_SOURCE_FRAME.match(line) for line in before[-3:])
