"""Finding the language model inside a composite configuration (vision, audio, omni).

Composite models keep it in `text_config`, `llm_config` and the like, sometimes two levels down
(`thinker_config.text_config`), and publish there only what differs from the class defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

from kvprobe.errors import Problem, UsageError
from kvprobe.model.architectures import architecture_of, family_of_keys, type_of_architecture
from kvprobe.model.families.class_defaults import class_defaults
from kvprobe.model.families.geometry import HEADS, HIDDEN, LAYERS
from kvprobe.model.families.table import ALIASES, FAMILIES, WRAPPED, Family
from kvprobe.model.fields import Fields, shown

_NESTED = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "language_model_config",
)
_MAX_LEVELS = 3
_ENCODERS = frozenset(
    [
        "bert",
        "roberta",
        "xlm-roberta",
        "distilbert",
        "albert",
        "electra",
        "deberta",
        "deberta-v2",
        "modernbert",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguagePart:
    """The configuration that describes the decoder, its family, and where it was found."""

    fields: Fields
    family: Family
    model_type: str
    multimodal: bool


def find_language_part(config: Mapping[str, object], source: str) -> LanguagePart:
    """The decoder's configuration and family. Raises UsageError that names an unknown model_type."""
    found, outer, multimodal = config, _model_type(config, source), False
    assumptions: list[str] = []
    if outer is None:
        outer = _by_architecture(config, assumptions)
    for _ in range(_MAX_LEVELS):
        key = next((name for name in _NESTED if isinstance(found.get(name), dict)), None)
        if key is None:
            break
        inner = found[key]
        assert isinstance(inner, dict)
        assumptions.append(f"the language model is read from `{key}`")
        multimodal, found = True, inner
    inner_type = _model_type(found, source) if multimodal else outer
    model_type = _known(inner_type, outer, multimodal)
    if model_type is None:
        if inner_type is None and outer is None and architecture_of(config) is None:
            return _nameless(found, source, multimodal, assumptions)
        refuse_unknown(found, inner_type or outer or architecture_of(config), source)
    owner, defaults = class_defaults(model_type)
    fields = Fields(
        found, source=source, defaults=defaults, owner=owner, nested=multimodal, assumptions=assumptions
    )
    return LanguagePart(
        fields=fields, family=FAMILIES[model_type], model_type=model_type, multimodal=multimodal
    )


def _by_architecture(config: Mapping[str, object], assumptions: list[str]) -> str | None:
    name = architecture_of(config)
    known = type_of_architecture(name) if name is not None else None
    if known is not None:
        assumptions.append(f"no model_type in the configuration: {known}, as the class {name} says")
    return known


def _nameless(
    config: Mapping[str, object], source: str, multimodal: bool, assumptions: list[str]
) -> LanguagePart:
    """A configuration without any name, read by its keys where they leave one reading, else refused."""
    by_keys = family_of_keys(config)
    if by_keys is None:
        refuse_unknown(config, None, source)
    family, said = by_keys
    assumptions.append(f"no model_type in the configuration: {said}; another layout costs otherwise")
    fields = Fields(config, source=source, assumptions=assumptions)
    return LanguagePart(fields=fields, family=family, model_type="unnamed", multimodal=multimodal)


def _model_type(config: Mapping[str, object], source: str) -> str | None:
    value = config.get("model_type")
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > 200:
        raise UsageError(
            Problem(
                code="bad_model_config",
                message=f"`model_type` must be a short text, not {shown(value)}",
                fix="use the config.json that the model was published with",
                path=source,
            )
        )
    return value


def _known(inner: str | None, outer: str | None, multimodal: bool) -> str | None:
    for name in (inner, ALIASES.get(inner or "")):
        if name in FAMILIES:
            return name
    if multimodal and inner is None:
        return WRAPPED.get(outer or "") or (outer if outer in FAMILIES else None)
    # Flat files of composite models (Qwen2-VL as first published) name the wrapper itself.
    flat = WRAPPED.get(inner or "")
    return flat if flat in FAMILIES else None


def refuse_unknown(config: Mapping[str, object], model_type: str | None, source: str) -> NoReturn:
    """Refuse by name, and say what a reading would need. Never returns."""
    if model_type is None:
        raise UsageError(
            Problem(
                code="missing_model_key",
                message="`model_type` is missing: it says how the layers keep their cache",
                fix="use the config.json that the model was published with; a GGUF file carries it too",
                path=source,
            )
        )
    if model_type in _ENCODERS:
        message = f"model_type {model_type!r} is an encoder: it keeps no KV cache"
        fix = "give a model that generates text"
    else:
        near = get_close_matches(model_type, list(FAMILIES), n=1, cutoff=0.8)
        hint = f"did you mean {near[0]!r}? " if near else ""
        message = f"the cache layout of model_type {model_type!r} is not known; {_seen(config)}"
        fix = (
            f"{hint}kvprobe does not guess: if the model keeps its cache exactly as a known family does, "
            "set `model_type` to that family's in a copy of the file (see docs/models.md)"
        )
    raise UsageError(Problem(code="unknown_layout", message=message, fix=fix, path=source))


def _seen(config: Mapping[str, object]) -> str:
    """Which keys of a plain layout the file has, and which it lacks."""
    needed = {"num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": HEADS}
    needed["num_key_value_heads"] = ("num_key_value_heads", "num_kv_heads")
    needed["head_dim"] = ("head_dim",)
    absent = [name for name, names in needed.items() if not any(key in config for key in names)]
    if absent:
        return f"and the file lacks {', '.join(absent)}"
    return (
        "though the file has the keys of full attention, its layers may share, window or compress their cache"
    )
