"""The memory in which K and V lie, for all layers of a model.

Which block holds a token is the allocator's to say; the order of the numbers within a block is the
backend's. Both meet here: tensors of `[layers, blocks, kv_heads, block_size, head_dim]` ("head
major", what gathers and the kernel for the CPU read in place) or, for kernels that want it so,
`[layers, blocks, block_size, kv_heads, head_dim]`.

"Layers" are those that own memory at the same time under one block id. In a model whose layers are
cut into groups with block tables of their own, that is the size of a group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from reference_server.attention.formats import FP8_LARGEST, FP32, KVFormat, to_fp8, to_int8

FP8_HEADROOM = 2.0
"""The scale leaves room for numbers twice the largest of the tokens that it was measured on."""


@dataclass(frozen=True, slots=True)
class HostBlocks:
    """A copy of some blocks, of all layers, in host memory."""

    tensors: tuple[torch.Tensor, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


class KVStore:
    """K and V of every block. Raises RuntimeError (on CUDA `torch.OutOfMemoryError`) without memory."""

    def __init__(
        self,
        *,
        layers: int,
        num_blocks: int,
        kv_heads: int,
        block_size: int,
        head_dim: int,
        form: KVFormat = FP32,
        head_major: bool = True,
        device: str = "cpu",
        scale_factor: float = 1.0,
    ) -> None:
        """`scale_factor` multiplies every scale that is computed; 1 is right."""
        self.layers, self.num_blocks = layers, num_blocks
        self.kv_heads, self.block_size, self.head_dim = kv_heads, block_size, head_dim
        self.form = form
        self.head_major = head_major
        self.scale_factor = scale_factor
        self._scratch: list[torch.Tensor] = []
        # fp8's scales, one a layer for K and one for V: fixed by the first tokens that are stored,
        # which are those of the warm-up. Nan until then.
        self.fp8_scales = torch.full((2, layers), math.nan, device=device)
        self._calibrated = [[False] * layers for _ in range(2)]
        inner = (kv_heads, block_size) if head_major else (block_size, kv_heads)
        shape = (layers, num_blocks, *inner)
        # Written to, so that the pages exist from the start: the pool is memory held, not promised.
        self.keys = torch.empty((*shape, head_dim), dtype=form.dtype, device=device)
        self.values = torch.empty((*shape, head_dim), dtype=form.dtype, device=device)
        scale_shape = shape if form.scale_bytes else (0,)
        self.key_scales = torch.empty(scale_shape, device=device)
        self.value_scales = torch.empty(scale_shape, device=device)
        for tensor in self._tensors():
            raw(tensor).zero_()

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors())

    @property
    def block_bytes(self) -> int:
        """K, V and scales of one block in all layers."""
        return self.nbytes // self.num_blocks

    def row_of(self, blocks: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Rows of a layer's `[blocks * kv_heads * block_size, head_dim]`, token by token and head by head."""
        heads = torch.arange(self.kv_heads, device=blocks.device)
        if self.head_major:
            rows = (blocks[:, None] * self.kv_heads + heads) * self.block_size + offsets[:, None]
        else:
            rows = (blocks[:, None] * self.block_size + offsets[:, None]) * self.kv_heads + heads
        return rows.reshape(-1)

    def write(self, layer: int, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store vectors `[tokens, kv_heads, head_dim]` at `rows`, in the store's form."""
        for which, vectors in enumerate((keys, values)):
            self._write_one(which, layer, rows, vectors)

    def _write_one(self, which: int, layer: int, rows: torch.Tensor, vectors: torch.Tensor) -> None:
        flat = vectors.reshape(-1, self.head_dim)
        if self.form.name == "int8":
            flat, scales = to_int8(flat, self.scale_factor)
            self._put_scales(which, layer, rows, scales)
        elif self.form.name == "fp8":
            flat = to_fp8(flat, self._fp8_scale(which, layer, flat))
        else:
            flat = flat.to(self.form.dtype)
        self._put_rows(which, layer, rows, raw(flat))

    def _put_rows(self, which: int, layer: int, rows: torch.Tensor, vectors: torch.Tensor) -> None:
        target = raw((self.keys, self.values)[which][layer])
        target.view(-1, self.head_dim).index_copy_(0, rows, vectors)

    def _put_scales(self, which: int, layer: int, rows: torch.Tensor, scales: torch.Tensor) -> None:
        (self.key_scales, self.value_scales)[which][layer].view(-1).index_copy_(0, rows, scales)

    def _fp8_scale(self, which: int, layer: int, vectors: torch.Tensor) -> torch.Tensor:
        scale = self.fp8_scales[which, layer]
        # Asked once only: on CUDA the answer would have to be waited for.
        if not self._calibrated[which][layer]:
            if math.isnan(float(scale)):
                largest = vectors.abs().max().float().clamp_(min=1e-6)
                scale.copy_(largest * (FP8_HEADROOM / FP8_LARGEST * self.scale_factor))
            self._calibrated[which][layer] = True
        return scale

    def gather(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V in fp32 of rows of `[blocks * kv_heads, block_size * head_dim]`; head major only.

        Both are good until the next call: their memory is used again.
        """
        return self._gather_one(0, layer, rows), self._gather_one(1, layer, rows)

    def _gather_one(self, which: int, layer: int, rows: torch.Tensor) -> torch.Tensor:
        width = self.block_size * self.head_dim
        found = self._buffer(which, rows.numel() * width, raw(self.keys).dtype).view(-1, width)
        self._take_rows(which, layer, rows, found)
        if self.form.name == "fp32":
            return found
        wide = found.view(self.form.dtype).float()
        if self.form.name == "fp8":
            return wide.mul_(self.fp8_scales[which, layer])
        if self.form.name == "int8":
            vectors = wide.view(-1, self.block_size, self.head_dim)
            return vectors.mul_(self._take_scales(which, layer, rows)[..., None]).view(-1, width)
        return wide

    def _take_rows(self, which: int, layer: int, rows: torch.Tensor, out: torch.Tensor) -> None:
        source = raw((self.keys, self.values)[which][layer]).view(-1, out.shape[1])
        torch.index_select(source, 0, rows, out=out)

    def _take_scales(self, which: int, layer: int, rows: torch.Tensor) -> torch.Tensor:
        return (self.key_scales, self.value_scales)[which][layer].view(-1, self.block_size)[rows]

    def _buffer(self, which: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        if not self._scratch or self._scratch[which].numel() < count:
            self._scratch = [torch.empty(count, dtype=dtype, device=self.keys.device) for _ in range(2)]
        return self._scratch[which][:count]

    def copy_blocks(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Copy blocks, K, V and scales of all layers; the two lists may overlap."""
        # What is read is a copy of its own, so that nothing is overwritten before it is read.
        self._write_blocks(self._ids(target_ids), self._read_blocks(self._ids(source_ids)))

    def export_blocks(self, ids: Sequence[int]) -> HostBlocks:
        """A copy in host memory."""
        return HostBlocks(tuple(tensor.cpu() for tensor in self._read_blocks(self._ids(ids))))

    def import_blocks(
        self, ids: Sequence[int], blocks: HostBlocks, rows: Sequence[int] | None = None
    ) -> None:
        """Put a copy back, into blocks that are free now: those of its blocks that `rows` names, or all."""
        wanted = blocks.tensors if rows is None else tuple(saved[:, list(rows)] for saved in blocks.tensors)
        self._write_blocks(self._ids(ids), tuple(saved.to(self.keys.device) for saved in wanted))

    def _read_blocks(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(raw(tensor)[:, ids] for tensor in self._tensors())

    def _write_blocks(self, ids: torch.Tensor, contents: tuple[torch.Tensor, ...]) -> None:
        for tensor, content in zip(self._tensors(), contents, strict=True):
            raw(tensor)[:, ids] = content

    def _ids(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self.keys.device)

    def _tensors(self) -> tuple[torch.Tensor, ...]:
        plain = (self.keys, self.values)
        return (*plain, self.key_scales, self.value_scales) if self.form.scale_bytes else plain


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Float8 tensors as bytes: indexed copies know no float8."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
