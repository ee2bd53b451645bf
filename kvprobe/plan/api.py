"""Planning from Python: the same plan as `kvprobe plan --json`, as a call.

import kvprobe
kvprobe.kv_cache_bytes("config.json", 8192)                  # bytes of one sequence
kvprobe.plan("config.json", gpu="80GiB", weights="14GiB", overhead="6GiB", margin="4GiB")["pool"]["tokens"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvprobe.errors import Problem, UsageError
from kvprobe.plan.settings import Settings

if TYPE_CHECKING:
    from kvprobe.model.spec import ModelSpec
    from kvprobe.plan.document import PlanDocument

Model = str | Path | Mapping[str, object]


def kv_cache_bytes(
    model: Model,
    tokens: int,
    *,
    kv_dtype: str = "auto",
    kv_dtype_k: str | None = None,
    kv_dtype_v: str | None = None,
    tp: int = 1,
    pp: int = 1,
    draft_layers: int = 0,
) -> int:
    """Bytes of KV cache (and recurrent state) that one sequence of `tokens` tokens needs on one GPU.

    Logical bytes: no blocks, padding or reservation. For plain attention this is
    `2 * layers * max(1, kv_heads // tp) * head_dim * bytes_per_element * tokens`; windows, MLA latents,
    states and shared layers follow `kvprobe.model.layouts`, where each formula has its source (vLLM
    `kv_cache_interface.py`, llama.cpp's KV cells). With pipeline stages: of the costliest stage.

    `model` is a config.json, a GGUF file, a model directory, or the configuration as a dict. `auto` is the
    model's own dtype. 131,072 bytes a token for Llama-3-8B in bf16: 8,192 tokens are 1 GiB.
    Raises `kvprobe.errors.UsageError` for a layout or dtype that is not known, and for `tokens` below 0.
    """
    from kvprobe.plan.kv_cost import kv_cost
    from kvprobe.plan.pool import EngineOptions

    if tokens < 0:
        raise UsageError(Problem("bad_value", f"{tokens} tokens", "ask for 0 or more"))
    options = EngineOptions(
        tp=tp,
        pp=pp,
        draft_layers=draft_layers,
        kv_dtype_k=kv_dtype_k or kv_dtype,
        kv_dtype_v=kv_dtype_v or kv_dtype,
    )
    return kv_cost(load_model(model), options).bytes_at(tokens)


def plan(model: Model | Sequence[Model], **settings: Any) -> dict[str, Any]:
    """What fits, as the document of `kvprobe plan --json` (`kvprobe.plan/1`; `kvprobe schema plan`).

    `settings` are the options of `kvprobe plan` with underscores: `gpu="80GiB"` (or a device's name),
    `weights`, `overhead`, `margin`, `engine`, `engine_version`, `available_kv`, `gpu_memory_utilization`,
    `max_model_len`, `lengths="p50=1000,p95=8000,max=32000"`, ... Sizes are texts with a unit (GiB is 2^30,
    GB is 10^9) or whole bytes; all sizes in the answer are bytes, all lengths tokens. Without `engine`:
    total - weights - overhead - margin; with it that engine's own rule (`kvprobe.plan.budget` names the
    sources). Several models make one document with a plan for each in `models`.

    Raises `kvprobe.errors.UsageError` with every setting that is wrong; TypeError for one that is unknown.
    """
    from kvprobe.plan.document import to_json

    models = [model] if isinstance(model, str | Path | Mapping) else list(model)
    return to_json(plan_models(models, Settings(**settings)))


def plan_models(models: Sequence[Model], settings: Settings) -> PlanDocument:
    """One document for one or several models."""
    import msgspec

    from kvprobe.plan.build import plan_document
    from kvprobe.plan.settings import requests_of

    if not models:
        raise UsageError(
            Problem("no_model", "no model was given", "give --model DIR, config.json or FILE.gguf")
        )
    requests, claim = requests_of(settings, _loaded(models, settings))
    documents = [plan_document(request, claim=claim) for request in requests]
    first = documents[0]
    return first if len(documents) == 1 else msgspec.structs.replace(first, models=documents)


def _loaded(models: Sequence[Model], settings: Settings) -> list[ModelSpec]:
    """Every model; when one cannot be read, all that is wrong with them and the settings is said at once."""
    from kvprobe.plan.settings import requests_of

    specs: list[ModelSpec] = []
    problems: list[Problem] = []
    for model in models:
        try:
            specs.append(load_model(model))
        except UsageError as error:
            problems += error.problems
    if problems:
        try:
            requests_of(settings, [])
        except UsageError as error:
            problems += error.problems
        raise UsageError(*problems)
    return specs


def load_model(model: Model) -> ModelSpec:
    """The description of a model from a file, a directory or a configuration. Raises UsageError."""
    from kvprobe.model.read import model_from_config, read_model

    if isinstance(model, str | Path):
        if not str(model):
            raise UsageError(
                Problem("no_model", "--model is empty", "give a directory, config.json or FILE.gguf")
            )
        return read_model(model)
    name = model.get("_name_or_path") or model.get("model_type") or "model"
    return model_from_config(dict(model), name=str(name), source="a configuration given in Python")
