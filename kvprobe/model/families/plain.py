"""Families whose every layer is full attention with one geometry (LAYOUTS row 1)."""

from __future__ import annotations

from dataclasses import replace

from kvprobe.model.families.geometry import (
    HEADS,
    HIDDEN,
    Heads,
    Reading,
    divided,
    layer_count,
    read_heads,
    uniform,
)
from kvprobe.model.families.windows import by_layer_types
from kvprobe.model.fields import Fields
from kvprobe.model.spec import Layer


def reading_of(heads: Heads) -> Reading:
    return Reading(
        layers=uniform(heads.layers, heads.attention()),
        hidden_size=heads.hidden,
        query_heads=heads.query_heads,
    )


def full(fields: Fields) -> Reading:
    """MHA, GQA or MQA with keys as Llama names them; MTP layers (GLM-4.5, MiniMax-M2) are drafts."""
    heads = read_heads(fields)
    if "sliding_attention" in (fields.texts("layer_types") or ()) and fields.has("sliding_window"):
        # Engines build such a model with its windows; the family's own class reads only the other keys.
        fields.assume("layer_types names sliding layers: they are read with the window, as engines do")
        return by_layer_types(None)(fields)
    extra = fields.optional("num_nextn_predict_layers", "num_mtp_modules", low=0, high=64) or 0
    drafts = tuple(Layer(index=heads.layers + i, mixers=(heads.attention(),)) for i in range(extra))
    return replace(reading_of(heads), draft_layers=drafts)


def multi_head(fields: Fields) -> Reading:
    """Families that have no KV head key at all: multi-head attention by design (GPT-2, OPT, Bloom)."""
    count, hidden, query = layer_count(fields), fields.size(*HIDDEN), fields.size(*HEADS)
    width = divided(fields, hidden, query)
    fields.assume(f"this family has no num_key_value_heads: multi-head attention, {query} KV heads")
    return reading_of(Heads(layers=count, hidden=hidden, query_heads=query, kv_heads=query, head_dim=width))


def falcon(fields: Fields) -> Reading:
    """Falcon: one KV head (multi_query) unless the new decoder architecture gives `num_kv_heads`."""
    count, hidden, query = layer_count(fields), fields.size(*HIDDEN), fields.size(*HEADS)
    if fields.flag(False, "new_decoder_architecture"):
        kv = fields.optional("num_kv_heads", "n_head_kv") or query
    elif fields.flag(True, "multi_query"):
        kv = 1
        fields.assume("multi_query: one KV head")
    else:
        kv = query
    width = divided(fields, hidden, query)
    return reading_of(Heads(layers=count, hidden=hidden, query_heads=query, kv_heads=kv, head_dim=width))


def gpt_bigcode(fields: Fields) -> Reading:
    """StarCoder 1: one KV head with `multi_query`, else multi-head."""
    count, hidden, query = layer_count(fields), fields.size(*HIDDEN), fields.size(*HEADS)
    kv = 1 if fields.flag(True, "multi_query") else query
    fields.assume(f"multi_query: {kv} KV heads")
    width = divided(fields, hidden, query)
    return reading_of(Heads(layers=count, hidden=hidden, query_heads=query, kv_heads=kv, head_dim=width))


def nested_attention(fields: Fields) -> Reading:
    """MPT and DBRX: KV heads stand in `attn_config.kv_n_heads`."""
    count, hidden, query = layer_count(fields), fields.size(*HIDDEN), fields.size(*HEADS)
    attention = Fields(fields.part("attn_config") or {}, source=fields.source, assumptions=fields.assumptions)
    kv = attention.optional("kv_n_heads")
    if kv is None:
        kv = query
        fields.assume(f"attn_config.kv_n_heads is not in the configuration: multi-head, {query} KV heads")
    width = divided(fields, hidden, query)
    return reading_of(Heads(layers=count, hidden=hidden, query_heads=query, kv_heads=kv, head_dim=width))


def chatglm(fields: Fields) -> Reading:
    """ChatGLM 2-4 in its own code: `multi_query_group_num` KV heads, `kv_channels` wide."""
    count, hidden, query = layer_count(fields), fields.size(*HIDDEN), fields.size(*HEADS)
    kv = query
    if fields.flag(False, "multi_query_attention"):
        kv = fields.size("multi_query_group_num")
    width = fields.optional("kv_channels") or divided(fields, hidden, query)
    return reading_of(Heads(layers=count, hidden=hidden, query_heads=query, kv_heads=kv, head_dim=width))


def jetmoe(fields: Fields) -> Reading:
    """JetMoE: KV heads and width are given; query heads are KV heads x experts per token."""
    count, hidden, kv = layer_count(fields), fields.size(*HIDDEN), fields.size("num_key_value_heads")
    query = kv * fields.size_or(2, "num_experts_per_tok", high=1024)
    width = fields.size_or(128, "kv_channels")
    return reading_of(Heads(layers=count, hidden=hidden, query_heads=query, kv_heads=kv, head_dim=width))
