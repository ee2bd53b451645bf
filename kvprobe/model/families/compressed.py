"""DeepSeek-V4: windows on every layer, and compressed rows behind them (LAYOUTS row 20).

Bytes are affine in the tokens, never a constant per token. The elements counted are those that the
published modelling code keeps: a window of single K=V vectors in each layer; one compressed vector per
`ratio` tokens; where the ratio is small, an indexer key per compressed vector; and the tokens that wait
in the compressor. Engines pad and quantise these pools in their own ways: the result is not verified
against a log.
"""

from __future__ import annotations

from fractions import Fraction

from kvprobe.model.families.geometry import HEADS, HIDDEN, Reading, layer_count
from kvprobe.model.fields import MAX_TOKENS, Fields
from kvprobe.model.spec import Affine, Attention, Layer

_BF16_BYTES = 2
_SPARSE, _HEAVY, _LOCAL = "compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"
_RATIOS = {_SPARSE: 4, _HEAVY: 128, _LOCAL: 0}


def deepseek_v4(fields: Fields) -> Reading:
    """V4's layers by compression ratio: 0 (window only), 4 with an indexer, 128 without."""
    count, query = layer_count(fields), fields.size(*HEADS)
    width, window = fields.size("head_dim"), fields.size_or(128, "sliding_window", high=MAX_TOKENS)
    index = fields.size_or(128, "index_head_dim")
    ratios = _ratios(fields, count)
    fixed = sum(window * width + _waiting(ratio, width, index) for ratio in ratios)
    grown = sum((_grown(ratio, width, index) for ratio in ratios), Fraction(0))
    local = Attention(
        kind="sliding", kv_heads=1, k_dim=width, v_dim=0, query_heads=query, window_tokens=window
    )
    fields.assume("DeepSeek-V4: elements counted at 2 bytes as the published code keeps them; not verified")
    return Reading(
        layers=tuple(Layer(index=i, mixers=(local,)) for i in range(count)),
        hidden_size=fields.size(*HIDDEN),
        query_heads=query,
        affine=Affine(
            fixed_bytes=fixed * _BF16_BYTES,
            per_token_bytes=float(grown * _BF16_BYTES),
            source="counted from layer_types / compress_ratios",
        ),
    )


def _ratios(fields: Fields, count: int) -> list[int]:
    """Compression ratio of each layer; a list longer than the layers covers the MTP layers too."""
    ratios = fields.sizes("compress_ratios")
    if ratios is not None and len(ratios) >= count:
        return ratios[:count]
    kinds = fields.texts("layer_types", length=count)
    if kinds is None:
        fields.assume(f"compress_ratios is not in the configuration: the pattern of {fields.owner}")
        kinds = [_SPARSE if i > 1 and i % 2 else _HEAVY for i in range(count)]
    unknown = next((kind for kind in kinds if kind not in _RATIOS), None)
    if unknown is not None:
        fields.wrong("layer_types", f"holds {unknown[:40]!r}", f"known kinds: {', '.join(sorted(_RATIOS))}")
    return [_RATIOS[kind] for kind in kinds]


def _grown(ratio: int, width: int, index: int) -> Fraction:
    """Elements that one more token adds: a share of a compressed vector, and of an indexer key."""
    if ratio == 0:
        return Fraction(0)
    return Fraction(width + (index if ratio == _RATIOS[_SPARSE] else 0), ratio)


def _waiting(ratio: int, width: int, index: int) -> int:
    """Elements of the tokens that wait to be compressed (K and gate); twice as wide where windows overlap."""
    if ratio == 0:
        return 0
    vector = 2 * (width + index) if ratio == _RATIOS[_SPARSE] else width
    return 2 * ratio * vector
