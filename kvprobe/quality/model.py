"""What a quality comparison says: the structs behind `kvprobe.quality/1`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvprobe.diagnose.model import Diagnosis
from kvprobe.quality.divergence import Divergence
from kvprobe.summary.jsonable import jsonable

SCHEMA = "kvprobe.quality/1"
Verdict = Literal["loss", "no_loss_shown", "n_too_small"]


class Server(msgspec.Struct, kw_only=True):
    """One of the two. Null where the server does not say."""

    url: str
    model: str
    engine: str | None = None
    engine_version: str | None = None
    kv_dtype: str | None = None
    kv_bytes_per_token: float | None = None


class Test(msgspec.Struct, kw_only=True):
    """The paired answers to one kind of question (`all` is over all kinds)."""

    kind: str
    n: int
    right_baseline: int
    right_candidate: int
    only_baseline: int
    only_candidate: int
    difference: float | None
    """Share right on the candidate minus share right on the baseline."""
    difference_ci: tuple[float, float] | None
    p: float | None
    """McNemar, exact, two-sided."""
    p_adjusted: float | None = None
    """Holm over the kinds; null for `all`."""
    by_depth: dict[str, tuple[int, int, int]] = msgspec.field(default_factory=dict)
    """Needles: depth -> (n, right on the baseline, right on the candidate)."""


class Pass(msgspec.Struct, kw_only=True):
    """All questions once, on both servers."""

    pressure: bool
    tests: list[Test]
    divergence: Divergence
    json_valid: tuple[int, int] | None
    """Answers that hold one JSON object, baseline and candidate, of the `json` questions."""
    unanswered: tuple[int, int]
    """Questions without an answer, of the baseline and of the candidate. No test counts them: what a server
    did not say is neither right nor wrong."""
    unpaired: tuple[int, int] = (0, 0)
    """Of these, such as the other side answered."""
    unanswered_why: tuple[str | None, str | None] = (None, None)
    """What the first of them met (foreign text)."""
    kv_usage: dict[str, dict[str, float | None]] = msgspec.field(default_factory=dict)
    """Under pressure: side -> lowest, median, highest use of the pool while it answered."""


class Quality(msgspec.Struct, kw_only=True):
    """The whole answer."""

    schema: str = SCHEMA
    baseline: Server
    candidate: Server
    items: int
    """Questions; of a `partial` comparison, not all of them were asked."""
    status: Literal["complete", "partial"] = "complete"
    dataset: str | None
    seed: int
    margin: float
    """A loss of this share is what `no_loss_shown` has excluded."""
    verdict: Verdict
    summary: str
    passes: list[Pass]
    noise: Divergence
    """The baseline against itself: what rounding and batching do without any change."""
    warnings: list[str]
    diagnosis: Diagnosis

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = jsonable(self)
        return document


def quality_schema() -> dict[str, Any]:
    """JSON Schema of `kvprobe.quality/1`."""
    schema = msgspec.json.schema(Quality)
    top = schema["$defs"]["Quality"]
    top["properties"]["schema"] = {"const": SCHEMA}
    top["required"] = ["schema", *top["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema}
