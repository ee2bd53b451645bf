"""From a `config.json` to the shape of a decoder.

Only what the forward pass does is let through. A setting that would change the numbers and that it
does not know is refused by name; a model that runs and is subtly wrong is worse than none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reference_server.models.fields import Fields
from reference_server.models.rope import RopeScaling
from reference_server.models.shape import LlamaConfig

FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
"""`model_type` and the architecture that it must come with."""

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}

DEFAULT_THETA = 10000.0
GEMMA_PATTERN = 6
"""Of so many layers one, the last, has full attention, where no `layer_types` says otherwise."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "quantization_config": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "use_bidirectional_attention": (None, False),
    "logit_scale": (None, 1, 1.0),
}
"""Settings with a meaning that is not implemented, and the values that ask for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What the weights of a model are made of, beside its shape.

    `norm_offset` is added to the weights of norms; `query_factor` multiplies queries beyond the usual
    `1 / sqrt(head_dim)`; `norms_after` are norms on what attention and MLP give.
    """

    shape: LlamaConfig
    tied: bool
    qk_norm: bool
    qkv_bias: bool
    norms_after: bool
    norm_offset: float
    query_factor: float


def recipe_from_config(config: dict[str, Any], name: str) -> Recipe:
    """Raise `ConfigError` for what cannot be served, naming it."""
    fields = Fields(config, f"config.json of {name}")
    family = _family(fields)
    shape = _shape(fields, family, name)
    gemma = family == "gemma3_text"
    scalar = fields.number("query_pre_attn_scalar", 256.0) if gemma else float(shape.head_dim)
    return Recipe(
        shape=shape,
        # Gemma's own default is true; a file that was saved says so in any case.
        tied=bool(fields.raw.get("tie_word_embeddings", gemma)),
        qk_norm=gemma or family == "qwen3",
        qkv_bias=family == "qwen2" or bool(fields.raw.get("attention_bias", False)),
        norms_after=gemma,
        norm_offset=1.0 if gemma else 0.0,
        query_factor=(shape.head_dim / scalar) ** 0.5,
    )


def _shape(fields: Fields, family: str, name: str) -> LlamaConfig:
    heads = fields.whole("num_attention_heads", high=4096)
    hidden = fields.whole("hidden_size", high=1 << 17)
    kv_heads = fields.whole("num_key_value_heads", default=heads, high=4096)
    head_dim = fields.whole("head_dim", default=hidden // heads, high=1024)
    if heads % kv_heads or head_dim % 2:
        raise fields.error(f"{heads} heads of {head_dim} over {kv_heads} KV heads do not divide")
    activation = fields.text("hidden_activation", None) or fields.text("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise fields.error(f"activation {activation!r} is not known; known: {', '.join(ACTIVATIONS)}")
    layers = fields.whole("num_hidden_layers", high=1024)
    theta, scaling, local_theta = _rope(fields, family)
    return LlamaConfig(
        name=name,
        vocabulary_size=fields.whole("vocab_size", high=1 << 22),
        hidden=hidden,
        intermediate=fields.whole("intermediate_size", high=1 << 19),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=fields.whole("max_position_embeddings", high=1 << 24),
        rope_theta=theta,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_scaling=scaling,
        activation=ACTIVATIONS[activation],
        embedding_scale=hidden**0.5 if family == "gemma3_text" else 1.0,
        windows=_windows(fields, family, layers),
        local_rope_theta=local_theta,
    )


def _family(fields: Fields) -> str:
    family = fields.text("model_type", "")
    architectures = fields.raw.get("architectures") or [FAMILIES.get(family)]
    if FAMILIES.get(family) is None or architectures != [FAMILIES[family]]:
        raise fields.error(
            f"model_type {family!r} with architectures {architectures} is not served; "
            f"served: {', '.join(f'{kind} ({name})' for kind, name in FAMILIES.items())}"
        )
    for key, neutral in NEUTRAL.items():
        if fields.raw.get(key) not in neutral:
            raise fields.error(f"{key} = {fields.raw[key]!r:.80} is not implemented")
    return family


def _windows(fields: Fields, family: str, layers: int) -> tuple[int | None, ...]:
    """The window of each layer; empty where none has one."""
    window = fields.whole("sliding_window", default=0, low=0, high=1 << 24)
    if family.startswith("qwen") and not fields.raw.get("use_sliding_window", False):
        window = 0
    if not window or family == "llama":
        return ()
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        kinds = _default_kinds(fields, family, layers)
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.error(f"layer_types must be a list of {layers}")
    unknown = set(map(str, kinds)) - {"full_attention", "sliding_attention"}
    if unknown:
        raise fields.error(f"layer type {min(unknown)!r} is not implemented")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _default_kinds(fields: Fields, family: str, layers: int) -> list[str]:
    if family == "mistral":
        return ["sliding_attention"] * layers
    if family == "gemma3_text":
        pattern = fields.whole("sliding_window_pattern", default=GEMMA_PATTERN, high=1024)
        return ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers)]
    first = fields.whole("max_window_layers", default=layers, low=0, high=1024)
    return ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]


def _rope(fields: Fields, family: str) -> tuple[float, RopeScaling | None, float | None]:
    """Base and scaling, and the base of layers with a window where they have their own.

    Older files have `rope_theta` and `rope_scaling`; newer ones `rope_parameters`, with an entry for
    each kind of layer where the kinds differ.
    """
    parameters = fields.section("rope_parameters")
    if parameters is None:
        parameters = fields.section("rope_scaling") or Fields({}, fields.source)
    local_theta = None
    of_full = parameters.section("full_attention")
    if of_full is not None:
        local = parameters.section("sliding_attention") or Fields({}, fields.source)
        if local.text("rope_type", "default") != "default":
            raise fields.error("rope scaling of layers with a window is not implemented")
        local_theta = local.number("rope_theta", DEFAULT_THETA)
        parameters = of_full
    elif family == "gemma3_text":
        local_theta = fields.number("rope_local_base_freq", DEFAULT_THETA)
    default_theta = 1e6 if family == "gemma3_text" else DEFAULT_THETA
    theta = parameters.number("rope_theta", fields.number("rope_theta", default_theta))
    return theta, _scaling(parameters, fields), local_theta


def _scaling(parameters: Fields, fields: Fields) -> RopeScaling | None:
    kind = parameters.text("rope_type", None) or parameters.text("type", "default")
    if kind == "default":
        return None
    if kind == "dynamic":
        raise fields.error(
            "rope type 'dynamic' is not served: its frequencies change as a sequence grows, and keys that "
            "are cached already would stay turned by the old ones"
        )
    if kind not in ("linear", "llama3", "yarn"):
        raise fields.error(f"rope type {kind!r} is not implemented; known: default, linear, llama3, yarn")
    for key in ("mscale", "mscale_all_dim"):
        if parameters.raw.get(key) is not None:
            raise fields.error(f"rope {key} is not implemented")
    factor = parameters.raw.get("attention_factor")
    return RopeScaling(
        kind=kind,
        factor=parameters.number("factor"),
        original_tokens=parameters.whole(
            "original_max_position_embeddings",
            default=fields.whole("max_position_embeddings", high=1 << 24),
            high=1 << 24,
        ),
        low_freq_factor=parameters.number("low_freq_factor", 1.0),
        high_freq_factor=parameters.number("high_freq_factor", 4.0),
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        attention_factor=None if factor is None else parameters.number("attention_factor"),
        truncate=bool(parameters.raw.get("truncate", True)),
    )
