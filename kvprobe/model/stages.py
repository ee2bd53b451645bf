"""Pipeline stages and draft layers: which layers one GPU holds."""

from __future__ import annotations

from dataclasses import replace

from kvprobe.errors import Problem, UsageError
from kvprobe.model.spec import Attention, Latent, Layer, ModelSpec


def stage_sizes(layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each pipeline stage, as vLLM's `get_pp_indices` cuts them.

    Remaining layers go to the stages before the last, from the back: the first and the last stage also
    hold the embedding and the head. Raises UsageError when there are more stages than layers.
    """
    if not 1 <= pp <= layers:
        raise UsageError(
            Problem(
                code="pp_too_large",
                message=f"{layers} layers cannot be cut into {pp} pipeline stages",
                fix=f"use --pp between 1 and {layers}",
            )
        )
    sizes = [layers // pp] * pp
    for back in range(2, layers % pp + 2):
        sizes[-back] += 1
    return tuple(sizes)


def stage_layers(spec: ModelSpec, *, pp: int, stage: int, draft_layers: int = 0) -> tuple[Layer, ...]:
    """Layers of one pipeline stage; `draft_layers` layers of speculation join the last one (row 15).

    The draft is the model's own where it ships one (MTP); otherwise each draft layer is taken to have
    the geometry of the model's last layer with a growing cache (EAGLE heads are built so).
    """
    sizes = stage_sizes(len(spec.layers), pp)
    first = sum(sizes[:stage])
    own = spec.layers[first : first + sizes[stage]]
    if draft_layers and stage == pp - 1:
        own += drafts(spec, draft_layers)
    return own


def drafts(spec: ModelSpec, count: int) -> tuple[Layer, ...]:
    """`count` draft layers: those that ship with the model, repeated or cut to that number."""
    growing = [layer for layer in spec.owning() if _grows(layer)]
    pattern = spec.draft_layers or tuple(growing[-1:])
    if not pattern:
        return ()
    start = len(spec.layers)
    return tuple(replace(pattern[i % len(pattern)], index=start + i, shares_with=None) for i in range(count))


def _grows(layer: Layer) -> bool:
    return any(
        isinstance(mixer, Latent) or (isinstance(mixer, Attention) and mixer.kind == "full")
        for mixer in layer.mixers
    )
