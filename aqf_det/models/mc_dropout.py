"""MC dropout over cached features: every pass is one thinned network.

Dropout sits between the last separable convolution of a level and the 1 x 1 convolution that reads
it. A 1 x 1 convolution of a thinned map equals a thinned weight applied to the map itself, so a
pass needs neither the trunk nor a copy of the features, and no module has to be switched to
training mode: BatchNorm cannot be touched by accident. One mask of channels per pass (drawn from a
fixed seed) serves all cells and all images. Each cell sees the same law as under elementwise
dropout, and a test result does not depend on batch size, image order or the number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_passes(passes: int, dropout: float) -> int:
    """The number of passes, refused when it could not mean anything."""
    if passes < 1:
        raise ValueError(f"test_cfg.mc_passes must be at least 1, got {passes}.")
    if passes > 1 and dropout == 0:
        raise ValueError(
            f"test_cfg.mc_passes={passes} needs a head trained with dropout; set the dropout of "
            "the head that has the flow (the *_vd configs use 0.15) and train it."
        )
    return passes


def channel_masks(
    passes: int, channels: Sequence[int], dropout: float, seed: int = 0
) -> list[Tensor] | None:
    """Inverted-dropout masks (T, C) for every level, or None for a single deterministic pass."""
    if passes == 1:
        return None
    generator = torch.Generator().manual_seed(seed)
    keep = 1 - dropout
    return [
        torch.bernoulli(torch.full((passes, c), keep), generator=generator) / keep for c in channels
    ]


def thin(features: Sequence[Tensor], masks: Sequence[Tensor] | None) -> list[Tensor]:
    """Features (P_l, C) of every level as each pass sees them: (T, P_l, C)."""
    if masks is None:
        return [f[None] for f in features]
    return [f * mask.to(f)[:, None] for f, mask in zip(features, masks, strict=True)]
