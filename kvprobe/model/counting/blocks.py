"""The parameters of one attention or feed-forward block.

Shapes are those of the families' published code (transformers 5.24 `modeling_*.py`), checked against that
code by `tests/model/fixtures/parameter_counts.jsonl`.
"""

from __future__ import annotations

from kvprobe.model.counting.keys import Keys, Tally, Uncounted
from kvprobe.model.counting.recipe import Recipe
from kvprobe.model.spec import Attention, Latent


def attention(tally: Tally, keys: Keys, recipe: Recipe, hidden: int, heads: Attention) -> None:
    """Projections of queries, keys, values and output; their biases, norms and sinks."""
    query = heads.query_heads * heads.k_dim * recipe.query_factor
    key, value = heads.kv_heads * heads.k_dim, heads.kv_heads * heads.v_dim
    back = heads.query_heads * heads.v_dim
    tally.add("attention", hidden * (query + key + value + back))
    if recipe.head_gate:
        tally.add("attention", hidden * heads.query_heads)
    if keys.flag(recipe.qkv_bias):
        tally.add("other", query + key + value)
    if keys.flag(recipe.o_bias):
        tally.add("other", hidden)
    if recipe.qk_norm and keys.flag(recipe.qk_norm_when):
        wide = (heads.query_heads + heads.kv_heads) * heads.k_dim
        tally.add("other", 2 * heads.k_dim if recipe.qk_norm == "head" else wide)
    if recipe.sinks:
        tally.add("other", heads.query_heads)


def latent(tally: Tally, keys: Keys, recipe: Recipe, hidden: int, layer: Latent) -> None:
    """MLA: queries (through `q_lora_rank` or direct), the compressed vector, its expansion, the output."""
    heads, rope, rank = layer.plain.query_heads, layer.rope_dim, layer.lora_rank
    nope, value = keys.size("qk_nope_head_dim"), keys.size("v_head_dim")
    if not recipe.direct_query and not keys.stated("q_lora_rank"):
        raise Uncounted("`q_lora_rank` is missing")
    through = None if recipe.direct_query else keys.optional("q_lora_rank")
    bias = keys.flag(recipe.qkv_bias)
    width = heads * (nope + rope)
    if through:
        tally.add("attention", hidden * through + through * width)
        tally.add("other", through + (through if bias else 0))
    else:
        tally.add("attention", hidden * width)
    tally.add("attention", hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden)
    tally.add("other", rank + ((rank + rope + hidden) if bias else 0))
    if layer.indexer_dim is not None:
        if not through:
            raise Uncounted("a sparse indexer without `q_lora_rank`")
        _indexer(tally, keys, hidden, through, layer.indexer_dim)


def _indexer(tally: Tally, keys: Keys, hidden: int, through: int, width: int) -> None:
    """DeepSeek sparse attention: queries from the compressed query, one key, a weight per index head."""
    heads = keys.size("index_n_heads")
    tally.add("attention", through * heads * width + hidden * width + hidden * heads)
    tally.add("other", 2 * width)


def feed_forward(tally: Tally, keys: Keys, recipe: Recipe, hidden: int, width: int) -> None:
    """A dense MLP: two matrices, or three when it is gated."""
    tally.add("mlp", (3 if recipe.gated else 2) * hidden * width)
    if keys.flag(recipe.mlp_bias):
        tally.add("other", hidden + (2 if recipe.gated else 1) * width)
