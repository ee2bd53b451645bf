"""Weight matrices in the form that the C kernel reads from front to back."""

from __future__ import annotations

import ctypes

import torch

from reference_server.models.weights import LayerWeights, LlamaWeights, Matrix
from reference_server.native.library import library
from reference_server.native.structures import FORMS, MATRICES, CMatrix, address


class PackedMatrix:
    """A matrix `[out, in]`: bf16 stays bf16 and is widened on the fly, the rest is fp32."""

    def __init__(self, matrix: torch.Tensor, kernels: ctypes.CDLL) -> None:
        self._kernels = kernels
        self.rows, self.columns = matrix.shape
        bf16 = matrix.dtype == torch.bfloat16
        source = (matrix if bf16 else matrix.float()).contiguous()
        form = FORMS["bf16" if bf16 else "fp32"]
        self._data = torch.empty(kernels.packed_bytes(form, self.rows, self.columns), dtype=torch.uint8)
        kernels.pack(form, self.rows, self.columns, address(source), address(self._data))
        self.structure = CMatrix(address(self._data), form, self.rows, self.columns)

    @property
    def nbytes(self) -> int:
        return self._data.nbytes

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty(len(x), self.rows)
        self._kernels.matmul(
            ctypes.byref(self.structure), address(x), len(x), address(out), torch.get_num_threads()
        )
        return out


def packed(weights: LlamaWeights) -> LlamaWeights | None:
    """The same weights with packed matrices; None when there are no kernels.

    The matrices of `weights` are dropped one by one, so that not all are held twice.
    """
    kernels = library()
    if kernels is None:
        return None

    def pack(matrix: torch.Tensor | Matrix) -> torch.Tensor | Matrix:
        return PackedMatrix(matrix, kernels) if isinstance(matrix, torch.Tensor) else matrix

    head = pack(weights.head)
    for layer in weights.layers:
        for name in MATRICES:
            setattr(layer, name, pack(getattr(layer, name)))
        _widen_vectors(layer)
    return LlamaWeights(weights.embedding, weights.layers, weights.norm.float().contiguous(), head)


def _widen_vectors(layer: LayerWeights) -> None:
    for name in LayerWeights.__dataclass_fields__:
        part = getattr(layer, name)
        if isinstance(part, torch.Tensor):
            setattr(layer, name, part.float().contiguous())
