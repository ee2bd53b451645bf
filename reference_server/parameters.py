"""Parameters that change an answer and that this server does not have.

A request that asks for tools, or for eight choices, and gets one plain text back has been answered
wrongly without a word. So what is not served is refused, unless its value asks for nothing.
Parameters that are not in the table change no text (`user`, `metadata`, `priority`), and are
ignored, as vLLM does.
"""

from __future__ import annotations

from typing import Any

import msgspec

from reference_server.errors import RequestError

NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "min_p": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_k": (-1, 0),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
"""The values that ask for nothing, beside null."""

_Fields = dict[str, msgspec.Raw]


def refuse_unserved(body: bytes) -> None:
    """Raise `RequestError` for the first parameter of a JSON object that would have to be ignored."""
    given = _decoded(body, _Fields)
    for name in sorted(NEUTRAL.keys() & given.keys()):
        value = _decoded(given[name], object, name)
        if value is not None and not any(_same(value, neutral) for neutral in NEUTRAL[name]):
            raise RequestError(400, _refusal(name), param=name)


def _decoded(raw: bytes | msgspec.Raw, kind: Any, param: str | None = None) -> Any:
    """A value that the typed parser skipped: whether its numbers and text are any was not looked at."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(400, f"the body is no valid JSON: {str(error)[:200]}", param=param) from error


def _refusal(name: str) -> str:
    served = " or ".join(msgspec.json.encode(value).decode() for value in NEUTRAL[name])
    return f"{name} is not supported" + (f", except as {served}" if served else "") + "; leave it out"


def _same(value: object, neutral: object) -> bool:
    """Equal, with true and false told from 1 and 0: `n=true` is no number of choices."""
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral
