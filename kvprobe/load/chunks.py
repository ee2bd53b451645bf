"""What a chunk of an OpenAI-style stream says: text, tool text, reasoning, usage, error, finish.

Read after the stream, with msgspec into the shape that servers agree on; a chunk that is JSON but
of another shape (content as a list of parts, say) takes the slow way and still counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from kvprobe.evidence.records import RequestRecord


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    """Token counts as the server states them; what it leaves out is None."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None

    def fill(self, record: RequestRecord) -> None:
        """Write the counts into `record`."""
        record.prompt_tokens = self.prompt_tokens
        record.completion_tokens = self.completion_tokens
        if self.prompt_tokens_details is not None:
            record.cached_tokens = self.prompt_tokens_details.cached_tokens
        if self.completion_tokens_details is not None:
            record.reasoning_tokens = self.completion_tokens_details.reasoning_tokens


class _Chunk(msgspec.Struct):
    id: str | None = None
    object: str | None = None
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None


@dataclass(slots=True)
class ChunkMeaning:
    """One chunk, reduced to what a measurement needs.

    `visible` is answer text, `hidden` reasoning and tool text, each joined over the choices of the
    chunk; a chunk with neither (role chunk, empty content) is no content chunk. `finish` is the
    finish reason of the lowest choice index that has one, with that index.
    """

    visible: str = ""
    hidden: str = ""
    finish: tuple[int, str] | None = None
    usage: Usage | None = None
    is_error: bool = False
    id: str | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


def read_chunk(data: bytes) -> ChunkMeaning:
    """Raises ValueError when `data` is not a JSON object (or nests too deeply to be one)."""
    try:
        chunk = _decode_chunk(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        chunk = _convert(_load_leniently(data))
    meaning = ChunkMeaning(usage=chunk.usage, id=chunk.id)
    meaning.is_error = bool(chunk.error) or chunk.object == "error"
    for choice in chunk.choices or ():
        _add_choice(meaning, choice)
    return meaning


def is_error_document(body: bytes) -> bool:
    """Whether a JSON document is an OpenAI-style error."""
    try:
        return read_chunk(body).is_error
    except ValueError:
        return False


def _add_choice(meaning: ChunkMeaning, choice: _Choice) -> None:
    reason = choice.finish_reason
    if reason and (meaning.finish is None or choice.index < meaning.finish[0]):
        meaning.finish = (choice.index, reason)
    if choice.text:
        meaning.visible += choice.text
    delta = choice.delta
    if delta is None:
        return
    if delta.content:
        meaning.visible += delta.content
    if delta.refusal:
        meaning.visible += delta.refusal
    # A server that sends both names sends the same text twice.
    hidden = delta.reasoning_content or delta.reasoning
    if hidden:
        meaning.hidden += hidden
    for call in delta.tool_calls or ():
        if call.function is not None:
            meaning.hidden += (call.function.name or "") + (call.function.arguments or "")
    if delta.function_call is not None:
        meaning.hidden += (delta.function_call.name or "") + (delta.function_call.arguments or "")


def _load_leniently(data: bytes) -> Any:
    """JSON as browsers would take it: bad UTF-8 replaced (as the SSE standard says), lone surrogates kept."""
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _convert(value: Any) -> _Chunk:
    """The slow way: take what has the right type, leave out the rest."""
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object was expected, not {type(value).__name__}")
    choices = [_convert_choice(c) for c in _items(value.get("choices")) if isinstance(c, dict)]
    return _Chunk(
        id=_text(value.get("id")) or None,
        object=_text(value.get("object")) or None,
        choices=choices,
        usage=_convert_usage(value.get("usage")),
        error=value.get("error"),
    )


def _convert_choice(choice: dict[str, Any]) -> _Choice:
    raw = choice.get("delta")
    delta = raw if isinstance(raw, dict) else {}
    calls = [c.get("function") for c in _items(delta.get("tool_calls")) if isinstance(c, dict)]
    index = choice.get("index")
    return _Choice(
        index=index if isinstance(index, int) else 0,
        delta=_Delta(
            content=_text(delta.get("content")),
            reasoning_content=_text(delta.get("reasoning_content")),
            reasoning=_text(delta.get("reasoning")),
            refusal=_text(delta.get("refusal")),
            tool_calls=[_ToolCall(_convert_function(f)) for f in [*calls, delta.get("function_call")]],
        ),
        text=_text(choice.get("text")),
        finish_reason=_text(choice.get("finish_reason")) or None,
    )


def _convert_function(value: Any) -> _Function | None:
    if not isinstance(value, dict):
        return None
    arguments = value.get("arguments")
    if isinstance(arguments, dict):  # some servers send the arguments unserialised
        arguments = msgspec.json.encode(arguments).decode() if arguments else ""
    return _Function(name=_text(value.get("name")), arguments=_text(arguments))


def _convert_usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    prompt = value.get("prompt_tokens_details")
    completion = value.get("completion_tokens_details")
    return Usage(
        prompt_tokens=_count(value.get("prompt_tokens")),
        completion_tokens=_count(value.get("completion_tokens")),
        prompt_tokens_details=_PromptDetails(_count(prompt.get("cached_tokens")))
        if isinstance(prompt, dict)
        else None,
        completion_tokens_details=_CompletionDetails(_count(completion.get("reasoning_tokens")))
        if isinstance(completion, dict)
        else None,
    )


def _count(value: Any) -> int | None:
    whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1
    return int(value) if whole and 0 <= value < 2**53 else None


def _items(value: Any) -> Iterator[Any]:
    return iter(value) if isinstance(value, list) else iter(())


def _text(value: Any) -> str:
    """A string, or the texts of a list of content parts."""
    if isinstance(value, str):
        return value
    return "".join(
        text
        for part in _items(value)
        if isinstance(part, dict)
        for key in ("text", "thinking")
        if isinstance(text := part.get(key), str)
    )
