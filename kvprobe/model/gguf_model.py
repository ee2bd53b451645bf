"""From a GGUF header to a model: the geometry under llama.cpp's names, and the weights' true bytes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from kvprobe.errors import Problem, UsageError
from kvprobe.model.fields import MAX_LAYERS, MAX_TOKENS, Fields
from kvprobe.model.gguf_header import GgufHeader, read_header
from kvprobe.model.gguf_layers import GGUF_FAMILIES, ArchFields, read_layers
from kvprobe.model.spec import ModelSpec
from kvprobe.model.weights import WeightInfo

_SHARD = re.compile(r"(.{1,200})-([0-9]{5})-of-([0-9]{5})\.gguf\Z", re.IGNORECASE)


def read_gguf(path: Path) -> ModelSpec:
    """The model that a GGUF file describes, with its weight bytes (of all shards).

    Raises UsageError for a damaged header, an unknown architecture, or a missing shard.
    """
    header = read_header(path)
    arch = _architecture(header, path)
    fields = ArchFields(header.values, arch, source=str(path))
    reading = read_layers(fields)
    weights = gguf_weights(path, header)
    name = header.values.get("general.name")
    return ModelSpec(
        name=name if isinstance(name, str) and name else path.stem,
        architecture=arch,
        family=arch,
        layers=reading.layers,
        draft_layers=reading.draft_layers,
        hidden_size=reading.hidden_size,
        query_heads=reading.query_heads,
        vocab_size=_vocabulary(header, fields),
        max_position_tokens=fields.optional("context_length", high=MAX_TOKENS),
        # llama.cpp keeps the cache in f16 unless told otherwise, whatever the weights are.
        dtype="float16",
        source=str(path),
        weight_bytes=weights.bytes,
        weight_bytes_source=weights.source,
        parameters=weights.parameters,
        quantization=weights.quantization,
        verified=bool(GGUF_FAMILIES[arch].checked),
        assumptions=tuple(fields.assumptions),
        raw={key: value for key, value in header.values.items() if not key.startswith("tokenizer.")},
    )


def _architecture(header: GgufHeader, path: Path) -> str:
    """The architecture's name, if it is one that kvprobe reads."""
    arch = header.values.get("general.architecture")
    if not isinstance(arch, str):
        problem = Problem(
            code="missing_model_key",
            message="`general.architecture` is missing: it says how the layers keep their cache",
            fix="use the first shard of the model, or convert the model again",
            path=str(path),
        )
        raise UsageError(problem)
    if arch not in GGUF_FAMILIES:
        problem = Problem(
            code="unknown_layout",
            message=f"the cache layout of GGUF architecture {arch[:80]!r} is not known",
            fix="kvprobe does not guess; give the config.json of the model if its family is known",
            path=str(path),
        )
        raise UsageError(problem)
    return arch


def _vocabulary(header: GgufHeader, fields: Fields) -> int | None:
    return fields.optional("vocab_size", high=MAX_TOKENS) or header.lengths.get("tokenizer.ggml.tokens")


def is_first_shard(path: Path) -> bool:
    """Whether the file is a whole model or the first of its shards, and no vision projector."""
    shard = _SHARD.match(path.name)
    return "mmproj" not in path.name.lower() and (shard is None or int(shard[2]) == 1)


def shards(path: Path) -> list[Path]:
    """All files of a split model, in order; a whole model is its own only shard."""
    shard = _SHARD.match(path.name)
    if shard is None:
        return [path]
    count = int(shard[3])
    if not 1 <= count <= MAX_LAYERS:
        raise UsageError(
            Problem(
                code="bad_gguf",
                message=f"the name says {count} shards",
                fix="rename the file",
                path=str(path),
            )
        )
    files = [path.with_name(f"{shard[1]}-{i:05d}-of-{shard[3]}.gguf") for i in range(1, count + 1)]
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise UsageError(
            Problem(
                code="missing_shard",
                message=f"{len(absent)} of {count} shards are missing, such as {absent[0]}",
                fix="finish the download: the weights are in all shards",
                path=str(path),
            )
        )
    return files


def gguf_weights(path: Path, header: GgufHeader | None = None) -> WeightInfo:
    """Weight bytes of a GGUF model by ggml type, over all shards; `header` is that of `path`, if read."""
    by_dtype: Counter[str] = Counter()
    elements = 0
    files = shards(path)
    for file in files:
        known = header if header is not None and file == path else read_header(file)
        for tensor in known.tensors:
            by_dtype[tensor.dtype] += tensor.bytes
            elements += tensor.elements
    # The type that holds most bytes is what people call the file's quantisation.
    main = max(by_dtype, key=lambda name: by_dtype[name], default=None)
    return WeightInfo(
        bytes=sum(by_dtype.values()),
        by_dtype=dict(sorted(by_dtype.items())),
        quantization=None if main in (None, "F16", "BF16", "F32") else f"gguf {main}",
        parameters=elements or None,
        source=f"header of {len(files)} GGUF file{'s' if len(files) > 1 else ''}",
    )
