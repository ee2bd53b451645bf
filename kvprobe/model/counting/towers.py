"""The most that the vision and audio parts of a composite model can hold.

They are not counted: their designs differ too much. A transformer encoder has at most four square matrices
and three of its MLP's width per layer; one layer more stands for pooling heads and convolutions, and a
projector may merge four patches in two steps, once for each level that is handed on (deepstack). Held against
published designs in `tests/model/test_parameters.py`. Parts of another kind give no bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from kvprobe.model.counting.keys import Keys, Uncounted
from kvprobe.model.fields import MAX_LAYERS

_PARTS = ("vision_config", "audio_config", "vision_tower_config", "vit_config")
_OPAQUE = (
    "mm_vision_tower",
    "vision_model_name",
    "embd_layer",
    "img_processor",
    "vision_tower",
    "audio_processor",
)
_ROWS_OF_POSITIONS = 1 << 14
_PATCH = 6 * 32 * 32


def towers_at_most(config: Mapping[str, object], hidden: int) -> int | None:
    """Parameters of all towers and projectors, at most; null where the file names none.

    Raises Uncounted where a part is named that this bound does not know.
    """
    inner = config.get("thinker_config")
    places = [config, inner] if isinstance(inner, Mapping) else [config]
    if any(place.get(name) not in (None, False, {}) for place in places for name in _OPAQUE):
        raise Uncounted("the vision part is not described in the configuration")
    parts = [part for place in places for name in _PARTS if isinstance(part := place.get(name), Mapping)]
    step = Keys(config).optional("alignment_intermediate_size") or 0
    return sum(_one(Keys(part), hidden, step) for part in parts) if parts else None


def _one(keys: Keys, text_hidden: int, step: int) -> int:
    """One tower and its projector, whose inner width the file may state (`step`)."""
    layers = keys.optional(
        "depth", "num_hidden_layers", "encoder_layers", "layers", "n_layers", high=MAX_LAYERS
    )
    width = keys.optional("embed_dim", "d_model", "width", "hidden_size")
    if not layers or not width:
        raise Uncounted("the vision or audio part does not state its layers and width")
    inner = keys.optional("intermediate_size", "encoder_ffn_dim", "mlp_dim") or _by_ratio(keys, width)
    per_layer = 4 * width * width + 3 * width * inner + 16 * width + 2 * inner
    out = max(text_hidden, keys.optional("out_hidden_size", "output_dim", "vision_output_dim") or 0)
    levels = 1 + len(keys.numbers("deepstack_visual_indexes") or [])
    projector = levels * (16 * width * width + 4 * width * out + 2 * out * out) + step * (4 * width + out)
    return (layers + 1) * per_layer + projector + (_ROWS_OF_POSITIONS + _PATCH) * width


def _by_ratio(keys: Keys, width: int) -> int:
    ratio = keys.data.get("mlp_ratio", 4)
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= 64:
        raise Uncounted("the vision part's `mlp_ratio` is no ratio")
    return ceil(ratio * width)
