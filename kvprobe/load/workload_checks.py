"""What must fit together between the parts of a workload, beyond what each part can judge by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kvprobe.load.workload_prompts import (
    ENDLESS_KINDS,
    MAX_FAMILY_REQUESTS,
    PROMPT_CLASSES,
    MultiTurnPrompt,
    RagDocumentsPrompt,
    SharedPrefixPrompt,
    ToolCallsPrompt,
    TraceReplayPrompt,
)
from kvprobe.load.workload_values import MAX_TOKENS
from kvprobe.load.yaml_source import KeyPath

if TYPE_CHECKING:
    from kvprobe.load.workload import Workload

TRACE_KIND = TraceReplayPrompt.kind
SESSION_KINDS = (MultiTurnPrompt.kind, ToolCallsPrompt.kind)


class CrossProblem(NamedTuple):
    """Something that is wrong between fields."""

    loc: KeyPath
    code: str
    message: str
    fix: str


def presence_problems(data: Mapping[str, Any]) -> Iterator[CrossProblem]:
    """Alternatives of which none or too many are given; `data` need not be valid otherwise."""
    arrival = data.get("arrival")
    if isinstance(arrival, Mapping):
        yield from _arrival_problems(arrival, data.get("kind"))
    warmup = data.get("warmup")
    if isinstance(warmup, Mapping) and None not in (warmup.get("requests"), warmup.get("duration")):
        message = "`requests` and `duration` of the warm-up are both given"
        yield CrossProblem(("warmup", "duration"), "conflict", message, "keep one of the two")
    yield from _output_problems(data)
    yield from _request_problems(data)
    opened = arrival.get("open") if isinstance(arrival, Mapping) else None
    has_end = isinstance(opened, Mapping) and any(opened.get(key) is not None for key in ("stages", "trace"))
    endless = data.get("kind") in ENDLESS_KINDS
    if endless and not has_end and data.get("requests") is None and data.get("duration") is None:
        message, fix = "nothing says when the run ends", "add `requests: 100` or `duration: 60s`"
        yield CrossProblem((), "missing_key", message, fix)


def _arrival_problems(arrival: Mapping[str, Any], kind: Any) -> Iterator[CrossProblem]:
    given = [key for key in ("closed", "open") if arrival.get(key) is not None]
    if len(given) == 2:
        message = "`closed` and `open` are both given, and a run has one kind of arrival"
        yield CrossProblem(("arrival", "open"), "conflict", message, "keep one of the two")
    elif not given:
        message = "`arrival` needs `closed` or `open`"
        fix = "write `closed: {users: 4}` or `open: {rate: 2}`"
        yield CrossProblem(("arrival",), "missing_key", message, fix)
    opened = arrival.get("open")
    if kind in SESSION_KINDS and opened is not None:
        message = f"`{kind}` needs a closed loop: a turn waits for the answer before it"
        yield CrossProblem(("arrival", "open"), "conflict", message, "write `closed: {users: 4}`")
    if kind != TRACE_KIND and kind in PROMPT_CLASSES and isinstance(opened, Mapping) and opened.get("trace"):
        message = f"`open.trace` takes its instants from the trace of `{TRACE_KIND}`, and this is `{kind}`"
        yield CrossProblem(("arrival", "open", "trace"), "conflict", message, "write `rate: 2`")


def _request_problems(data: Mapping[str, Any]) -> Iterator[CrossProblem]:
    """An open loop keeps its schedule whatever the server says: that is what it is for."""
    request, arrival = data.get("request"), data.get("arrival")
    obeys = isinstance(request, Mapping) and request.get("obey_retry_after") is True
    if obeys and isinstance(arrival, Mapping) and arrival.get("open") is not None:
        message = "`obey_retry_after` lets a user wait, and an open loop sends by its schedule"
        yield CrossProblem(
            ("request", "obey_retry_after"), "conflict", message, "write `closed: {users: 4}`, or remove it"
        )


def _output_problems(data: Mapping[str, Any]) -> Iterator[CrossProblem]:
    """A trace says how long its answers are; everything else must."""
    output, kind = data.get("output"), data.get("kind")
    tokens = output.get("tokens") if isinstance(output, Mapping) else None
    if kind == TRACE_KIND and tokens is not None:
        message = "a trace says how long its answers are, and so does `output.tokens`"
        yield CrossProblem(("output", "tokens"), "conflict", message, "remove `tokens`")
    if kind == TRACE_KIND or tokens is not None or not (output is None or isinstance(output, Mapping)):
        return
    if output is None:
        yield CrossProblem((), "missing_key", "`output` is missing", "add `output: {tokens: 64}`")
    elif "tokens" not in output:
        yield CrossProblem(
            ("output",), "missing_key", "`output.tokens` is missing", "add `output: {tokens: 64}`"
        )


def prompt_problems(workload: Workload) -> Iterator[CrossProblem]:
    """Sizes of prompts and answers that cannot be."""
    prompt = workload.prompt
    if isinstance(prompt, SharedPrefixPrompt):
        yield from _family_problems(prompt)
    if isinstance(prompt, RagDocumentsPrompt):
        longest = prompt.system_tokens + prompt.document_tokens.largest() + prompt.question_tokens.largest()
        if longest > MAX_TOKENS:
            message = f"instructions, document and question together can exceed {MAX_TOKENS:,} tokens"
            yield CrossProblem(("prompt", "document_tokens"), "bad_value", message, "make documents shorter")
    if isinstance(prompt, MultiTurnPrompt):
        yield from _session_problems(prompt, workload)


def _family_problems(prompt: SharedPrefixPrompt) -> Iterator[CrossProblem]:
    if prompt.prefix_tokens + prompt.suffix_tokens.largest() > MAX_TOKENS:
        message = f"prefix and suffix together can exceed {MAX_TOKENS:,} tokens"
        yield CrossProblem(("prompt", "prefix_tokens"), "bad_value", message, "make one of them shorter")
    if prompt.round_requests > MAX_FAMILY_REQUESTS:
        product = f"{prompt.round_requests:,}, above {MAX_FAMILY_REQUESTS:,}"
        message = f"families x requests_per_family is {product}"
        fix = "use fewer; a longer run goes on with new families"
        yield CrossProblem(("prompt", "families"), "bad_value", message, fix)


def _session_problems(prompt: MultiTurnPrompt, workload: Workload) -> Iterator[CrossProblem]:
    if prompt.sessions * prompt.turns[1] > MAX_FAMILY_REQUESTS:
        message = f"sessions x turns is {prompt.sessions * prompt.turns[1]:,}, above {MAX_FAMILY_REQUESTS:,}"
        fix = "use fewer; a longer run goes on with new conversations"
        yield CrossProblem(("prompt", "sessions"), "bad_value", message, fix)
    answer = workload.output.tokens.largest() if workload.output.tokens is not None else 0
    first = prompt.system_tokens + prompt.user_tokens.largest() + answer
    tools = prompt.tools * prompt.tool_tokens if isinstance(prompt, ToolCallsPrompt) else 0
    limit = prompt.context_tokens or MAX_TOKENS
    if first + tools > limit:
        key = "context_tokens" if prompt.context_tokens else "user_tokens"
        message = f"the first turn alone can need {first + tools:,} tokens, above {limit:,}"
        fix = "make messages shorter" + (", or raise it" if prompt.context_tokens else "")
        yield CrossProblem(("prompt", key), "bad_value", message, fix)
    elif prompt.context_tokens is None:
        longest = first + tools + (prompt.turns[1] - 1) * (prompt.user_tokens.largest() + answer)
        if longest > MAX_TOKENS:
            message, fix = (
                f"a conversation can exceed {MAX_TOKENS:,} tokens",
                "give fewer turns, or `context_tokens`",
            )
            yield CrossProblem(("prompt", "turns"), "bad_value", message, fix)
