"""A model's chat template: Jinja written by a stranger, run in a sandbox.

The sandbox is Jinja's immutable one: no attributes that start with an underscore, no changes to what
is passed in, no file access (there is no loader), `range` at most 100,000 long. On top of it the size
of the template and of its output are bounded, and rendering stops at a deadline. The clock is looked
at between pieces of output and, by a call that is put into each of them, at every turn of a loop and
every call of a macro, so that a template that writes nothing ends too. Sums, products, powers and
joined texts, which make much of little, are bounded in size. (What a single filter makes of its
arguments is not: a template is part of the model, which whoever starts the server has chosen.)
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterable, Sized
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from reference_server.errors import ConfigError
from reference_server.models.tokenizer import ChatError

MOST_TEMPLATE_CHARACTERS = 256 * 1024
MOST_TEXT_CHARACTERS = 8 * 1024**2
MOST_SECONDS = 2.0
ENDLESS = f"it is endless (over {MOST_TEXT_CHARACTERS} characters or {MOST_SECONDS} s)"


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a clock in it."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False)
        self.filters["tojson"] = _to_json
        self.globals.update(raise_exception=_refuse, strftime_now=_now)
        self._running = threading.local()

    def start_clock(self) -> None:
        """For what this thread renders next."""
        self._running.end = time.monotonic() + MOST_SECONDS

    def look_at_clock(self) -> None:
        """Raises ValueError when the time is over; when a template is compiled none is running."""
        if time.monotonic() > getattr(self._running, "end", math.inf):
            raise ValueError(ENDLESS)

    def join(self, *parts: Any) -> str:
        """What `~` does, up to a size."""
        texts = [str(part) for part in parts]
        _refuse_large("~", sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Texts and lists as long as a rendered text may be, and numbers of as many bits."""
        if operator == "+":
            size = _length(left) + _length(right)
        elif operator == "**":
            size = _bits(left) * abs(right)
        elif isinstance(left, Sized) or isinstance(right, Sized):
            # A text or a list, repeated.
            size = (_length(left) or left) * (_length(right) or right)
        else:
            size = _bits(left) + _bits(right)
        _refuse_large(operator, size)
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _WithClock().visit(super()._parse(source, name, filename))
        return tree


class _WithClock(NodeTransformer):
    """Puts the sandbox's calls into a template. An attribute of the environment cannot be shadowed."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._looking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._looking(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._looking(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("join", node.nodes, node.lineno)

    def _looking(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("look_at_clock", [], node.lineno), lineno=node.lineno))
        return node


def _call(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    called = nodes.EnvironmentAttribute(method, lineno=line)
    return nodes.Call(called, arguments, [], None, None, lineno=line)


class ChatTemplate:
    """A compiled template. Raises `ConfigError` when it does not compile."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        if len(source) > MOST_TEMPLATE_CHARACTERS:
            raise ConfigError(f"the chat template is longer than {MOST_TEMPLATE_CHARACTERS} characters")
        self._environment = _Sandbox()
        try:
            self._template = self._environment.from_string(source)
        except (TemplateError, RecursionError, ValueError, ArithmeticError, TypeError) as error:
            raise ConfigError(f"the chat template does not compile: {error}"[:500]) from error
        self._special_tokens = special_tokens

    def render(self, messages: Iterable[tuple[str, str]], *, add_generation_prompt: bool) -> str:
        """The prompt; raises `ChatError` with the template's own words when it takes no such messages."""
        self._environment.start_clock()
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
            raise ValueError(ENDLESS)
        yield piece


def _refuse_large(operator: str, size: float) -> None:
    if size > MOST_TEXT_CHARACTERS:
        raise ValueError(f"what its `{operator}` makes is too large")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Sized) else 0


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 1


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """JSON as it is, without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
