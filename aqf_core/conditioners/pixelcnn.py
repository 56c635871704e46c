r"""A convolutional conditioner for images, generated pixel by pixel in raster order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ShapeError
from .base import Conditioner, flat_context, spread, to_batch
from .masked_mlp import MaskedMLP, MaskedMLPState

__all__ = ["PixelCNN"]


def gate(values: Tensor, dim: int) -> Tensor:
    """tanh(a) * sigmoid(b) of the two halves of `values` along `dim`."""
    a, b = values.chunk(2, dim)
    return torch.tanh(a) * torch.sigmoid(b)


class GatedLayer(nn.Module):
    r"""One gated layer with a vertical and a horizontal stack.

    The vertical stack at (i, j) sees rows i - r ... i and columns j - r ... j + r of the vertical
    stack below. The horizontal stack at (i, j) sees columns j - r ... j of row i of the
    horizontal stack below (in the first layer j - r ... j - 1, so that a pixel never sees itself)
    and the vertical stack of row i - 1. Together they see everything above and to the left: there
    is no blind spot, and no weight needs a mask.

    Args:
        vertical_in: channels of the vertical stack below (image channels in the first layer).
        horizontal_in: channels of the horizontal stack below.
        channels: output channels F of both stacks.
        radius: r above.
        context: number of context features, 0 for none.
        first: whether this is the first layer.
    """

    def __init__(
        self,
        vertical_in: int,
        horizontal_in: int,
        channels: int,
        radius: int,
        context: int,
        first: bool,
    ) -> None:
        super().__init__()
        self.radius = radius
        self.first = first
        self.reach = radius if first else radius + 1
        self.vertical = nn.Conv2d(vertical_in, 2 * channels, (radius + 1, 2 * radius + 1))
        self.horizontal = nn.Conv2d(horizontal_in, 2 * channels, (1, self.reach))
        self.down = nn.Conv2d(2 * channels, 2 * channels, 1, bias=False)
        self.mix = nn.Conv2d(channels, channels, 1)
        self.context_layer = nn.Linear(context, 4 * channels, bias=False) if context else None
        self.residual = not first and horizontal_in == channels

    def forward(self, v: Tensor, h: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """Both stacks on whole images.

        Args:
            v: vertical stack below, (N, Cv, H, W).
            h: horizontal stack below, (N, Ch, H, W).
            context: (N, c), (1, c) or None.

        Returns:
            The two stacks, (N, F, H, W) each.
        """
        r = self.radius
        above = self.vertical(F.pad(v, (r, r, r, 0)))
        left = self.horizontal(F.pad(h, (r, 0)))[..., : h.shape[-1]]
        left = left + self.down(F.pad(above, (0, 0, 1, 0))[..., :-1, :])
        if self.context_layer is not None and context is not None:
            to_above, to_left = self.context_layer(context)[..., None, None].chunk(2, 1)
            above, left = above + to_above, left + to_left
        out = self.mix(gate(left, 1))
        return gate(above, 1), out + h if self.residual else out


@dataclass
class LayerCache:
    """What one gated layer remembers between steps.

    Attributes:
        rows: the last r rows of its vertical input, (N, Cv, 1, W) each.
        columns: the last columns of its horizontal input in the current row, (Ch, N) each.
        down: contribution of the vertical stack to the current row, (W, 2F, N); None in row 0.
        weight: the horizontal kernel as a matrix (2F, reach * Ch).
        above_bias: context added to the vertical stack, (N or 1, 2F, 1, 1); None without.
        left_bias: bias and context of the horizontal stack, (2F, N or 1).
    """

    rows: list[Tensor]
    columns: list[Tensor]
    down: Tensor | None
    weight: Tensor
    above_bias: Tensor | None
    left_bias: Tensor


@dataclass
class PixelCNNState:
    """Caches of all layers, the pixels of the current row, and the state of the current pixel."""

    batch_shape: tuple[int, ...]
    layers: list[LayerCache]
    pixel: list[Tensor] = field(default_factory=list)
    row: list[Tensor] = field(default_factory=list)
    head: MaskedMLPState | None = None


class PixelCNN(Conditioner):
    r"""Gated PixelCNN without blind spot, with cached activations for sampling.

    Features are the entries of an image (C, H, W) flattened in that order. They are generated in
    raster order, and within a pixel channel by channel. Gated convolutions with a vertical and a
    horizontal stack summarise the earlier pixels; a masked MLP per pixel turns the summary and
    the earlier channels of the same pixel into parameters.

    When sampling, a finished row passes once through the vertical stack and a finished pixel once
    through the horizontal stack; both are remembered. All steps together therefore cost about
    one parallel pass instead of H * W passes.

    Args:
        shape: image shape (C, H, W).
        context: number of context features, 0 for none.
        n_params: number of parameters P per variable.
        hidden: channels of each gated layer.
        kernel: odd width of the convolutions, at least 3.
        init_scale: factor on the initial weights of the output layer.

    References:
        Conditional Image Generation with PixelCNN Decoders (van den Oord et al., 2016),
        https://arxiv.org/abs/1606.05328

    Example:
        >>> conditioner = PixelCNN(shape=(3, 4, 4), n_params=5, hidden=(8, 8))
        >>> conditioner(torch.zeros(7, 48)).shape
        torch.Size([7, 48, 5])
    """

    def __init__(
        self,
        shape: Sequence[int],
        context: int = 0,
        n_params: int = 2,
        hidden: Sequence[int] = (32, 32, 32),
        kernel: int = 3,
        init_scale: float = 0.1,
    ) -> None:
        if len(shape) != 3 or min(shape) < 1:
            raise ShapeError(
                "a PixelCNN generates images of shape (channels, height, width), got features of "
                f"shape {tuple(shape)}."
            )
        if kernel < 3 or kernel % 2 == 0:
            raise ShapeError(f"kernel must be odd and at least 3, got {kernel}.")
        if not hidden or any(size < 1 for size in hidden):
            raise ShapeError(f"a PixelCNN needs hidden sizes >= 1, got {tuple(hidden)}.")
        channels, height, width = shape
        raster = torch.arange(math.prod(shape)).reshape(*shape).permute(1, 2, 0).flatten()
        super().__init__(math.prod(shape), context, n_params, tuple(raster.tolist()))
        self.shape = (channels, height, width)
        sizes = [channels, *hidden]
        self.layers = nn.ModuleList(
            GatedLayer(a, a, b, kernel // 2, context, first=i == 0)
            for i, (a, b) in enumerate(zip(sizes[:-1], sizes[1:], strict=True))
        )
        # Images are not stationary: let every pixel shift its own summary.
        self.position = nn.Parameter(torch.zeros(hidden[0], height, width))
        self.head = MaskedMLP(channels, sizes[-1], n_params, (sizes[-1],), init_scale=init_scale)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        batch_shape = self.batch_shape(x, context)
        image = x.expand(*batch_shape, self.features).reshape(-1, *self.shape)
        if context is not None:
            context = context.expand(*batch_shape, self.context).reshape(-1, self.context)
        v = h = image
        for i, layer in enumerate(self.layers):
            v, h = layer(v, h, context)
            if i == 0:
                h = h + self.position
        params: Tensor = self.head(image.movedim(1, -1), h.movedim(1, -1))
        params = params.movedim(-2, 1)
        return params.reshape(*batch_shape, self.features, self.n_params)

    def start(self, batch_shape: Sequence[int], context: Tensor | None = None) -> PixelCNNState:
        n = math.prod(batch_shape)
        width = self.shape[2]
        caches = []
        for layer in self._gated():
            kernel = layer.horizontal.weight
            channels = kernel.shape[1]
            above_bias, left_bias = None, cast(Tensor, layer.horizontal.bias).unsqueeze(-1)
            if layer.context_layer is not None and context is not None:
                rows, lead = flat_context(context, batch_shape)
                extra = spread(layer.context_layer.weight @ rows.t(), lead, batch_shape)
                above, left = extra.chunk(2)
                above_bias, left_bias = above.t()[..., None, None], left_bias + left
            caches.append(
                LayerCache(
                    rows=[kernel.new_zeros(n, channels, 1, width)] * layer.radius,
                    columns=[kernel.new_zeros(channels, n)] * layer.radius,
                    down=None,
                    weight=kernel[:, :, 0].transpose(1, 2).flatten(1),
                    above_bias=above_bias,
                    left_bias=left_bias,
                )
            )
        return PixelCNNState(tuple(batch_shape), caches)

    def step(
        self, state: PixelCNNState, t: int, x_prev: Tensor | None
    ) -> tuple[Tensor, PixelCNNState]:
        channels, _, width = self.shape
        pixel, channel = divmod(t, channels)
        i, j = divmod(pixel, width)
        if x_prev is not None:
            state.pixel.append(x_prev.reshape(-1))
        if channel == 0:
            if t:
                self._finish_pixel(state)
            if i and j == 0:
                self._finish_row(state)
            summary = self._summary(state, i, j)
            state.head = self.head.start(state.batch_shape, to_batch(summary, state.batch_shape))
            x_prev = None
        assert state.head is not None
        h, state.head = self.head.step(state.head, channel, x_prev)
        return h, state

    def _finish_pixel(self, state: PixelCNNState) -> None:
        """Make the channels of a generated pixel the newest column of the current row."""
        column = torch.stack(state.pixel)
        state.pixel = []
        state.row.append(column)
        cache = state.layers[0]
        cache.columns = [*cache.columns[1:], column]

    def _finish_row(self, state: PixelCNNState) -> None:
        """Pass a generated row through the vertical stack and begin the next one."""
        row = torch.stack(state.row, dim=-1).movedim(0, 1).unsqueeze(2)
        state.row = []
        for layer, cache in zip(self._gated(), state.layers, strict=True):
            strip = torch.cat((*cache.rows, row), dim=2)
            cache.rows = [*cache.rows[1:], row]
            cache.columns = [torch.zeros_like(column) for column in cache.columns]
            above = layer.vertical(F.pad(strip, (layer.radius, layer.radius)))
            cache.down = layer.down(above)[:, :, 0].permute(2, 1, 0).contiguous()
            row = gate(above if cache.above_bias is None else above + cache.above_bias, 1)

    def _summary(self, state: PixelCNNState, i: int, j: int) -> Tensor:
        """The horizontal stack at pixel (i, j), feature-major (F, N)."""
        h: Tensor | None = None
        for depth, (layer, cache) in enumerate(zip(self._gated(), state.layers, strict=True)):
            window = cache.columns if h is None else [*cache.columns, h]
            left = torch.addmm(cache.left_bias, cache.weight, torch.cat(window))
            if cache.down is not None:
                left = left + cache.down[j]
            bias = cast(Tensor, layer.mix.bias).unsqueeze(-1)
            out = torch.addmm(bias, layer.mix.weight[:, :, 0, 0], gate(left, 0))
            if h is not None:
                cache.columns = [*cache.columns[1:], h]
                out = out + h if layer.residual else out
            h = out + self.position[:, i, j, None] if depth == 0 else out
        assert h is not None
        return h

    def _gated(self) -> list[GatedLayer]:
        return cast("list[GatedLayer]", list(self.layers))

    def extra_repr(self) -> str:
        return f"shape={self.shape}, context={self.context}, n_params={self.n_params}"
