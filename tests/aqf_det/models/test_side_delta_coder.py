"""Deltas that each move one side."""

from __future__ import annotations

import pytest
import torch
from mmdet.registry import TASK_UTILS

from aqf_det.models import SideDeltaBBoxCoder

PROPOSALS = torch.tensor([[10.0, 20.0, 50.0, 100.0], [0.0, 0.0, 30.0, 30.0]])


def test_decoding_undoes_encoding() -> None:
    coder = TASK_UTILS.build({"type": "SideDeltaBBoxCoder", "stds": (0.1, 0.2, 0.1, 0.2)})
    truths = torch.tensor([[5.0, 25.0, 61.0, 99.0], [2.0, 1.0, 20.0, 44.0]])
    deltas = coder.encode(PROPOSALS, truths)
    assert deltas[0, 0] == pytest.approx((5 - 10) / (40 * 0.1))
    torch.testing.assert_close(coder.decode(PROPOSALS, deltas), truths)
    torch.testing.assert_close(coder.decode(PROPOSALS, torch.zeros(2, 4)), PROPOSALS)


def test_quantiles_of_deltas_are_quantiles_of_sides() -> None:
    """Each side increases in its own delta and in no other."""
    coder = SideDeltaBBoxCoder()
    deltas = torch.randn(2001, 2, 4)
    boxes = torch.stack([coder.decode(PROPOSALS, d) for d in deltas])
    levels = torch.tensor([0.1, 0.5, 0.9])
    for u in levels.tolist():
        by_delta = coder.decode(PROPOSALS, deltas.quantile(u, 0, interpolation="nearest"))
        torch.testing.assert_close(by_delta, boxes.quantile(u, 0, interpolation="nearest"))
    for side in range(4):
        moved = torch.zeros(2, 4)
        moved[:, side] = 1.0
        change = coder.decode(PROPOSALS, moved) - PROPOSALS
        assert bool((change[:, side] > 0).all()) and int((change != 0).sum()) == 2


def test_boxes_are_valid_and_end_at_the_border() -> None:
    coder = SideDeltaBBoxCoder()
    boxes = coder.decode(PROPOSALS, 100 * torch.randn(2, 4), max_shape=(90, 60))
    wild = [coder.decode(PROPOSALS, 30 * torch.randn(2, 4)) for _ in range(50)]
    assert all(bool((b[:, :2] < b[:, 2:]).all()) for b in wild)
    limit = torch.tensor([60.0, 90.0, 60.0, 90.0])
    assert bool((boxes >= 0).all() and (boxes <= limit).all())
    free = SideDeltaBBoxCoder(clip_border=False)
    assert bool((free.decode(PROPOSALS, torch.full((2, 4), 50.0), max_shape=(90, 60)) > 90).any())


def test_deltas_of_all_classes_in_a_row() -> None:
    coder = SideDeltaBBoxCoder()
    deltas = torch.randn(2, 3 * 4)
    together = coder.decode(PROPOSALS, deltas)
    apart = [coder.decode(PROPOSALS, part) for part in deltas.split(4, -1)]
    torch.testing.assert_close(together, torch.cat(apart, -1))


@pytest.mark.parametrize("stds", [(0.1, 0.1), (0.1, 0.0, 0.1, 0.1)])
def test_bad_deviations_are_refused(stds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="four positive numbers"):
        SideDeltaBBoxCoder(stds=stds)
