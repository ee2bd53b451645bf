"""What distinguishes the families that are counted: which matrices, biases and norms a layer has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kvprobe.model.counting.keys import Flag, Keys

LayerRule = Callable[[Keys, int], list[bool]]
"""Which of so many layers have experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: where it is, how many, how wide.

    `shared` is the shared expert's width: a key, or empty where it is `shared_count` experts of the common
    width. `score_bias` is a vector that is stored beside the router (one entry per expert).
    """

    layers: LayerRule
    count: tuple[str, ...]
    width: tuple[str, ...] = ("moe_intermediate_size",)
    shared: str = ""
    shared_count: str = ""
    shared_always: bool = False
    shared_gate: bool = False
    score_bias: bool = False
    biased: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One family. The defaults are Llama's.

    `norms` of the hidden size per layer, each of `norm_parts` vectors (2: with bias, 0: none stored);
    `positions` is the key of a stored position table with so many rows besides. `width` empty: 4 x hidden.
    `refused` are switches (key, value that is counted): another value is another architecture.
    """

    tied: bool = False
    qkv_bias: Flag | bool = False
    o_bias: Flag | bool = False
    qk_norm: Literal["", "head", "full"] = ""
    qk_norm_when: Flag | bool = True
    query_factor: int = 1
    direct_query: bool = False
    head_gate: bool = False
    sinks: bool = False
    norms: int = 2
    norm_parts: int = 1
    final_norm: bool = True
    gated: bool = True
    mlp_bias: Flag | bool = False
    width: tuple[str, ...] = ("intermediate_size",)
    width_or_four: bool = False
    positions: str = ""
    position_rows: int = 0
    embedding_norm: bool = False
    head_bias: Flag | bool = False
    layer_scalars: int = 0
    state_norm: Flag | bool = True
    experts: Experts | None = None
    refused: tuple[tuple[str, object], ...] = ()
