"""What the command line asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Either two addresses, or two formats of the reference server."""

    baseline: str | None = None
    candidate: str | None = None
    formats: tuple[str, str] | None = None
    server_args: tuple[str, ...] = ()
    candidate_args: tuple[str, ...] = ()
    model: str | None = None
    dataset: Path | None = None
    items: int = 50
    context_tokens: int | None = None
    pool_pressure: bool = False
    at_once: int = 4
    seed: int = 1
    margin: float = 0.1
    api_key_env: str | None = None
    insecure: bool = False
    own_target: bool = False
    endpoint: str = "chat"
    scratch: Path = field(default_factory=lambda: Path("."))
