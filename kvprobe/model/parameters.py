"""The number of parameters that a configuration implies, by what they belong to.

Counted are the tensors that the language model's checkpoint stores: embeddings (once where the head is tied),
projections, experts, biases, norms, and the small vectors beside routers and recurrent layers. Draft layers
(MTP) are not counted, nor vision and audio towers. The layers are those of the reading (`ModelSpec`), the
rest follows `kvprobe.model.counting.table`. A family without a verified count, or a file that lacks a size,
gives no count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvprobe.errors import UsageError
from kvprobe.model.counting.blocks import attention, feed_forward, latent
from kvprobe.model.counting.experts import expert_layers, experts
from kvprobe.model.counting.keys import MAX_VOCABULARY, Flag, Group, Keys, Tally, Uncounted
from kvprobe.model.counting.recipe import Recipe
from kvprobe.model.counting.recurrent import state
from kvprobe.model.counting.sizes import nested_sizes
from kvprobe.model.counting.table import RECIPES
from kvprobe.model.families.geometry import HEADS, HIDDEN
from kvprobe.model.families.hybrids import nemotron_kinds
from kvprobe.model.fields import Fields
from kvprobe.model.spec import Attention, Latent, Layer, ModelSpec

_NO_HEADS = ("mamba", "falcon_mamba")


@dataclass(frozen=True, slots=True)
class Count:
    """Parameters by group. `head_doubtful`: whether the head is one of its own is not said; it is counted."""

    groups: Mapping[Group, int]
    head_doubtful: bool = False

    @property
    def total(self) -> int:
        return sum(self.groups.values())


def count_parameters(spec: ModelSpec, outer: Mapping[str, object]) -> Count:
    """The parameters of `spec`'s language model; `outer` is the whole configuration file.

    Raises Uncounted with the reason where the family has no verified count or a key is missing.
    """
    recipe = RECIPES.get(spec.family)
    if recipe is None:
        raise Uncounted(f"the parameters of {spec.family} are not counted from a configuration")
    # A composite file may hold the vocabulary outside of its language part.
    held = dict(spec.raw) if spec.vocab_size is None else {**spec.raw, "vocab_size": spec.vocab_size}
    keys = Keys(held, nested_sizes(spec.family) if spec.multimodal else None)
    _refuse(keys, recipe)
    recipe = _adjusted(keys, recipe, spec.family)
    hidden = keys.size(*HIDDEN)
    if spec.family not in _NO_HEADS:
        keys.size(*HEADS)
    tally = Tally()
    tied = _tied(keys, outer, recipe, spec)
    _ends(tally, keys, recipe, hidden, tied=bool(tied))
    if spec.family == "nemotron_h":
        _single_blocks(tally, keys, recipe, hidden, spec)
    else:
        _layers(tally, keys, recipe, hidden, spec)
    return Count(groups=dict(tally.groups), head_doubtful=tied is None)


def _refuse(keys: Keys, recipe: Recipe) -> None:
    for name, counted in recipe.refused:
        if keys.data.get(name) not in (None, counted):
            raise Uncounted(f"`{name}` is set, which is not counted")
    if keys.data.get("num_attention_heads_per_layer") is not None:
        raise Uncounted("layers of different heads are not counted")


def _adjusted(keys: Keys, recipe: Recipe, family: str) -> Recipe:
    """What hangs on more than one key: Falcon's norms, OPT's projections."""
    if family == "falcon":
        new, parallel = (
            keys.flag(Flag("new_decoder_architecture", False)),
            keys.flag(Flag("parallel_attn", True)),
        )
        norms = keys.optional("num_ln_in_parallel_attn")
        if norms not in (None, 1, 2):
            raise Uncounted("`num_ln_in_parallel_attn` is neither 1 nor 2")
        return replace(recipe, norms=(norms or 2) if new else 1 if parallel else 2)
    if family == "stablelm" and keys.flag(Flag("use_parallel_residual", False)):
        return replace(recipe, norms=1)
    if family == "opt" and keys.optional("word_embed_proj_dim") not in (None, keys.size(*HIDDEN)):
        raise Uncounted("`word_embed_proj_dim` differs from the hidden size")
    return recipe


def _tied(keys: Keys, outer: Mapping[str, object], recipe: Recipe, spec: ModelSpec) -> bool | None:
    """Is the head the embedding? A composite model's own key decides before the nested one; null: unsaid."""
    places = (outer, keys.data) if spec.multimodal else (keys.data,)
    for place in places:
        value = place.get("tie_word_embeddings")
        if isinstance(value, bool):
            return value
        if value is not None:
            raise Uncounted("`tie_word_embeddings` is neither true nor false")
    if spec.multimodal and not recipe.tied:
        # Wrappers have defaults of their own, which differ from their language model's.
        return None
    return recipe.tied


def _ends(tally: Tally, keys: Keys, recipe: Recipe, hidden: int, *, tied: bool) -> None:
    """Embedding, position table, last norm and head."""
    vocabulary = keys.size("vocab_size", "padded_vocab_size", high=MAX_VOCABULARY)
    tally.add("embedding", vocabulary * hidden)
    if not tied:
        tally.add("head", vocabulary * hidden)
    if keys.flag(recipe.head_bias):
        tally.add("other", vocabulary)
    if recipe.positions:
        rows = keys.size(recipe.positions, "max_position_embeddings", high=MAX_VOCABULARY)
        tally.add("other", (rows + recipe.position_rows) * hidden)
    norms = (1 if recipe.final_norm else 0) + (1 if recipe.embedding_norm else 0)
    tally.add("other", norms * recipe.norm_parts * hidden)


def _layers(tally: Tally, keys: Keys, recipe: Recipe, hidden: int, spec: ModelSpec) -> None:
    sparse = expert_layers(keys, recipe.experts, len(spec.layers))
    dense_width = None if all(sparse) or spec.family in _NO_HEADS else _width(keys, recipe, hidden)
    for layer, has_experts in zip(spec.layers, sparse, strict=True):
        _mixers(tally, keys, recipe, hidden, layer, spec.family)
        tally.add("other", recipe.norms * recipe.norm_parts * hidden + recipe.layer_scalars)
        if has_experts:
            experts(tally, keys, recipe, hidden)
        elif dense_width is not None:
            feed_forward(tally, keys, recipe, hidden, dense_width)


def _width(keys: Keys, recipe: Recipe, hidden: int) -> int:
    if not recipe.width_or_four:
        return keys.size(*recipe.width)
    return keys.optional(*recipe.width) or 4 * hidden


def _mixers(tally: Tally, keys: Keys, recipe: Recipe, hidden: int, layer: Layer, family: str) -> None:
    if layer.shares_with is not None or not layer.mixers:
        raise Uncounted("a layer without a mixer of its own is not counted")
    for mixer in layer.mixers:
        if isinstance(mixer, Attention):
            attention(tally, keys, recipe, hidden, mixer)
        elif isinstance(mixer, Latent):
            latent(tally, keys, recipe, hidden, mixer)
        else:
            state(tally, keys, recipe, hidden, mixer, family)


def _single_blocks(tally: Tally, keys: Keys, recipe: Recipe, hidden: int, spec: ModelSpec) -> None:
    """Nemotron-H: each layer is one block behind one norm: Mamba-2, attention, MLP or experts."""
    try:
        kinds = nemotron_kinds(Fields(spec.raw, source=spec.source))
    except UsageError as error:
        raise Uncounted(str(error)) from None
    for layer, kind in zip(spec.layers, kinds, strict=True):
        tally.add("other", hidden)
        if kind == "moe":
            experts(tally, keys, recipe, hidden)
        elif kind == "mlp":
            feed_forward(tally, keys, recipe, hidden, keys.size("intermediate_size"))
        else:
            _mixers(tally, keys, recipe, hidden, layer, spec.family)
