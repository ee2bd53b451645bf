"""The form of the prompts as it stands in a workload file: one class for each kind, behind `prompt`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from kvprobe.load.workload_values import MAX_TOKENS, Length, Part, Tokens, as_tuple

MAX_FAMILY_REQUESTS = 200_000
"""families x requests_per_family: the order of one round is worked out in memory."""
MAX_TURNS = 1_000
MAX_TOOLS = 200
TraceFormat = Literal["auto", "azure", "burstgpt", "vidur", "mooncake", "qwen", "kvprobe"]


class PromptPart(Part):
    """What a prompt looks like; which class applies is decided by `kind`."""

    kind: ClassVar[str]


class SharedPrefixPrompt(PromptPart):
    """Families of prompts: each family shares a prefix, every request asks its own question."""

    kind: ClassVar[str] = "shared_prefix"
    families: int = Field(
        ge=1, le=100_000, description="Number of different prefixes; each costs one cold request."
    )
    requests_per_family: int = Field(
        ge=1, le=100_000, description="Requests of one round that share a prefix."
    )
    prefix_tokens: Tokens = Field(
        description="Length of the shared text (chat: the system message), in tokens."
    )
    suffix_tokens: Length = Field(
        description="Length of the question after it, in tokens, chat template not counted."
    )

    @property
    def round_requests(self) -> int:
        """Requests of one round; a longer run goes on with new families."""
        return self.families * self.requests_per_family


class TimestampFirstPrompt(SharedPrefixPrompt):
    """A shared prefix spoilt by a first line that changes with every request."""

    kind: ClassVar[str] = "timestamp_first"


class DistinctPrompt(PromptPart):
    """Prompts that differ from their first word on."""

    kind: ClassVar[str] = "distinct"
    tokens: Length = Field(description="Length of the whole prompt as the server counts it, in tokens.")


class MixedLengthsPrompt(DistinctPrompt):
    """Long and short prompts mixed, all texts different."""

    kind: ClassVar[str] = "mixed_lengths"


class RagDocumentsPrompt(PromptPart):
    """Instructions that are the same for all, one of many documents, and a question about it."""

    kind: ClassVar[str] = "rag_documents"
    documents: int = Field(ge=1, le=100_000, description="Documents that are asked about (count).")
    zipf: float = Field(
        default=1.0,
        ge=0,
        le=5,
        description="Popularity: the n-th document is asked about in proportion to 1 / n^zipf (no unit); "
        "0 is all alike.",
    )
    system_tokens: Tokens = Field(
        default=64, description="Length of the instructions before the document, in tokens."
    )
    document_tokens: Length = Field(description="Length of a document, in tokens.")
    question_tokens: Length = Field(description="Length of a question, in tokens.")


def _range(value: Any) -> Any:
    both = (value, value) if type(value) is int else as_tuple(value)
    good = isinstance(both, tuple) and len(both) == 2
    if not good or not all(type(n) is int and 1 <= n <= MAX_TURNS for n in both):
        context = {"fix": f"write a number of turns such as 6, or [lowest, highest], of 1 to {MAX_TURNS:,}"}
        raise PydanticCustomError("bad_length", "this is no number of turns", context)
    return both


_TurnCount = Annotated[int, Field(ge=1, le=MAX_TURNS)]
_TURNS_SCHEMA: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": MAX_TURNS}
Turns = Annotated[
    tuple[_TurnCount, _TurnCount],
    BeforeValidator(_range),
    WithJsonSchema(
        {"anyOf": [_TURNS_SCHEMA, {"type": "array", "items": _TURNS_SCHEMA, "minItems": 2, "maxItems": 2}]}
    ),
]


class MultiTurnPrompt(PromptPart):
    """Conversations: every turn sends all turns before it again."""

    kind: ClassVar[str] = "multi_turn"
    sessions: int = Field(
        ge=1,
        le=100_000,
        description="Conversations of one round (count); a longer run goes on with new ones.",
    )
    turns: Turns = Field(description="Turns of a conversation (count): a number, or [lowest, highest].")
    system_tokens: Tokens = Field(
        default=64, description="Length of the system message, the same in all conversations, in tokens."
    )
    user_tokens: Length = Field(description="Length of what the user says in a turn, in tokens.")
    context_tokens: Tokens | None = Field(
        default=None,
        description="A conversation ends before a turn whose prompt and answer would exceed this, in tokens.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> MultiTurnPrompt:
        if self.turns[0] > self.turns[1]:
            context = {"fix": "write [lowest, highest]", "key": ("turns",)}
            raise PydanticCustomError(
                "bad_value", "the lowest number of `turns` is above the highest", context
            )
        return self


class ToolCallsPrompt(MultiTurnPrompt):
    """Conversations under a list of tools whose order changes from request to request."""

    kind: ClassVar[str] = "tool_calls_reordered"
    tools: int = Field(ge=1, le=MAX_TOOLS, description="Tool definitions in the system message (count).")
    tool_tokens: Annotated[int, Field(ge=24, le=MAX_TOKENS)] = Field(
        default=96, description="Length of one definition, in tokens."
    )
    shuffle: Literal["tools", "keys", "both", "none"] = Field(
        default="both",
        description="What changes its order: the tools, the keys of their JSON, both; `none` is the control.",
    )


class TraceReplayPrompt(PromptPart):
    """The requests of a trace: their lengths, and what they shared where the trace says it."""

    kind: ClassVar[str] = "trace_replay"
    trace: str = Field(
        min_length=1,
        max_length=4096,
        description="Trace file; a relative path counts from the workload file, else from here.",
    )
    format: TraceFormat = Field(
        default="auto", description="Format of the trace; `auto` looks at its columns."
    )
    scale_len: float = Field(
        default=1.0,
        gt=0,
        le=10_000,
        description="Factor on the lengths of prompts and answers (no unit); what prompts share stays exact.",
    )
    max_request_tokens: Tokens | None = Field(
        default=None,
        description="Requests whose prompt and answer exceed this are left out and counted, in tokens.",
    )


Kind = Literal[
    "shared_prefix",
    "distinct",
    "mixed_lengths",
    "timestamp_first",
    "rag_documents",
    "multi_turn",
    "tool_calls_reordered",
    "trace_replay",
]
PROMPT_CLASSES: dict[str, type[PromptPart]] = {
    cls.kind: cls
    for cls in (
        SharedPrefixPrompt,
        DistinctPrompt,
        MixedLengthsPrompt,
        TimestampFirstPrompt,
        RagDocumentsPrompt,
        MultiTurnPrompt,
        ToolCallsPrompt,
        TraceReplayPrompt,
    )
}
ENDLESS_KINDS = ("distinct", "mixed_lengths", "rag_documents")
"""Kinds whose prompts never end by themselves."""


class Tagged(dict[str, Any]):
    """A `prompt` mapping that knows which class its `kind` asks for."""

    def __init__(self, tag: str, items: Mapping[str, Any]) -> None:
        super().__init__(items)
        self.tag = tag


def _prompt_tag(value: Any) -> str | None:
    if isinstance(value, PromptPart):
        return value.kind
    return value.tag if isinstance(value, Tagged) else None


PromptSpec = Annotated[
    Annotated[SharedPrefixPrompt, Tag("shared_prefix")]
    | Annotated[DistinctPrompt, Tag("distinct")]
    | Annotated[MixedLengthsPrompt, Tag("mixed_lengths")]
    | Annotated[TimestampFirstPrompt, Tag("timestamp_first")]
    | Annotated[RagDocumentsPrompt, Tag("rag_documents")]
    | Annotated[MultiTurnPrompt, Tag("multi_turn")]
    | Annotated[ToolCallsPrompt, Tag("tool_calls_reordered")]
    | Annotated[TraceReplayPrompt, Tag("trace_replay")],
    Discriminator(_prompt_tag),
]
