"""Who says a line: the engine's logger, a traceback, the kernel, nobody known, or foreign text.

A server logs what its users send. A prompt that reads "CUDA out of memory. Tried to allocate 2.34 GiB" is
not an out-of-memory: what stands inside a logged prompt, request body, URL or source line is `quoted`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvprobe.observe.logs.envelopes import is_request_body

# From here on, a line holds what somebody sent (or a model said). Openers that end in a quotation mark end
# where that mark stands again.
_OPENERS = re.compile(
    r"Received request \S{1,200} prompt: ['\"]"
    r"|\b(?:prompt|prompts|messages|inputs?|input_text|text|content|query|question|instruction|user_message"
    r"|system_prompt|completion|response_text|generated_text|output|body|request_body|payload)"
    r"['\"]?\s?[:=]\s?(?:\[\s?)?(?:\{\s?)?[rbuf]?['\"]"
    r"|['\"]role['\"]\s?:\s?['\"]"
    r"|<\|(?:im_start|start_header_id|user|system|assistant|begin_of_text|endoftext)\|?>?"
    r"|\[INST\]|<start_of_turn>|<s>\[|### (?:Instruction|Human|User|Input):"
    r"|\b(?:Request body|request body|Body|Prompt|User message|User prompt|Completion|Chat history)\s?[:=]"
)
_CLOSERS = {
    "'": re.compile(r"(?<!\\)'(?=\s*[,)}\]]|\s*$)"),
    '"': re.compile(r"(?<!\\)\"(?=\s*[,)}\]]|\s*$)"),
}
"""A closing mark: not escaped, and followed by what ends a value."""
# Where a logged prompt of several lines ends and the logger goes on.
_RESUMES = re.compile(r"['\"](?:,|\}|\))? ?(?:params: |sampling_params|prompt_token_ids|lora_request|rid=)")
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
    return _ACCESS.search(text) is not None or _open_at(text, position) is not None


def opens_foreign_text(text: str) -> bool:
    """Whether a line begins foreign text that its own end does not close: the next bare lines are it."""
    opener = _open_at(text, len(text))
    if opener is None:
        return False
    # `Prompt: 12 tokens` is a statement; `Request body:` alone announces what follows.
    return opener[-1] not in ":=" or text.endswith(opener)


def closes_foreign_text(text: str) -> bool:
    """Whether a line without a prefix ends what a logger quoted above it."""
    return _RESUMES.search(text) is not None


def _open_at(text: str, position: int) -> str | None:
    """The first opener before `position` whose quotation is not closed there. Its own mark closes it: what
    it quotes cannot hold that mark unescaped, whatever other openers and closers stand in it."""
    at = 0
    while (opener := _OPENERS.search(text, at, min(position + 1, len(text)))) is not None:
        closer = _CLOSERS.get(opener[0][-1])
        closed = closer.search(text, opener.end(), position) if closer is not None else None
        if closed is None:
            return opener[0]
        at = closed.end()
    return None


def is_source_code(text: str, before: Sequence[str]) -> bool:
    """A line of source that a traceback shows: what it would print is not what happened.

    `before` are the (one to three) lines above, nearest last.
    """
    if _SOURCE_LINE.match(text) is None:
        return False
    return any(_SOURCE_FRAME.match(line) for line in before[-3:])
