"""The nouns between the parent process and its load workers.

The parent (`load.runner`) never imports Locust or gevent; a worker (`python -m
kvprobe.load.worker`) never imports pandas. They talk in JSON lines:

- parent to worker, on the worker's stdin: first one `LoadJob`, later `Command`s; end of file
  means that the parent is gone and the worker stops at once;
- worker to parent, on the worker's stdout: `WorkerEvent`s.

Rows go to a spool file of the worker's own (`evidence.rundir`), never through the pipe.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import msgspec

from kvprobe.evidence.secrets import hide


class Calibration(msgspec.Struct, kw_only=True):
    """What is known of the target's tokenizer, so that prompts can be sized in its tokens.

    `source` says how far to trust the sizes: `tokenize` (the server's own endpoint, checked on a
    sample) or `assumed` (no tokenizer to be had; `default_word_tokens` is a guess and asked
    against got will show it).
    """

    source: Literal["tokenize", "assumed"]
    word_tokens: dict[str, int] = msgspec.field(default_factory=dict)
    """Tokens of each vocabulary word with its leading space."""
    default_word_tokens: float = 1.3
    template_tokens: int | None = 0
    """Tokens that the chat template adds around one user message; null when not known."""
    template_prefix_tokens: int | None = 0
    """Of these, the tokens before the user's text: shared by all prompts by design."""
    system_template_tokens: int | None = 0
    """Tokens that the template adds around a system and a user message; null when not known."""
    system_template_prefix_tokens: int | None = 0
    """Of these, the tokens before the system message's text."""
    turn_template_tokens: int | None = 0
    """Tokens that the template adds around an answer in the history and the user's next message; null
    when not known."""
    check_relative_error: float | None = None
    """Largest relative error of the additive estimate on the sample that was checked."""


class PlannedRequest(msgspec.Struct, kw_only=True):
    """One request of the plan: a pure function of (workload, calibration, salt, index)."""

    index: int
    kind: str
    session: str | None = None
    turn: int | None = None
    prefix_id: str | None = None
    messages: list[dict[str, str]] | None = None
    """For chat endpoints; exactly one of `messages` and `prompt` is set."""
    prompt: str | None = None
    asked_prompt_tokens: int
    asked_completion_tokens: int
    warmup: bool = False
    think_time_s: float | None = None
    """Closed loops: the pause of this session's user before this turn; null is the arrival's own."""

    def text(self) -> str:
        """The user-visible prompt text, messages joined by newlines."""
        if self.prompt is not None:
            return self.prompt
        return "\n".join(m["content"] for m in self.messages or ())


class TargetSpec(msgspec.Struct, kw_only=True):
    """Where to send. The API key itself never stands here: only the variable that holds it."""

    base_url: str
    """Scheme, host, port and path up to but without `/v1`, no trailing slash."""
    model: str
    api_key_env: str | None = None
    insecure: bool = False
    addresses: list[str] = []
    """Of the host, as the guard has seen them: nothing else is connected to. Empty: as the resolver says."""

    def __post_init__(self) -> None:
        """Whoever holds this uses the key, in the parent and in the worker: it is kept nowhere."""
        if self.api_key_env is not None:
            hide(os.environ.get(self.api_key_env))


class BreakerSpec(msgspec.Struct, kw_only=True):
    """When the load gives up on a target (exit 5)."""

    consecutive_failures: int = 20
    window: int = 50
    """Error rate is judged over this many latest finished requests, once there are so many."""
    error_rate: float = 0.9


class LoadJob(msgspec.Struct, kw_only=True):
    """All that a worker needs; `workload` is `Workload.model_dump(mode='json')`."""

    workload: dict[str, Any]
    calibration: Calibration
    salt: str
    """Run salt; empty when the workload says `salt: none`."""
    target: TargetSpec
    breaker: BreakerSpec
    spool_path: str
    """JSONL file that the worker creates: `open` and `row` lines and its own health samples."""
    worker: str = "0"
    worker_index: int = 0
    workers: int = 1
    files: dict[str, bytes] = {}
    """For workers of other machines: the trace files that the workload names, by their path there."""


class Command(msgspec.Struct, kw_only=True):
    """Parent to worker."""

    command: Literal["go", "drain", "stop", "accept", "refuse"]
    """`accept` and `refuse` are for a worker of another machine's master: whether its job is allowed
    here; with `refuse` come the `reason` and `detail` that the master is to hear."""
    t0_ns: int | None = None
    """With `go`: the instant that the schedule counts from, on the CLOCK_MONOTONIC of the parent."""
    reason: str | None = None
    detail: str | None = None
    addresses: list[str] = []
    """With `accept`: what the target's host was, when this machine's guard looked at it."""
    within_s: float | None = None
    """With `drain`: wait at most so long for what is under way; null is the workload's own bound."""


class WorkerEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Worker to parent.

    `ready` when users can start; `progress` about twice a second; `draining` when no further
    request is issued; `finished` once, last. `reason` of `finished` is one of `planned` (requests
    or duration reached), `drained` (asked to), `stopped`, `breaker`, `auth`, `storage`, `error`,
    `usage` and `refused` (the job cannot or may not be done there), `lost` (a worker went without a
    word). Over machines also `waiting` (for workers, or for a master;
    `detail` is for people), `lost` (which one) and `offered` (`detail` is an `Offer`).
    """

    event: Literal["ready", "progress", "draining", "finished", "waiting", "lost", "offered"]
    sent: int = 0
    ok: int = 0
    failed: int = 0
    active: int = 0
    intended: int = 0
    """Requests that the schedule wanted so far (closed loop: the same as sent)."""
    reason: str | None = None
    detail: str | None = None
