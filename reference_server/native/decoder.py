"""All layers in one call: no Python and no torch between two of them."""

from __future__ import annotations

import ctypes

import torch

from reference_server.models.weights import LlamaWeights
from reference_server.native.attention import NativeAttention, NativePlan
from reference_server.native.packed import PackedMatrix
from reference_server.native.structures import MATRICES, VECTORS, address


class NativeDecoder:
    """Runs the layers of packed weights over the C kernel's attention."""

    def __init__(self, weights: LlamaWeights, attention: NativeAttention) -> None:
        self._weights = weights  # what the structures point to
        self._attention = attention
        for target, layer in zip(attention.layers, weights.layers, strict=True):
            for name in MATRICES:
                matrix = getattr(layer, name)
                assert isinstance(matrix, PackedMatrix)
                setattr(target, name, matrix.structure)
            for name in VECTORS:
                vector = getattr(layer, name)
                if vector is not None:
                    setattr(target, name, address(vector))

    def rotate_by(self, layer: int, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """The rotary tables of a layer, which the caller keeps."""
        target = self._attention.layers[layer]
        target.cos, target.sin = address(cos), address(sin)

    def run(self, x: torch.Tensor, plan: NativePlan) -> torch.Tensor:
        """`[rows, hidden]` after the last layer; `x` itself is changed."""
        model, step = self._attention.model, plan.structure
        buffers = {
            "x": x,
            "normed": torch.empty(len(x), model.hidden),
            "gate_up": torch.empty(len(x), 2 * model.intermediate),
            "inner": torch.empty(len(x), model.intermediate),
        }
        for name, buffer in buffers.items():
            setattr(step, name, address(buffer))
        self._attention.kernels.decode_layers(ctypes.byref(model), ctypes.byref(step))
        return x
