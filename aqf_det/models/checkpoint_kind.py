"""A head that refuses weights of another kind of detector instead of half-loading them."""

from __future__ import annotations

import logging
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

SIGNATURE_LENGTH = 64


class CheckpointKindError(RuntimeError):
    """A checkpoint that belongs to another model than the config describes."""


def _encode(text: str) -> Tensor:
    data = text.encode()[:SIGNATURE_LENGTH].ljust(SIGNATURE_LENGTH, b" ")
    return torch.tensor(list(data), dtype=torch.uint8)


def _decode(signature: Tensor) -> str:
    return bytes(signature.tolist()).decode(errors="replace").strip()


class CheckpointGuard(nn.Module):
    """Mixin: stores what kind of head it is in its state and checks it when weights are loaded.

    mmengine loads weights without strictness: a checkpoint of another detector would leave the head
    untrained with nothing but a log line. A checkpoint of stage 1 may be loaded into a head with
    any branch; that is how stage 2 starts.

    Attributes:
        takes_stock_weights: Whether a checkpoint that knows nothing of flows counts as stage 1.
    """

    signature: Tensor
    takes_stock_weights = False

    def guard_checkpoints(self, signature: str) -> None:
        """Store the signature and begin checking."""
        self.register_buffer("signature", _encode(signature))
        self.register_load_state_dict_pre_hook(_check)


def _check(module: nn.Module, state: dict[str, Any], prefix: str, *unused: Any) -> None:
    mine = {name: value for name, value in state.items() if name.startswith(prefix)}
    key = f"{prefix}signature"
    if key not in mine:
        if getattr(module, "takes_stock_weights", False):
            return
        raise CheckpointKindError(
            f"this checkpoint does not hold a {type(module).__name__} (no {key!r}); give one "
            "written by tools/train.py with a config of the same detector."
        )
    own = module.state_dict()
    wanted, found = _decode(own["signature"]), _decode(mine[key])
    if found != wanted and int(mine.get(f"{prefix}stage", 1)) == 1:
        # Before stage 2 every kind of head is the same Gaussian; this one's branch starts afresh,
        # and what was learned about the errors of the Gaussian does not hold for it.
        other = (f"{prefix}branch.", f"{prefix}calibration.")
        for name in [name for name in mine if name.startswith(other)]:
            del mine[name], state[name]
            if name == f"{prefix}calibration.header":
                print_log(
                    f"the calibration of the checkpoint's {found!r} head is dropped: it does not "
                    f"fit {wanted!r}",
                    logger="current",
                    level=logging.WARNING,
                )
        found = wanted
    if found != wanted:
        raise CheckpointKindError(
            f"the checkpoint holds a {found!r} head but the config describes {wanted!r}; use the "
            "config it was trained with, or to train another branch the stage1.pth of its run."
        )
    for name, value in own.items():
        saved = mine.get(prefix + name)
        if name.startswith("calibration."):
            continue  # as large as the data it was fitted to
        if saved is not None and saved.shape != value.shape:
            raise CheckpointKindError(
                f"the checkpoint's {prefix}{name} has shape {tuple(saved.shape)}, the config's "
                f"{tuple(value.shape)}; number of classes, widths and slots must be those it was "
                "trained with."
            )
    state[key] = own["signature"].clone()
