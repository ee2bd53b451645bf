"""Encoder-decoder families and cross-attention layers (LAYOUTS row 14)."""

from __future__ import annotations

from kvprobe.model.families.geometry import Reading, divided, read_heads, uniform
from kvprobe.model.fields import MAX_LAYERS, MAX_TOKENS, Fields
from kvprobe.model.spec import Attention, Layer


def _decoder(
    fields: Fields, layers: int, heads: int, width: int, hidden: int, encoder_tokens: int
) -> Reading:
    own = Attention(kind="full", kv_heads=heads, k_dim=width, v_dim=width, query_heads=heads)
    cross = Attention(kind="cross", kv_heads=heads, k_dim=width, v_dim=width, query_heads=heads)
    return Reading(
        layers=uniform(layers, own, cross),
        hidden_size=hidden,
        query_heads=heads,
        encoder_tokens=encoder_tokens,
    )


def whisper(fields: Fields) -> Reading:
    """Whisper: multi-head decoder layers, each with cross attention over `max_source_positions` frames."""
    layers = fields.size("decoder_layers", high=MAX_LAYERS)
    heads, hidden = fields.size("decoder_attention_heads"), fields.size("d_model")
    encoder = fields.size_or(1500, "max_source_positions", high=MAX_TOKENS)
    fields.assume(f"cross attention keeps the whole encoder output: {encoder} positions")
    return _decoder(fields, layers, heads, divided(fields, hidden, heads), hidden, encoder)


def bart(fields: Fields) -> Reading:
    """BART and its kin: as Whisper, with an encoder as long as the position table."""
    layers = fields.size("decoder_layers", high=MAX_LAYERS)
    heads, hidden = fields.size("decoder_attention_heads"), fields.size("d_model")
    encoder = fields.size("max_position_embeddings", high=MAX_TOKENS)
    fields.assume(f"cross attention is counted for the longest encoder input, {encoder} tokens")
    return _decoder(fields, layers, heads, divided(fields, hidden, heads), hidden, encoder)


def t5(fields: Fields) -> Reading:
    """T5: `d_kv` wide heads; the encoder length has no bound in the configuration."""
    layers = fields.optional("num_decoder_layers", high=MAX_LAYERS) or fields.size(
        "num_layers", high=MAX_LAYERS
    )
    heads, width = fields.size("num_heads"), fields.size("d_kv")
    encoder = fields.size_or(512, "n_positions", high=MAX_TOKENS)
    fields.assume(f"cross attention is counted for an encoder input of {encoder} tokens")
    return _decoder(fields, layers, heads, width, fields.size("d_model"), encoder)


def mllama(fields: Fields) -> Reading:
    """Llama 3.2 Vision: layers in `cross_attention_layers` keep image tokens only, the others text only."""
    heads = read_heads(fields)
    where = fields.sizes("cross_attention_layers")
    if where is None:
        where = [3, 8, 13, 18, 23, 28, 33, 38]
        fields.assume(
            f"cross_attention_layers is not in the configuration: {where}, the default of {fields.owner}"
        )
    cross = set(where)
    layers = tuple(
        Layer(index=i, mixers=(heads.attention("cross" if i in cross else "full"),))
        for i in range(heads.layers)
    )
    tokens = _MLLAMA_TILES * _MLLAMA_TILE_TOKENS
    fields.assume(f"cross attention is counted for one image of {_MLLAMA_TILES} tiles, {tokens} tokens")
    return Reading(
        layers=layers, hidden_size=heads.hidden, query_heads=heads.query_heads, encoder_tokens=tokens
    )


_MLLAMA_TILES = 4
_MLLAMA_TILE_TOKENS = 1601
"""(560 / 14)^2 patches and the class token, of each tile."""
