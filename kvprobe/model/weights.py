"""Bytes of a model's weights, from headers alone: what the files hold, not what a count suggests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kvprobe.errors import Problem, UsageError
from kvprobe.model.config_file import read_json_object
from kvprobe.model.fields import shown
from kvprobe.model.quantised import quantization_name
from kvprobe.model.safetensors_header import Tensor, read_tensors

_INDEX = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 64 << 20
_MAX_FILES = 8192
_SHARD = re.compile(r"-([0-9]{5})-of-([0-9]{5})\.safetensors\Z")
_SCALES = (
    "_scale",
    "_scale_inv",
    "_scale_2",
    ".scales",
    "_scales",
    ".qzeros",
    ".g_idx",
    "_zero_point",
    ".absmax",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightInfo:
    """Weight bytes as the files declare them.

    `by_dtype` sums to `bytes` (empty where only a total is known). `parameters` is null where weights are
    packed and the count would be a guess. `source` names what was read.
    """

    bytes: int
    by_dtype: dict[str, int] = field(default_factory=dict)
    quantization: str | None = None
    parameters: int | None = None
    source: str = ""


def weight_bytes(path: str | Path) -> WeightInfo:
    """Weight bytes of a directory with safetensors files, of one such file, or of a GGUF file.

    Raises UsageError when there are no weights, or their headers are damaged.
    """
    place = Path(path)
    if place.suffix.lower() == ".gguf":
        from kvprobe.model.gguf_model import gguf_weights

        return gguf_weights(place)
    return weights_of(place)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files (or their index) of a directory, without copies in another naming."""
    if (folder / _INDEX).is_file():
        return [folder / _INDEX]
    found = sorted(p for p in folder.glob("*.safetensors") if p.is_file())
    usual = [p for p in found if not p.name.startswith(("consolidated", "adapter_", "training_"))]
    return usual or found


def weights_of(place: Path) -> WeightInfo:
    """Weight bytes of a directory or of one safetensors file."""
    files = [place] if place.is_file() else weight_files(place)
    if not files:
        raise UsageError(
            Problem(
                code="no_weights",
                message="there is no safetensors file here",
                fix="give --weights SIZE, or the directory that the model was downloaded to",
                path=str(place),
            )
        )
    folder = place if place.is_dir() else place.parent
    if files[0].name == _INDEX:
        return _indexed(folder, files[0])
    if place.is_dir():
        _complete(folder, files)
    return _summed(folder, files)


def _complete(folder: Path, files: list[Path]) -> None:
    """Refuse a set of shards of which the names themselves say that some are absent."""
    named = [found for file in files if (found := _SHARD.search(file.name))]
    for total in sorted({found[2] for found in named}):
        here = {int(found[1]) for found in named if found[2] == total}
        absent = sorted(set(range(1, min(int(total), _MAX_FILES) + 1)) - here)
        if absent:
            raise UsageError(_missing(len(absent), int(total), f"number {absent[0]:05}", folder))


def _missing(absent: int, total: int, which: str, place: Path) -> Problem:
    return Problem(
        code="missing_shard",
        message=f"{absent} of {total} shards are missing, such as {which}",
        fix="finish the download, or give --weights SIZE with a config.json",
        path=str(place),
    )


def _summed(folder: Path, files: list[Path]) -> WeightInfo:
    tensors = [tensor for file in files for tensor in read_tensors(file)]
    by_dtype: Counter[str] = Counter()
    for tensor in tensors:
        by_dtype[tensor.dtype] += tensor.bytes
    stated = _stated_quantization(folder)
    return WeightInfo(
        bytes=sum(by_dtype.values()),
        by_dtype=dict(sorted(by_dtype.items())),
        quantization=stated or _seen_quantization(tensors),
        parameters=_parameters(tensors),
        source=f"headers of {len(files)} safetensors file{'s' if len(files) > 1 else ''}",
    )


def _stated_quantization(folder: Path) -> str | None:
    config = folder / "config.json"
    if not config.is_file():
        return None
    data = read_json_object(config)
    nested = (part for part in data.values() if isinstance(part, dict))
    return next((name for part in (data, *nested) if (name := quantization_name(part))), None)


def _indexed(folder: Path, index: Path) -> WeightInfo:
    """Weights of the shards that the index names; its own total where the shards are not here."""
    data = read_json_object(index, max_bytes=_MAX_INDEX_BYTES)
    names = _shard_names(index, data.get("weight_map"))
    files = [folder / name for name in names]
    absent = [file.name for file in files if not file.is_file()]
    if not absent:
        return _summed(folder, files)
    total = data.get("metadata")
    size = total.get("total_size") if isinstance(total, dict) else None
    if len(absent) == len(files) and isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return WeightInfo(
            bytes=size,
            quantization=_stated_quantization(folder),
            source=f"total_size of {index.name}; the shards are not here",
        )
    raise UsageError(_missing(len(absent), len(files), absent[0], index))


def _shard_names(index: Path, weight_map: object) -> list[str]:
    if not isinstance(weight_map, dict) or not weight_map:
        raise UsageError(
            Problem(
                code="bad_safetensors",
                message=f"`weight_map` must be an object, not {shown(weight_map)}",
                fix="download the index again",
                path=str(index),
            )
        )
    names = {name for name in weight_map.values() if isinstance(name, str)}
    # A name with a separator could lead out of the directory: no published index has one.
    if len(names) > _MAX_FILES or any(Path(name).name != name for name in names):
        raise UsageError(
            Problem(
                code="bad_safetensors",
                message="the index names shards outside the directory, or too many",
                fix="download the index again",
                path=str(index),
            )
        )
    return sorted(names)


def _seen_quantization(tensors: Iterable[Tensor]) -> str | None:
    """The weight format that tensor names betray where the configuration is silent."""
    ends = {tensor.name.rpartition(".")[2] for tensor in tensors}
    if "qweight" in ends:
        return "gptq" if "g_idx" in ends else "awq or gptq"
    if any(end.endswith("_blocks") for end in ends) and any(end.endswith("_scales") for end in ends):
        return "mxfp4"
    for end, name in (
        ("weight_scale_2", "nvfp4"),
        ("weight_packed", "compressed-tensors"),
        ("absmax", "bitsandbytes"),
        ("weight_scale_inv", "fp8"),
        ("weight_scale", "fp8"),
    ):
        if end in ends:
            return name
    return None


def _parameters(tensors: Iterable[Tensor]) -> int | None:
    """Parameters, scales left out; null where integers pack several weights into one element."""
    total = 0
    for tensor in tensors:
        if tensor.name.endswith(_SCALES):
            continue
        if not tensor.dtype.startswith(("F", "BF")):
            return None
        total += tensor.elements
    return total
