"""A workload file as a typed object: what is sent, how often, until when.

`load_workload` is the way in; it raises one `UsageError` with all problems of the file and of the
`--set` options. The object is frozen, `resolved_yaml` writes it back with every default filled in,
and `content_hash` names what is sent, so that unlike runs are never compared.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from kvprobe.errors import Problem, UsageError
from kvprobe.load.not_sent import NOT_SENT
from kvprobe.load.sweep import Sweep, sweep_problems
from kvprobe.load.workload_arrival import Arrival
from kvprobe.load.workload_checks import TRACE_KIND, CrossProblem, presence_problems, prompt_problems
from kvprobe.load.workload_find import find_workload
from kvprobe.load.workload_gates import Aborts, Budget, Limits, Slo, Thresholds, gate_problems
from kvprobe.load.workload_parts import (
    MAX_DURATION_S,
    MAX_OUTPUT_TOKENS,
    MAX_REQUESTS,
    Breaker,
    Output,
    RequestOptions,
    Sampling,
    ServerArgs,
    Timeouts,
    Warmup,
)
from kvprobe.load.workload_prompts import PROMPT_CLASSES, Kind, PromptSpec, Tagged
from kvprobe.load.workload_sets import Setting, apply_sets
from kvprobe.load.workload_traces import hash_traces, resolve_traces
from kvprobe.load.workload_values import Part, Seconds
from kvprobe.load.yaml_source import KeyPath, parse_yaml
from kvprobe.load.yaml_text import read_text
from kvprobe.load.yaml_write import write_yaml

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,63}$"
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}


class Workload(Part):
    """A kvprobe workload. Durations are text with a unit (500ms, 60s, 2m, 1h); lengths are tokens."""

    model_config = ConfigDict(title="kvprobe workload")

    name: str = Field(pattern=NAME_PATTERN, description="Short name; part of the run directory's name.")
    description: str = Field(
        default="", max_length=2_000, description="What this workload is for, for people."
    )
    kind: Kind = Field(description="How prompts relate to each other.")
    seed: int = Field(
        default=1,
        ge=0,
        lt=1 << 63,
        description="Seed of texts, lengths, order and Poisson arrivals (no unit).",
    )
    salt: Literal["run", "none"] = Field(
        default="run",
        description="`run`: texts differ from run to run, so that no run measures an earlier run's cache; "
        "`none`: they are the same.",
    )
    endpoint: Literal["chat", "completions"] = Field(
        default="chat", description="/v1/chat/completions or /v1/completions."
    )
    prompt: PromptSpec = Field(description="The form of the prompts; its keys depend on `kind`.")
    output: Output = Field(
        default_factory=Output, description="Length of the answers; a trace brings its own lengths."
    )
    arrival: Arrival = Field(description="Exactly one of `closed` (users) and `open` (rate).")
    requests: int | None = Field(
        default=None,
        ge=1,
        le=MAX_REQUESTS,
        description="Measured requests (count). With `duration` too, whichever is reached first. Kinds with "
        "families: one round when neither is given.",
    )
    duration_s: Seconds | None = Field(
        default=None,
        gt=0,
        le=MAX_DURATION_S,
        alias="duration",
        description="Time of the measured load (duration).",
    )
    warmup: Warmup = Field(default_factory=Warmup, description="Requests that are not measured.")
    drain_s: Seconds = Field(
        default=30.0,
        ge=0,
        le=3600,
        alias="drain",
        description="Wait for open requests at the end (duration).",
    )
    timeouts: Timeouts = Field(default_factory=Timeouts, description="When a request is given up.")
    sampling: Sampling = Field(default_factory=Sampling, description="How often the server is looked at.")
    breaker: Breaker = Field(default_factory=Breaker, description="When the load gives up on a target.")
    thresholds: Thresholds = Field(
        default=(), description="What must hold at the end (exit code 99), such as `ttft.p95 < 800ms`."
    )
    abort: Aborts = Field(default=(), description="What stops the load while it goes (exit code 5).")
    slo: Slo | None = Field(default=None, description="What a request must keep to count for `goodput`.")
    limits: Limits = Field(default_factory=Limits, description="The most that may be asked of a target.")
    budget: Budget | None = Field(default=None, description="What the run may use up.")
    sweep: Sweep | None = Field(
        default=None, description="Runs of this workload at one load after the other, up to the limit."
    )
    request: RequestOptions = Field(
        default_factory=RequestOptions, description="Further fields of each request."
    )
    server_args: ServerArgs = Field(
        default=(),
        description="Options of the bundled server; not used with --target. A list, or one line of text.",
    )

    _unexpanded: dict[KeyPath, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, data: Any) -> Any:
        """Hands `prompt` to the class of its kind and plans one round where no end is given."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        prompt, kind = data.get("prompt"), data.get("kind")
        # A mistyped kind is refused; its prompt is still judged by the kind that was likely meant.
        near = difflib.get_close_matches(kind, PROMPT_CLASSES, n=1) if isinstance(kind, str) else []
        if not isinstance(prompt, dict) or not near:
            return data
        data["prompt"] = Tagged(near[0], prompt)
        one_round = (prompt.get("families"), prompt.get("requests_per_family"))
        if (
            data.get("requests") is None
            and data.get("duration") is None
            and all(type(n) is int for n in one_round)
        ):
            planned = prompt["families"] * prompt["requests_per_family"]
            if 1 <= planned <= MAX_REQUESTS:
                data["requests"] = planned
        return data

    @field_validator("name")
    @classmethod
    def _portable_name(cls, name: str) -> str:
        if name in _RESERVED:
            fix = "choose another name"
            raise PydanticCustomError("bad_value", "this name is reserved on Windows", {"fix": fix})
        return name

    @model_validator(mode="after")
    def _consistent(self) -> Workload:
        problems = [*presence_problems(self.model_dump(exclude_none=True)), *self._cross_problems()]
        if problems:
            raise PydanticCustomError(
                "workload_problems", "fields contradict each other", {"problems": problems}
            )
        return self

    def _cross_problems(self) -> Iterator[CrossProblem]:
        yield from prompt_problems(self)
        for at, message, fix in gate_problems(self.thresholds, self.slo):
            yield CrossProblem(("thresholds", at), "missing_key", message, fix)
        for below, message, fix in sweep_problems(
            self.sweep,
            closed=self.arrival.closed is not None,
            rate=self.arrival.open.rate if self.arrival.open is not None else None,
        ):
            yield CrossProblem(("sweep", *below), "conflict", message, fix)
        if self.output.tokens is not None and self.output.tokens.largest() > MAX_OUTPUT_TOKENS:
            message = f"an answer can have more than {MAX_OUTPUT_TOKENS:,} tokens"
            yield CrossProblem(("output", "tokens"), "bad_value", message, "ask for shorter answers")
        for key, seconds in (("first_token", self.timeouts.first_token_s), ("gap", self.timeouts.gap_s)):
            if seconds > self.timeouts.total_s:
                message = f"`timeouts.{key}` is longer than `timeouts.total`, so it can never fire"
                yield CrossProblem(("timeouts", key), "bad_value", message, "shorten it, or lengthen `total`")

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The JSON Schema, with the form of `prompt` tied to `kind`, which the union cannot say."""
        schema = super().model_json_schema(*args, **kwargs)
        schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
        prompt_schema = schema["properties"]["prompt"]
        # Two kinds can have prompts of one form, so a prompt may fit more than one of these.
        prompt_schema["anyOf"] = prompt_schema.pop("oneOf")
        schema["allOf"] = [
            {
                "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                "then": {
                    "properties": {"prompt": {"$ref": f"#/$defs/{prompt.__name__}"}},
                    "required": [] if kind == TRACE_KIND else ["output"],
                },
            }
            for kind, prompt in PROMPT_CLASSES.items()
        ]
        return schema

    @property
    def warmup_requests(self) -> int:
        """Warm-up requests by number; 0 when the warm-up goes by time or there is none."""
        return self.warmup.requests or 0

    def resolved_yaml(self) -> str:
        """The workload with every default filled in; `${VARIABLE}`s stand as they were written.

        `load_workload` reads it back to an equal object.
        """
        return write_yaml(self.model_dump(mode="json", exclude_none=True), self._unexpanded)

    def content_hash(self) -> str:
        """SHA-256 of what is sent, as hex: canonical JSON without what says nothing of it (`not_sent`).

        `extra_body` enters as written, so that no secret that a variable holds enters a hash.
        """
        content = self.model_dump(mode="json", exclude_none=True, exclude=set(NOT_SENT))
        raw = {path: text for path, text in self._unexpanded.items() if path[:2] == ("request", "extra_body")}
        for path, text in raw.items():
            _put(content, path, text)
        hash_traces(content)
        return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def load_workload(path_or_name: str, sets: Sequence[tuple[str, str] | Setting] = ()) -> Workload:
    """Reads a workload file (or a bundled one by its name) and lays `--set` values over it.

    UsageError carries every problem that was found, each with its place.
    """
    from kvprobe.load.workload_errors import translate

    path, shown = find_workload(path_or_name)
    document = parse_yaml(read_text(path, shown), shown, os.environ)
    apply_sets(document, sets, os.environ)
    if not isinstance(document.value, dict):
        mark = document.marks[()]
        message = (
            "a workload is a mapping of keys to values" if document.value is not None else "the file is empty"
        )
        fix = "start from one of the bundled workloads"
        raise UsageError(*document.problems, mark.problem("wrong_type", message, fix))
    resolve_traces(document, path.parent)
    try:
        workload = Workload.model_validate(document.value)
    except ValidationError as error:
        problems = [*document.problems, *translate(error, document, Workload)]
        raise UsageError(*in_order(problems, shown)) from None
    if document.problems:
        raise UsageError(*in_order(document.problems, shown))
    workload._unexpanded.update(document.unexpanded)
    return workload


def in_order(problems: Sequence[Problem], file: str) -> list[Problem]:
    """Each problem once, in the order of the file; those of options last."""
    unique = list(dict.fromkeys(problems))
    return sorted(unique, key=lambda p: (p.path not in (None, file), p.line or 0, p.column or 0))


def _put(content: Any, path: KeyPath, text: str) -> None:
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = text
