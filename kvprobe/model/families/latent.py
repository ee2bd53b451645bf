"""Multi-head latent attention (DeepSeek V2 and after), with and without the sparse indexer.

LAYOUTS rows 3-5: `kv_lora_rank + qk_rope_head_dim` elements a token and layer, on every rank.
"""

from __future__ import annotations

from kvprobe.model.families.geometry import HEADS, HIDDEN, Reading, layer_count, read_heads, uniform
from kvprobe.model.fields import MAX_LAYERS, Fields
from kvprobe.model.spec import Attention, Latent, Layer

_PLAIN_DIM = 128
"""Width of a decompressed head where the file is silent, as DeepSeek V2 and V3 have it."""


def latent(fields: Fields, query_heads: int, indexer_dim: int | None = None) -> Latent:
    """The latent layer of a configuration, with its form as ordinary heads beside it (row 2)."""
    rope = fields.size("qk_rope_head_dim")
    return Latent(
        lora_rank=fields.size("kv_lora_rank"),
        rope_dim=rope,
        indexer_dim=indexer_dim,
        plain=Attention(
            kind="full",
            kv_heads=query_heads,
            k_dim=_plain_width(fields, "qk_nope_head_dim") + rope,
            v_dim=_plain_width(fields, "v_head_dim"),
            query_heads=query_heads,
        ),
    )


def _plain_width(fields: Fields, key: str) -> int:
    given = fields.optional(key, low=0)
    if given is None:
        fields.assume(
            f"{key} is not in the configuration: {_PLAIN_DIM}, which only a decompressed cache depends on"
        )
    return _PLAIN_DIM if given is None else given


def mla(fields: Fields) -> Reading:
    """DeepSeek V2, V3, R1, Kimi K2, MiniCPM3: every layer latent; MTP layers are drafts."""
    count, query = layer_count(fields), fields.size(*HEADS)
    mixer = latent(fields, query)
    return Reading(
        layers=uniform(count, mixer),
        draft_layers=_drafts(fields, count, mixer),
        hidden_size=fields.size(*HIDDEN),
        query_heads=query,
    )


def mla_or_sparse(fields: Fields) -> Reading:
    """DeepSeek V3, Kimi K2; with an indexer's width it is V3.2, which engines tell by that key alone."""
    if not fields.has("index_head_dim"):
        return mla(fields)
    fields.assume("index_head_dim is in the configuration: read with the sparse indexer, as V3.2")
    return sparse(fields)


def longcat(fields: Fields) -> Reading:
    """LongCat-Flash: each of `num_layers` blocks has two attention layers."""
    blocks, query = fields.size("num_layers", "num_hidden_layers", high=MAX_LAYERS), fields.size(*HEADS)
    return Reading(
        layers=uniform(2 * blocks, latent(fields, query)),
        hidden_size=fields.size(*HIDDEN),
        query_heads=query,
    )


def mla_or_heads(fields: Fields) -> Reading:
    """Families of which only some members have MLA: it is there when `kv_lora_rank` is."""
    if fields.has("kv_lora_rank"):
        return mla(fields)
    heads = read_heads(fields)
    return Reading(
        layers=uniform(heads.layers, heads.attention()),
        hidden_size=heads.hidden,
        query_heads=heads.query_heads,
    )


def sparse(fields: Fields) -> Reading:
    """DeepSeek V3.2, GLM-5: latent layers with an indexer key in those layers that run the indexer."""
    count, query = layer_count(fields), fields.size(*HEADS)
    width = fields.size_or(128, "index_head_dim")
    with_index, without = latent(fields, query, width), latent(fields, query)
    runs = _indexer_runs(fields, count)
    layers = tuple(Layer(index=i, mixers=(with_index if runs[i] else without,)) for i in range(count))
    return Reading(
        layers=layers,
        draft_layers=_drafts(fields, count, with_index),
        hidden_size=fields.size(*HIDDEN),
        query_heads=query,
    )


def _indexer_runs(fields: Fields, count: int) -> list[bool]:
    """Which layers run the indexer; the others reuse its choice and keep no key."""
    kinds = fields.texts("indexer_types", length=count)
    if kinds is not None:
        return [_indexer_kind(fields, "indexer_types", kind) for kind in kinds]
    if fields.has("index_topk_pattern"):
        word = fields.data["index_topk_pattern"]
        letters = word if isinstance(word, str) else (fields.texts("index_topk_pattern") or [])
        if len(letters) != count:
            fields.wrong(
                "index_topk_pattern", f"has {len(letters)} entries for {count} layers", "one per layer"
            )
        return [_indexer_kind(fields, "index_topk_pattern", letter) for letter in letters]
    every = fields.optional("index_topk_freq", high=MAX_LAYERS) or 1
    if every == 1:
        return [True] * count
    skip = fields.optional("index_skip_topk_offset", low=0, high=MAX_LAYERS)
    offset = 2 if skip is None else skip
    fields.assume(f"indexer_types is not in the configuration: one layer in {every} runs the indexer")
    return [max(i - offset + 1, 0) % every == 0 for i in range(count)]


def _indexer_kind(fields: Fields, key: str, kind: str) -> bool:
    if kind not in ("full", "shared", "F", "S"):
        fields.wrong(key, f"holds {kind[:40]!r}", "each layer is `full` or `shared`")
    return kind in ("full", "F")


def _drafts(fields: Fields, count: int, mixer: Latent) -> tuple[Layer, ...]:
    extra = fields.optional("num_nextn_predict_layers", low=0, high=64) or 0
    return tuple(Layer(index=count + i, mixers=(mixer,)) for i in range(extra))
