"""Reading a model's description: a config.json, a GGUF header, or a directory with configuration and weights.

Only headers are read, never a tensor. Everything that a file says is checked before it is used, and what
it does not say is either settled by the family's published code (and said in `assumptions`) or an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kvprobe.errors import Problem, UsageError
from kvprobe.model.architectures import architecture_of
from kvprobe.model.config_file import read_json_object
from kvprobe.model.families.geometry import POSITIONS, Reading
from kvprobe.model.fields import MAX_TOKENS, Fields
from kvprobe.model.language_part import find_language_part
from kvprobe.model.quantised import kv_cache_scheme, quantization_name
from kvprobe.model.spec import ModelSpec
from kvprobe.model.weight_estimate import estimate_weights

_SHOWN_PATH_CHARS = 200
_DTYPES = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "half": "float16",
    "float": "float32",
}


def read_model(path: str | Path) -> ModelSpec:
    """The model described at `path`: a config.json, a `.gguf` file, or a directory that holds either.

    Raises UsageError when the file is missing, broken or hostile, or its layout is not known.
    """
    file = Path(path)
    try:
        if file.is_dir():
            return _read_directory(file)
    except OSError as error:
        # A name too long to look up, or a directory that may not be entered or listed.
        problem = Problem(
            code="model_unreadable",
            message=f"cannot be read: {error.strerror}",
            fix="check the path given to --model, and its permissions",
            path=str(file)[:_SHOWN_PATH_CHARS],
        )
        raise UsageError(problem) from None
    if file.suffix.lower() == ".gguf":
        from kvprobe.model.gguf_model import read_gguf

        return read_gguf(file)
    return model_from_config(read_json_object(file), name=_name(file), source=str(file))


def _name(file: Path) -> str:
    folder = file.resolve().parent.name
    return folder if file.name == "config.json" and folder else file.stem


def _read_directory(folder: Path) -> ModelSpec:
    config = folder / "config.json"
    if not config.is_file():
        return _read_only_gguf(folder)
    spec = model_from_config(read_json_object(config), name=folder.resolve().name, source=str(config))
    from kvprobe.model.weights import weight_files, weights_of

    if not weight_files(folder):
        return spec
    weights = weights_of(folder)
    quantization = weights.quantization or spec.quantization
    return replace(
        spec,
        weight_bytes=weights.bytes,
        weight_bytes_source=weights.source,
        parameters=weights.parameters,
        quantization=quantization,
    )


def _read_only_gguf(folder: Path) -> ModelSpec:
    found = sorted(p for p in folder.iterdir() if p.suffix.lower() == ".gguf")
    if not found:
        raise UsageError(
            Problem(
                code="model_not_found",
                message="the directory has neither a config.json nor a .gguf file",
                fix="give the directory that the model was downloaded to",
                path=str(folder),
            )
        )
    from kvprobe.model.gguf_model import is_first_shard, read_gguf

    first = [p for p in found if is_first_shard(p)]
    if len(first) != 1:
        raise UsageError(
            Problem(
                code="ambiguous_model",
                message=f"the directory has {len(first)} GGUF models",
                fix=f"give one of them, such as {found[0]}",
                path=str(folder),
            )
        )
    return read_gguf(first[0])


def model_from_config(config: Mapping[str, object], *, name: str, source: str) -> ModelSpec:
    """The model that a parsed config.json describes; `source` names it in errors.

    Raises UsageError for an unknown layout, a missing key, or a value that cannot be.
    """
    part = find_language_part(config, source)
    fields = part.fields
    reading = part.family.read(fields)
    _no_empty(reading, fields)
    scheme = kv_cache_scheme(config)
    if scheme is not None:
        fields.assume(
            f"the checkpoint asks for a {scheme} KV cache, which some engines take for `auto`: "
            "give --kv-dtype to be sure"
        )
    outer = fields if not part.multimodal else Fields(config, source=source, assumptions=fields.assumptions)
    spec = ModelSpec(
        name=name,
        architecture=architecture_of(config) or part.model_type,
        family=part.model_type,
        layers=reading.layers,
        draft_layers=reading.draft_layers,
        hidden_size=reading.hidden_size,
        query_heads=reading.query_heads,
        vocab_size=fields.optional("vocab_size", high=MAX_TOKENS)
        or outer.optional("vocab_size", high=MAX_TOKENS),
        max_position_tokens=fields.optional(*POSITIONS, high=MAX_TOKENS),
        dtype=_dtype(fields, outer),
        source=source,
        encoder_tokens=reading.encoder_tokens,
        affine=reading.affine,
        quantization=quantization_name(config) or quantization_name(fields.data),
        multimodal=part.multimodal,
        verified=bool(part.family.checked),
        assumptions=tuple(fields.assumptions),
        raw=dict(fields.data),
    )
    weights = estimate_weights(spec, config)
    return replace(
        spec,
        parameters=weights.parameters,
        weight_bytes_range=weights.bytes_range,
        weight_note=weights.note,
        assumptions=(*spec.assumptions, *weights.assumptions),
    )


def _no_empty(reading: Reading, fields: Fields) -> None:
    if not any(layer.owns_cache for layer in reading.layers):
        fields.wrong("layers", "keep no cache at all", "check the configuration: a decoder keeps one")


def _dtype(fields: Fields, outer: Fields) -> str:
    """The model's dtype: `dtype` or, as it was called before, `torch_dtype`."""
    for place in (fields, outer):
        for key in ("dtype", "torch_dtype"):
            if place.has(key) and (value := place.text(key)) not in (None, "auto"):
                known = _DTYPES.get(str(value).removeprefix("torch."))
                if known is not None:
                    return known
                place.assume(f"{key} {value!r} is no dtype of a cache: bfloat16 taken for `auto`")
                return "bfloat16"
    fields.assume("no dtype in the configuration: bfloat16 taken for `auto`")
    return "bfloat16"
