"""A model's chat template: Jinja written by a stranger, run in a sandbox.

The sandbox is Jinja's immutable one: no attributes that start with an underscore, no changes to what
is passed in, no file access (there is no loader), `range` at most 100,000 long. On top of it the size
of the template and of its output are bounded, and rendering stops at a deadline (looked at between
pieces of output, so a loop that writes nothing is bounded by the sandbox alone).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from reference_server.errors import ConfigError
from reference_server.models.tokenizer import ChatError

MOST_TEMPLATE_CHARACTERS = 256 * 1024
MOST_TEXT_CHARACTERS = 8 * 1024**2
MOST_SECONDS = 2.0


class ChatTemplate:
    """A compiled template. Raises `ConfigError` when it does not compile."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        if len(source) > MOST_TEMPLATE_CHARACTERS:
            raise ConfigError(f"the chat template is longer than {MOST_TEMPLATE_CHARACTERS} characters")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise ConfigError(f"the chat template does not compile: {error}") from error
        self._special_tokens = special_tokens

    def render(self, messages: Iterable[tuple[str, str]], *, add_generation_prompt: bool) -> str:
        """The prompt; raises `ChatError` with the template's own words when it takes no such messages."""
        pieces = self._template.generate(
            messages=[{"role": role, "content": content} for role, content in messages],
            add_generation_prompt=add_generation_prompt,
            tools=None,
            documents=None,
            **self._special_tokens,
        )
        try:
            return "".join(_bounded(pieces))
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise ChatError(f"the chat template refuses these messages: {error}"[:500]) from error


def _bounded(pieces: Iterable[str]) -> Iterable[str]:
    length, end = 0, time.monotonic() + MOST_SECONDS
    for piece in pieces:
        length += len(piece)
        if length > MOST_TEXT_CHARACTERS or time.monotonic() > end:
            raise ValueError(
                f"its text is endless (over {MOST_TEXT_CHARACTERS} characters or {MOST_SECONDS} s)"
            )
        yield piece


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """JSON as it is, without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
