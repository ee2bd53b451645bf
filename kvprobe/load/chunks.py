"""What a chunk of an OpenAI-style stream says: text, tool text, reasoning, usage, error, finish.

Read after the stream, with msgspec into the shape that servers agree on; a chunk that is JSON but
of another shape (content as a list of parts, say) takes the slow way and still counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from kvprobe.evidence.records import RequestRecord

MAX_COUNT = 2**53 - 1
"""A count beyond it is no count: JSON numbers are exact up to here, and columns hold 64 bits."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _CustomTool(msgspec.Struct):
    name: str | None = None
    input: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None
    custom: _CustomTool | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Count | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: _Count | None = None


class Usage(msgspec.Struct):
    """Token counts as the server states them; what it leaves out is None.

    `cached_tokens` and `prompt_cache_hit_tokens` are other servers' words for the detail.
    """

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    cached_tokens: _Count | None = None
    prompt_cache_hit_tokens: _Count | None = None

    def fill(self, record: RequestRecord) -> None:
        """Write the counts into `record`: the larger ones where it has some already.

        A server may state usage more than once: growing with every chunk, in two halves, or full
        and then empty. Counts of one request only grow.
        """
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        cached = prompt.cached_tokens if prompt is not None else None
        for alias in (self.cached_tokens, self.prompt_cache_hit_tokens):
            cached = alias if cached is None else cached
        reasoning = completion.reasoning_tokens if completion is not None else None
        record.prompt_tokens = _larger(record.prompt_tokens, self.prompt_tokens)
        record.completion_tokens = _larger(record.completion_tokens, self.completion_tokens)
        record.cached_tokens = _larger(record.cached_tokens, cached)
        record.reasoning_tokens = _larger(record.reasoning_tokens, reasoning)


def _larger(known: int | None, stated: int | None) -> int | None:
    return known if stated is None else max(stated, known or 0)


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None


class _Groq(msgspec.Struct):
    usage: Usage | None = None


class _Chunk(msgspec.Struct):
    id: str | None = None
    object: str | None = None
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    x_groq: _Groq | None = None
    error: Any = None


class ChunkMeaning(msgspec.Struct, gc=False):
    """One chunk, reduced to what a measurement needs.

    `visible` is answer text, `hidden` reasoning and tool text, each joined over the choices of the
    chunk; a chunk with neither (role chunk, empty content) is no content chunk. `finish` is the
    finish reason of the lowest choice index that has one, with that index.
    """

    visible: str = ""
    hidden: str = ""
    finish: tuple[int, str] | None = None
    usages: list[Usage] = []
    is_error: bool = False
    id: str | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


def read_chunk(data: bytes) -> ChunkMeaning:
    """Raises ValueError when `data` is not a JSON object (or nests too deeply to be one)."""
    try:
        chunk = _decode_chunk(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        chunk = _convert(_load_leniently(data))
    meaning = ChunkMeaning(id=chunk.id)
    for usage in (chunk.usage, chunk.x_groq.usage if chunk.x_groq else None):
        if usage is not None:
            meaning.usages.append(usage)
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
    if choice.usage is not None:
        meaning.usages.append(choice.usage)
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
        if call.custom is not None:
            meaning.hidden += (call.custom.name or "") + (call.custom.input or "")
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
        x_groq=_Groq(_convert_usage(_dict(value.get("x_groq")).get("usage"))),
        error=value.get("error"),
    )


def _convert_choice(choice: dict[str, Any]) -> _Choice:
    delta = _dict(choice.get("delta"))
    calls = [_convert_call(c) for c in _items(delta.get("tool_calls")) if isinstance(c, dict)]
    index = choice.get("index")
    return _Choice(
        index=index if isinstance(index, int) else 0,
        delta=_Delta(
            content=_text(delta.get("content")),
            reasoning_content=_text(delta.get("reasoning_content")),
            reasoning=_text(delta.get("reasoning")),
            refusal=_text(delta.get("refusal")),
            tool_calls=calls,
            function_call=_convert_call({"function": delta.get("function_call")}).function,
        ),
        text=_text(choice.get("text")),
        finish_reason=_text(choice.get("finish_reason")) or None,
        usage=_convert_usage(choice.get("usage")),
    )


def _convert_call(call: dict[str, Any]) -> _ToolCall:
    function, custom = _dict(call.get("function")), _dict(call.get("custom"))
    arguments = function.get("arguments")
    # Some servers send the arguments unserialised: that there are some is all that counts here.
    text = "object" if isinstance(arguments, dict) and arguments else _text(arguments)
    return _ToolCall(
        function=_Function(name=_text(function.get("name")), arguments=text),
        custom=_CustomTool(name=_text(custom.get("name")), input=_text(custom.get("input"))),
    )


def _convert_usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    prompt, completion = (
        _dict(value.get("prompt_tokens_details")),
        _dict(value.get("completion_tokens_details")),
    )
    return Usage(
        prompt_tokens=_count(value.get("prompt_tokens")),
        completion_tokens=_count(value.get("completion_tokens")),
        prompt_tokens_details=_PromptDetails(_count(prompt.get("cached_tokens"))),
        completion_tokens_details=_CompletionDetails(_count(completion.get("reasoning_tokens"))),
        cached_tokens=_count(value.get("cached_tokens")),
        prompt_cache_hit_tokens=_count(value.get("prompt_cache_hit_tokens")),
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1
    return int(value) if whole and 0 <= value <= MAX_COUNT else None


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
