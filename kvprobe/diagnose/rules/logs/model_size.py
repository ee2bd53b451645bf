"""How large the weights must be, from the model's name, when no line of the log says it.

"Llama-2-70b" has some 70e9 parameters at 2 bytes each, unless the name or a setting says that it is
quantised. An estimate: it is named as such wherever it is used, and never carries a verdict alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.oom_case import setting
from kvprobe.summary.units import size

_PARAMETERS: Final = re.compile(r"(?<![\w.])(?:(\d{1,2})x)?(\d{1,4}(?:\.\d{1,2})?)[bB](?![a-zA-Z])")
_FOUR_BIT: Final = (
    "gpt-oss",
    "gguf",
    "awq",
    "gptq",
    "int4",
    "4bit",
    "4-bit",
    "w4a",
    "nf4",
    "fp4",
    "bnb",
    "q4",
)
_EIGHT_BIT: Final = ("fp8", "int8", "8bit", "8-bit", "w8a", "q8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    bytes_per_gpu: int
    text: str


def estimate(view: LogView) -> Estimate | None:
    model = setting(view, "model")
    if not isinstance(model, str):
        return None
    name = model.replace("_", "-").replace("/", "-")
    found = _PARAMETERS.search(re.sub(r"-", " ", name))
    if found is None:
        return None
    billions = float(found[2]) * int(found[1] or 1)
    per = _bytes_per_parameter(f"{name} {setting(view, 'quantization') or ''}".lower())
    gpus = _whole(setting(view, "tensor_parallel_size")) * _whole(setting(view, "pipeline_parallel_size"))
    amount = round(billions * 1e9 * per / gpus)
    return Estimate(
        bytes_per_gpu=amount,
        text=f"by its name the model has about {billions:g} billion parameters at {per:g} bytes over "
        f"{gpus} GPU(s) = {size(amount)} each",
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _bytes_per_parameter(text: str) -> float:
    if any(word in text for word in _FOUR_BIT):
        return 0.55
    return 1.0 if any(word in text for word in _EIGHT_BIT) else 2.0
