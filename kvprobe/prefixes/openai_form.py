"""One line of a request log in OpenAI's form, as the prompt that a prefix cache sees.

Known shapes: the request body itself (chat, completions, responses); `{"body": {…}}` (batch files);
`{"request": {…}, "response": {…}}`; each with or without a time, a replica and the usage of the answer. All
of it is foreign text.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any

from kvprobe.prefixes.sent import Sent

WRAPPERS = ("body", "request", "payload", "data", "input")
_TIMES = ("timestamp", "time", "ts", "t", "created", "created_at", "start_time", "@timestamp")
_REPLICAS = ("replica", "backend", "upstream", "server", "pod", "worker_id", "dp_rank")
_ADAPTERS = ("lora", "lora_name", "lora_path", "adapter", "adapter_id")
_OF_RESPONSES = ("instructions", "max_output_tokens", "previous_response_id", "reasoning", "store", "tools")
"""Keys that tell a request to /v1/responses from one for embeddings; both have `input`."""
_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""A number above the first is a time of our age in ns, us, ms."""


MOST_UNSEEN_TOKENS = 1 << 20
"""Tokens of a prompt that its text does not show (template, images); a usage with more is no usage."""


class Unusable(ValueError):
    """A line that is no prompt; the text says why, for the count."""


def body_of(row: Any) -> dict[str, Any] | None:
    """The object that holds the prompt, at most two levels down; null where there is none."""
    if not isinstance(row, dict):
        return None
    for name in (None, *WRAPPERS):
        outer = _opened(row if name is None else row.get(name))
        for inner in (outer, _opened(outer.get("body")) if outer is not None else None):
            if inner is not None and ("messages" in inner or "prompt" in inner or _is_response(inner)):
                return inner
    return None


def _opened(value: Any) -> dict[str, Any] | None:
    """An object; some gateways write it as a text that holds JSON."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _is_response(body: dict[str, Any]) -> bool:
    found = body.get("input")
    if isinstance(found, list):
        return any(isinstance(item, dict) and ("role" in item or "type" in item) for item in found)
    return isinstance(found, str) and any(name in body for name in _OF_RESPONSES)


def sent_of(row: dict[str, Any], number: int) -> Sent:
    """Raises `Unusable` for a line without a prompt that could be looked at."""
    body = body_of(row)
    text = text_of(body) if body is not None else None
    if body is None or text is None:
        raise Unusable("without a prompt")
    usage = _usage(row)
    tokens = _count(usage.get("prompt_tokens", usage.get("input_tokens"))) or None
    if tokens is not None and tokens > len(text) * 4 + MOST_UNSEEN_TOKENS:
        tokens = None  # a character is at most four bytes, and a token at least one of them
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    cached = _count(details.get("cached_tokens") if isinstance(details, dict) else usage.get("cached_tokens"))
    return Sent(
        text=text,
        tokens=tokens,
        cached=cached if cached is None or tokens is None or cached <= tokens else None,
        model=str(body.get("model") or ""),
        key=_key(body),
        bypass=bypass_of(body),
        replica=_named(row, _REPLICAS),
        line=number,
    )


def text_of(body: dict[str, Any]) -> str | None:
    """The prompt in the order in which templates write it: tools, then the messages."""
    prompt = body.get("prompt")
    prompts = prompt if isinstance(prompt, list) else [prompt]
    if len(prompts) == 1 and isinstance(prompts[0], str):
        return prompts[0]
    if isinstance(prompt, list) and prompt and not body.get("messages"):
        raise Unusable("of token ids" if isinstance(prompt[0], int | list) else "of several prompts")
    messages = _messages(body)
    if messages is None:
        return None
    parts = []
    tools = body.get("tools")
    if isinstance(tools, list) and tools:
        parts += ["<tools>\n", *(json.dumps(tool, ensure_ascii=False) + "\n" for tool in tools), "</tools>\n"]
    for message in messages:
        if not isinstance(message, dict):
            return None
        parts.append(f"<{message.get('role') or message.get('type') or 'user'}>\n{_content(message)}\n")
    return "".join(parts)


def _messages(body: dict[str, Any]) -> list[Any] | None:
    """Those of a chat, or the like of a request to /v1/responses."""
    messages = body.get("messages")
    if isinstance(messages, list) and messages:
        return messages
    if "messages" in body or not _is_response(body):
        return None
    if body.get("previous_response_id") is not None:
        raise Unusable("that go on from an answer which is not in them")
    given, first = body["input"], body.get("instructions")
    head = [{"role": "system", "content": first}] if isinstance(first, str) else []
    return [*head, *(given if isinstance(given, list) else [{"role": "user", "content": given}])]


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    calls = message.get("tool_calls")
    called = json.dumps(calls, ensure_ascii=False) if calls else ""
    if isinstance(content, list):
        return "".join(_part(part) for part in content) + called
    if content is None and not calls and "role" not in message:  # a call or its result under /v1/responses
        return json.dumps({k: v for k, v in message.items() if k != "id"}, ensure_ascii=False)
    return (content if isinstance(content, str) else "") + called


def _part(part: Any) -> str:
    """Text as it is; an image as a name of its bytes, for equal images share."""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    data = json.dumps(part, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")
    return f"<image {hashlib.blake2b(data, digest_size=8).hexdigest()}>"


def _key(body: dict[str, Any]) -> tuple[str, ...]:
    """What the engine puts into its cache key beside the tokens: never shown, only told apart."""
    stated = body.get("extra_body")
    extra = stated if isinstance(stated, dict) else {}
    salt = body.get("cache_salt", extra.get("cache_salt"))
    adapters = [str(body.get(name, extra.get(name))) for name in _ADAPTERS if name in body or name in extra]
    return ("" if salt is None else str(salt), *adapters)


def bypass_of(body: dict[str, Any]) -> str | None:
    """A request option that keeps a prompt out of the cache (vLLM, SGLang)."""
    if body.get("prompt_logprobs") is not None:
        return "prompt_logprobs"
    start = body.get("logprob_start_len")
    return "logprob_start_len" if isinstance(start, int) and start >= 0 and start != -1 else None


def _usage(row: dict[str, Any]) -> dict[str, Any]:
    answer = _opened(row.get("response"))
    inner = answer.get("body") if answer is not None else None
    for holder in (row, answer, inner):
        if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
            return dict(holder["usage"])
    return {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else None


def _named(row: dict[str, Any], names: tuple[str, ...]) -> str | None:
    for holder in (row, row.get("response")):
        if isinstance(holder, dict):
            for name in names:
                if isinstance(holder.get(name), str | int) and not isinstance(holder.get(name), bool):
                    return str(holder[name])
    return None


def time_of(row: dict[str, Any]) -> float | None:
    """Seconds on any one clock: a number (of s, ms, us or ns), or ISO 8601."""
    for holder in (row, row.get("request"), row.get("response")):
        if not isinstance(holder, dict):
            continue
        for name in _TIMES:
            value = holder.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e20:
                return value / next((per for above, per in _UNITS if value > above), 1.0)
            if isinstance(value, str):
                try:
                    return datetime.fromisoformat(value).timestamp()
                except (ValueError, OverflowError):
                    continue
    return None
