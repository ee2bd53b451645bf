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
    r"|\b(?:Request body|request body|Body|Prompt|User (?:message|prompt|input|query)|user[_ ](?:input|query)"
    r"|Completion|Chat history|(?:Model|LLM|model|llm)[_ ](?:output|response|answer)|Generated text"
    r"|[Tt]ool[_ ](?:call )?(?:result|output|response))\s?[:=]"
)
_CLOSERS = {
    "'": re.compile(r"(?<!\\)'(?=\s*[,)}\]]|\s*$)"),
    '"': re.compile(r"(?<!\\)\"(?=\s*[,)}\]]|\s*$)"),
}
"""A closing mark: not escaped, and followed by what ends a value."""
_ENDS = {
    "'": re.compile(r"(?<!\\)'(?:, ?['\"]?\w{1,40}['\"]?[=:]|\s?[)}\]]{1,4}(?:[,.)}\]]|\s|$))"),
    '"': re.compile(r"(?<!\\)\"(?:, ?['\"]?\w{1,40}['\"]?[=:]|\s?[)}\]]{1,4}(?:[,.)}\]]|\s|$))"),
}
# Where a logged prompt of several lines ends and the logger goes on.
_RESUMES = re.compile(r"['\"](?:,|\}|\))? ?(?:params: |sampling_params|prompt_token_ids|lora_request|rid=)")
_ACCESS = re.compile(r"\"(?:GET|POST|PUT|DELETE|HEAD|PATCH|OPTIONS) [^\"]{0,16384} ?HTTP/\d")
_CHAT_TURN = re.compile(
    r"\*{0,2}(?:user|User|USER|human|Human|assistant|Assistant|ASSISTANT)(?:\*\*)?\s?:(?:\*\*)? ?(?=\S)"
    r"|\[(?:user|User|USER|human|Human|assistant|Assistant|ASSISTANT)\] (?=\S)"
)
# A quiet logger's line that announces what somebody sent or a model said; bare lines follow.
_ANNOUNCES = re.compile(
    r"(?i)\b(?:user|human|assistant|prompt|question|query|response|completion|answer|reply|chat|conversation"
    r"|transcript|(?:model|generated|llm|tool)[ _]\w{1,20})\b[\w ]{0,30}:$"
)
QUIET = frozenset({"INFO", "DEBUG", "TRACE", "NOTICE", "D", "I", "V"})
# Words by which a program speaks of itself, or of a failure.
_OF_ITSELF = re.compile(
    r"(?i)err|fail|exce|\boom|crash|caught|abort|died|kill|unable|cannot|could ?n|warn|panic|retr|alloc"
    r"|std(?:err|out)|\blogs?\b|trace|worker|engine|rank|cuda|gpu|torch|scheduler|\bprocess\b|device|memory"
    r"|kernel|reason|cause|node|\bpod\b|container|\bjob\b"
)
_LEAD = re.compile(r"[^:=]{3,60}?(?=[:=])")
_NAME_OF_ERROR = re.compile(r" (?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception)$")
_PROSE = re.compile(r"['\"*]{0,3}[A-Za-z_]{3,}[A-Za-z_ '\"*]*$")
_STATEMENT_ALONE = re.compile(r"(?:raise|assert|return) |(?:print|logger\.\w{1,20}|log\.\w{1,20})\(")
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


def retells(text: str, position: int, level: str | None) -> bool:
    """Whether a logger that neither warns nor fails tells of something after words that are no program's of
    itself: `INFO Processing message: CUDA out of memory. ...`. A true failure is not said so."""
    if (level or "").upper() not in QUIET:
        return False
    lead = _LEAD.match(text[:position])
    if lead is None:
        return _is_prose(text[: min(position, 60)])
    at = lead.end() + 1
    mark = text[at : at + 2].strip()[:1]
    if mark in _CLOSERS and _CLOSERS[mark].search(text, at + 2, position) is not None:
        return False  # what was sent ends before: the logger goes on
    return _is_prose(_NAME_OF_ERROR.sub("", lead[0]))


def _is_prose(said: str) -> bool:
    said = said.strip()
    return _PROSE.match(said) is not None and _OF_ITSELF.search(said) is None


def opens_foreign_text(text: str, level: str | None = None) -> bool:
    """Whether a line begins foreign text that its own end does not close: the next bare lines are it."""
    if (level or "").upper() in QUIET and _ANNOUNCES.search(text[-200:]) is not None:
        return True
    opener = _open_at(text, len(text))
    if opener is None:
        return False
    # `Prompt: 12 tokens` is a statement; `Request body:` alone announces what follows.
    return opener[-1] not in ":=" or text.endswith(opener)


def opens_quotation(text: str) -> str | None:
    """The mark that a line's foreign text opens with and that the line does not close, null for none."""
    opener = _open_at(text, len(text))
    return opener[-1] if opener is not None and opener[-1] in _CLOSERS else None


def closes_quotation(text: str, mark: str) -> bool:
    """Whether a line holds `mark` with what only the writer of the line above can have put after it: the
    rest of the value, of the call or of the object."""
    return _RESUMES.search(text) is not None or _ENDS[mark].search(text) is not None


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
    if _STATEMENT_ALONE.match(text.lstrip("+- ")) is not None:
        return True
    if _SOURCE_LINE.match(text) is None:
        return False
    return any(_SOURCE_FRAME.match(line) for line in before[-3:])
