"""How large the weights must be, from the model's name and the start's settings, when no line says it.

"Llama-2-70b" has some 70e9 parameters at 2 bytes each, unless the name or a setting says another format.
An estimate: it is named as such wherever it is used. What it says is `likely` at most, and `suspected`
where the name leaves the count, the format or the number of GPUs open.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.oom_case import setting
from kvprobe.summary.units import size

_BILLIONS: Final = re.compile(r"(?<![\w.])(?:(\d{1,3})[xX])?(\d{1,4}(?:[.]\d{1,3})?)[bB](?![a-zA-Z])")
_MILLIONS: Final = re.compile(r"(?<![\w.])(\d{2,4})[mM](?![a-zA-Z])")
_SHARED: Final = 0.82
"""Of "8x7B": experts share attention and embeddings (Mixtral 8x7B has 46.7e9, 8x22B 140.6e9)."""
_FORMATS: Final[tuple[tuple[float, tuple[str, ...]], ...]] = (
    (1.05, ("fp8", "int8", "8bit", "8-bit", "w8a", "q8", "bnb-8")),
    (0.55, ("awq", "gptq", "int4", "4bit", "4-bit", "w4a", "nf4", "fp4", "bnb", "bitsandbytes", "q4", "iq4")),
    (0.55, ("gpt-oss", "marlin", "autoround", "exl2", "hqq")),
    (0.36, ("q2-", "q3-", "iq2", "iq3", "iq1", "q1-")),
    (0.85, ("q5-", "q6-")),
    (0.55, ("gguf",)),
)
"""Bytes a parameter with scales, and the words of a name or setting that tell the format; the first hit."""
_OPEN_FORMATS: Final = frozenset({"compressed-tensors", "torchao", "modelopt", "quark", "inc", "auto-round"})
"""Settings that may mean 4 or 8 bits."""
_DTYPES: Final = {"float": 4.0, "float32": 4.0, "fp32": 4.0}
_OVER: Final = 0.95
"""Of the card: weights above it leave no room for a context and a cache."""
_FITS: Final = 0.55
"""Of the card: weights below it are not what leaves no room, whatever the estimate's error."""
_EVERY_CARD_BYTES: Final = 4 * 2**30
"""Weights below it fit any card that serves."""
_NO_CARD_BYTES: Final = 80 * 2**30
"""Weights above it fit few cards; larger ones exist, so it counts only where a load failed."""

Fit = Literal["over", "fits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """`open_points` are what the name and the settings leave open."""

    bytes_per_gpu: int
    text: str
    open_points: tuple[str, ...] = ()

    @property
    def ambiguous(self) -> bool:
        return bool(self.open_points)

    def fit(self, total: int | None) -> Fit | None:
        """Against a card (bytes), or any card where none is known; null between "clearly" and "clearly"."""
        if total is None:
            if self.bytes_per_gpu > _NO_CARD_BYTES:
                return "over"
            return "fits" if self.bytes_per_gpu < _EVERY_CARD_BYTES else None
        if self.bytes_per_gpu > _OVER * total:
            return "over"
        return "fits" if self.bytes_per_gpu < _FITS * total else None


def estimate(view: LogView) -> Estimate | None:
    """Null without a name that carries a count of parameters."""
    model = setting(view, "model")
    if not isinstance(model, str):
        return None
    count, doubts = parameters(model)
    if count is None:
        return None
    per, told, unsure = _bytes_per_parameter(view, model)
    gpus, split = _gpus(view)
    amount = round(count * per / gpus)
    return Estimate(
        bytes_per_gpu=amount,
        text=f"by its name the model has about {count / 1e9:g} billion parameters at {per:g} bytes ({told}) "
        f"over {gpus} GPU(s) = {size(amount)} each, an estimate",
        open_points=tuple(d for d in (*doubts, unsure, split) if d),
    )


def parameters(model: str) -> tuple[float | None, list[str]]:
    """Parameters by the name, and what is doubtful about it. `235B-A22B` counts all experts: 235e9."""
    parts = [p for p in re.split(r"[/\\]", model) if p]
    for part in reversed(parts):
        text = re.sub(r"[-_]+", " ", part)
        found = list(_BILLIONS.finditer(text))
        if found:
            counts = {_count(f) for f in found}
            doubts = ["the name carries several counts of parameters"] if len(counts) > 1 else []
            return max(counts) * 1e9, doubts
    for part in reversed(parts):
        few = _MILLIONS.search(re.sub(r"[-_]+", " ", part))
        if few is not None:
            return float(few[1]) * 1e6, []
    return None, []


def _count(found: re.Match[str]) -> float:
    experts, billions = found[1], float(found[2])
    return round(int(experts) * billions * _SHARED, 1) if experts else billions


def _bytes_per_parameter(view: LogView, model: str) -> tuple[float, str, str | None]:
    """Bytes, the format that says so, and a doubt."""
    given = setting(view, "quantization")
    method = str(given).lower() if given and str(given).lower() not in {"none", "null"} else ""
    name = re.sub(r"[_/]", "-", model).lower()
    for text in (method, name):
        for per, words in _FORMATS:
            word = next((w for w in words if w in text), None)
            if word is not None:
                return per, word.strip("-"), None
    if method:
        doubt = f"`{method}` may be 4 or 8 bits" if method in _OPEN_FORMATS else f"the format of `{method}`"
        return 1.05, method, doubt
    dtype = str(setting(view, "dtype") or "").lower().removeprefix("torch.")
    if dtype in _DTYPES:
        return _DTYPES[dtype], dtype, None
    return 2.0, dtype if dtype and dtype != "auto" else "16 bit", None


def _gpus(view: LogView) -> tuple[int, str | None]:
    """GPUs that share the weights, and a doubt where ranks show more than the settings say."""
    tensor, pipeline = setting(view, "tensor_parallel_size"), setting(view, "pipeline_parallel_size")
    gpus = _whole(tensor) * _whole(pipeline)
    ranks = [e for e in view.events if e.rank is not None]
    if tensor is None and any(e.repeats > 1 or re.search("[1-9]", str(e.rank)) for e in ranks):
        return gpus, "several ranks run, and how they share the weights is not in the log"
    return gpus, None


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 1
