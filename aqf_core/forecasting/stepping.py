"""Steps of a stack of LSTM layers for very many sequences at once, without gradients.

The formulas are those of `RecurrentLayer.step`. Here everything is done in place on contiguous
feature-major memory: one product per layer takes in the layer below, the previous state and any
further inputs, gates that share an activation lie side by side, and nothing is allocated anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..conditioners.recurrent import RecurrentLayer

__all__ = ["LSTMStack", "reorder_gates"]


class LSTMStack:
    """LSTM layers that advance N sequences in the same memory again and again.

    Args:
        layers: of the network, all LSTM.
        varying: which inputs of the first layer differ from sequence to sequence; the others come
            as their part of the gates.
        columns: number N of sequences.
    """

    def __init__(
        self, layers: Sequence[RecurrentLayer], varying: Sequence[int], columns: int
    ) -> None:
        first = layers[0].weight_ih
        self.varying = first.new_zeros(len(varying), columns)
        self.weights: list[Tensor] = []
        self.biases: list[Tensor] = []
        for depth, layer in enumerate(layers):
            below = layer.weight_ih if depth else layer.weight_ih[:, list(varying)]
            self.weights.append(reorder_gates(torch.cat([below, layer.weight_hh], 1)).contiguous())
            # Of the first layer, this part of the bias comes with the fixed part of the gates.
            bias = layer.bias_ih + layer.bias_hh if depth else layer.bias_hh
            self.biases.append(reorder_gates(bias)[:, None])
        self.sizes = [layer.hidden for layer in layers]
        # What a layer reads, its input above its own state.
        widths = [len(varying), *self.sizes[:-1]]
        self.reads = [
            first.new_empty(w + h, columns) for w, h in zip(widths, self.sizes, strict=True)
        ]
        self.memory = [first.new_empty(h, columns) for h in self.sizes]
        self.gates = [first.new_empty(4 * h, columns) for h in self.sizes]
        self.scratch = [first.new_empty(h, columns) for h in self.sizes]

    def start(self, hidden: Sequence[Tensor], memory: Sequence[Tensor], copies: int) -> None:
        """Begin from states (B, H) of every layer, each for as many sequences side by side."""
        for depth, size in enumerate(self.sizes):
            columns = (size, len(hidden[depth]), copies)
            state = hidden[depth].t()[:, :, None].expand(columns)
            self.reads[depth][-size:].view(columns).copy_(state)
            self.memory[depth].view(columns).copy_(memory[depth].t()[:, :, None].expand(columns))

    def step(self, fixed: Tensor) -> Tensor:
        """Advance by one step and return the state (H, N) of the last layer.

        The varying inputs are read from `self.varying` (V, N).

        Args:
            fixed: (gates, B), the part of the first layer's gates that is the same for the N / B
                sequences side by side, in the order of `reorder_gates`.
        """
        below = 0
        for depth, size in enumerate(self.sizes):
            read, gates = self.reads[depth], self.gates[depth]
            read[:-size].copy_(self.varying if depth == 0 else self.reads[depth - 1][-below:])
            torch.addmm(self.biases[depth], self.weights[depth], read, out=gates)
            if depth == 0:
                gates.view(*fixed.shape, -1).add_(fixed[:, :, None])
            gates[: 3 * size].sigmoid_()
            gates[3 * size :].tanh_()
            enter, forget, leave, new = gates.view(4, size, -1)
            memory, state = self.memory[depth], read[-size:]
            memory.mul_(forget).addcmul_(enter, new)
            torch.tanh(memory, out=self.scratch[depth])
            torch.mul(self.scratch[depth], leave, out=state)
            below = size
        return self.reads[-1][-self.sizes[-1] :]


def reorder_gates(gates: Tensor) -> Tensor:
    """Rows in the order input, forget, cell, output -> input, forget, output, cell.

    Example:
        >>> reorder_gates(torch.arange(4))
        tensor([0, 1, 3, 2])
    """
    enter, forget, new, leave = gates.chunk(4)
    return torch.cat([enter, forget, leave, new])
