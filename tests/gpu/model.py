"""Decoder layers of Qwen3-8B's shapes: its GEMMs, and the writing of KV into blocks. All layers share one set of weights.

A layer is three launches, as in piecewise CUDA graphs: what comes before the attention (a graph, if wished), the attention
op with the KV (never captured; the connector's hooks stand about it), and what comes after it (a graph). The attention's own
arithmetic is left out. What comes of a layer is the same each time, so a cache is emptied before a pass.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import torch

from tests.gpu.device import Device

BLOCK_TOKENS: Final = 16


Piece = Callable[[], object]


class Hooks(Protocol):
    """What the connector is told of a layer."""

    def attention_begins(self, layer: int) -> None: ...

    def kv_issued(self, layer: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    layers: int
    hidden: int = 4096
    kv: int = 2048  # K and V of a token
    ffn: int = 12288
    dtype: torch.dtype = torch.bfloat16
    layer_s: float = 0.0  # what a layer costs on the simulated device

    @property
    def block_bytes(self) -> int:
        return BLOCK_TOKENS * self.kv * self.dtype.itemsize


def shape(full: bool, layers: int, layer_s: float = 3e-3) -> Shape:  # the scale says it
    """Return Qwen3-8B's shape, or a tiny one with as many layers for a dry run."""
    if full:
        return Shape(layers=layers)
    return Shape(layers=layers, hidden=8, kv=4, ffn=8, dtype=torch.float32, layer_s=layer_s)


class Model:
    """Some layers, the KV cache that they write, and the activations of up to `tokens` tokens."""

    def __init__(self, device: Device, of: Shape, tokens: int) -> None:
        self.shape, self.tokens, self.blocks = of, tokens, tokens // BLOCK_TOKENS
        self._device = device
        generator = torch.Generator(device.memory).manual_seed(1)

        def random(*size: int) -> torch.Tensor:
            made: torch.Tensor = torch.randn(size, generator=generator, device=device.memory, dtype=torch.float32)
            return (made / math.sqrt(size[-2])).to(of.dtype)

        def empty(*size: int) -> torch.Tensor:
            return torch.empty(size, dtype=of.dtype, device=device.memory)

        qkv = of.hidden + of.kv
        self._weights = random(of.hidden, qkv), random(of.hidden, of.hidden), random(of.hidden, 2 * of.ffn)
        self._down = random(of.ffn, of.hidden)
        self._x = random(tokens, of.hidden)
        self._qkv, self._hidden, self._gate_up = empty(tokens, qkv), empty(tokens, of.hidden), empty(tokens, 2 * of.ffn)
        self._act = empty(tokens, of.ffn)
        self.cache = torch.zeros(
            of.layers, self.blocks + 1, BLOCK_TOKENS * of.kv, dtype=of.dtype, device=device.memory
        )  # block 0 is the null block; the prompt's follow it
        self._ids = torch.arange(1, self.blocks + 1, device=device.memory)

    def pieces(self, *, graphs: bool = False) -> Sequence[Piece]:
        """Return what computes a layer before and after its attention, captured or eager."""
        costs = 0.3 * self.shape.layer_s, 0.7 * self.shape.layer_s
        make = self._device.capture if graphs else partial(partial, self._device.launch)
        return [make(piece, cost) for piece, cost in zip((self._before, self._after), costs, strict=True)]

    def run(self, pieces: Sequence[Piece], hooks: Hooks) -> None:
        """Launch a forward pass on the current stream; the host does not wait."""
        before, after = pieces
        for layer in range(self.shape.layers):
            before()
            hooks.attention_begins(layer)
            self._device.launch(partial(self._write, layer))
            hooks.kv_issued(layer)
            after()

    def _write(self, layer: int) -> None:
        kv = self._qkv[:, self.shape.hidden :].reshape(self.blocks, -1)
        self.cache[layer].index_copy_(0, self._ids, kv)

    def _before(self) -> None:
        torch.mm(self._x, self._weights[0], out=self._qkv)

    def _after(self) -> None:
        _, out, gate_up = self._weights
        torch.mm(self._qkv[:, : self.shape.hidden], out, out=self._hidden)
        torch.mm(self._hidden, gate_up, out=self._gate_up)
        torch.mul(self._gate_up[:, : self.shape.ffn], self._gate_up[:, self.shape.ffn :], out=self._act)
        torch.mm(self._act, self._down, out=self._hidden)
