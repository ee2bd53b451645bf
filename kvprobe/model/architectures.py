"""The family of a configuration without `model_type`: by its architecture's class, or by its keys alone.

Published files name both. Files written by hand, and some that engines write, name only the class, such as
`Qwen3MoeForCausalLM`, whose stem is the model_type in other letters; or nothing at all. Without any name only
keys that leave one reading are taken, and the reading is said and not verified.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from kvprobe.model.families import latent, plain, windows
from kvprobe.model.families.geometry import HEADS, KV_HEADS, LAYERS
from kvprobe.model.families.table import ALIASES, FAMILIES, WRAPPED, Family

_ENDING = re.compile(r"(?:For[A-Z][A-Za-z]{1,40}|LMHeadModel|Model)\Z")
_OTHER_STEMS = {"rw": "RefinedWeb", "deepseek": "llama", "dsv32": "deepseek_v32"}
_MAX_NAME_CHARS = 200

_PLAIN_KEYS = frozenset((*LAYERS, *HEADS, *KV_HEADS))
_OTHER_LAYOUTS = re.compile(
    r"mamba|ssm|linear_|conv|attn_layer|attn_type|full_attn|attention_chunk|hybrid|kv_shared"
    r"|block_configs|compress|use_cla|rwkv|lru"
    r"|layers_block_type|block_types|no_rope|global_|encoder|decoder|swa_|interleave|index_"
)
"""Keys that say that some layers keep their cache in another way."""


def architecture_of(config: Mapping[str, object]) -> str | None:
    """The first name in `architectures`; null where there is none."""
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0][:_MAX_NAME_CHARS]
    return None


def type_of_architecture(name: str) -> str | None:
    """The model_type that a class name stands for: `Qwen3MoeForCausalLM` is `qwen3_moe`; null if unknown."""
    stem = _plain(_ENDING.sub("", name))
    return _OTHER_STEMS.get(stem) or _by_stem().get(stem)


def family_of_keys(config: Mapping[str, object]) -> tuple[Family, str] | None:
    """How to read a nameless configuration, and what to say of it; null where its keys leave doubt."""
    if config.get("kv_lora_rank") is not None and not _seen(config, allowed=("index_",)):
        return Family(
            "by its keys", latent.mla_or_sparse
        ), "kv_lora_rank is there: read as MLA in every layer"
    doubtful = ("kv_lora_rank", "sliding_window_pattern")
    if _seen(config) or any(config.get(name) is not None for name in doubtful):
        return None
    if config.get("layer_types") is not None:
        return Family("by its keys", windows.by_layer_types(None)), "read as attention by `layer_types`"
    if config.get("sliding_window") is not None:
        return None
    if any(config.get(name) is not None for name in KV_HEADS):
        return Family("by its keys", plain.full), "read as full attention in every layer"
    return None


def _seen(config: Mapping[str, object], allowed: tuple[str, ...] = ()) -> bool:
    """Does some key speak of another layout?"""
    return any(
        value not in (None, False)
        and key not in _PLAIN_KEYS
        and _OTHER_LAYOUTS.search(key[:_MAX_NAME_CHARS])
        and not (allowed and key.startswith(allowed))
        for key, value in config.items()
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _by_stem() -> dict[str, str]:
    """Known names without their underscores; a nested `..._text` is reached by its composite's stem too."""
    found: dict[str, str] = {}
    for names in (FAMILIES, WRAPPED, ALIASES):
        for name in names:
            found.setdefault(_plain(name), name)
    for name in FAMILIES:
        found.setdefault(_plain(name.removesuffix("_text")), name)
    return found
