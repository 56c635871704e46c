"""Further members of a deep ensemble: the same detector with the weights of other checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.runner import load_checkpoint
from torch import nn


@dataclass(frozen=True)
class Member:
    """A detector and whether its features are those of the first one.

    Attributes:
        detector: With weights of its own.
        shares_trunk: Whether only its head differs.
    """

    detector: Any
    shares_trunk: bool


class Ensemble:
    """Loads members when they are first asked for; they are no part of the detector's weights."""

    def __init__(self) -> None:
        self._paths: tuple[str, ...] = ()
        self._members: list[Member] = []

    def members(self, first: Any, paths: Sequence[str]) -> list[Member]:
        """The first detector and one with the weights of each checkpoint."""
        if tuple(paths) != self._paths:
            self._members = [_load(first, path) for path in paths]
            self._paths = tuple(paths)
        return [Member(first, True), *self._members]

    def __deepcopy__(self, memo: dict[int, Any]) -> Ensemble:
        """A copy of a detector loads its own members."""
        return Ensemble()


def _load(first: nn.Module, path: str) -> Member:
    detector: Any = copy.deepcopy(first)
    device = next(first.parameters()).device
    load_checkpoint(detector, path, map_location="cpu")
    detector.require_trained_branch()
    detector.to(device).eval()
    return Member(detector, _trunk_equals(first, detector))


def _trunk_equals(first: nn.Module, second: nn.Module) -> bool:
    mine, theirs = first.state_dict(), second.state_dict()
    names = [name for name in mine if name.startswith(("backbone.", "neck."))]
    return all(torch.equal(mine[name], theirs[name]) for name in names)
