"""Which cells learn which objects."""

from __future__ import annotations

import pytest
import torch

from aqf_det.models.assigner import Assignment, ScaleCentreAssigner
from aqf_det.models.coder import Grid, make_grid

BOXES = torch.tensor([[10.0, 10, 200, 150], [30, 30, 60, 60], [5, 5, 12, 14]])


@pytest.fixture
def grid() -> Grid:
    return make_grid([(40, 40), (20, 20), (10, 10)], (8, 16, 32), 3, torch.device("cpu"))


def assign(grid: Grid, boxes: torch.Tensor, radius: int) -> Assignment:
    labels, weights = torch.arange(len(boxes)), torch.ones(len(boxes))
    return ScaleCentreAssigner((30, 90), radius).assign(grid, [boxes], [labels], [weights])


def test_every_object_has_the_cell_of_its_centre_first(grid: Grid) -> None:
    alone, wide = assign(grid, BOXES, 0), assign(grid, BOXES, 1)
    assert alone.labels.tolist() == [0, 1, 2]
    assert wide.index[:3].tolist() == alone.index.tolist()
    assert len(wide.index.unique()) == len(wide)  # no slot learns two objects


def test_neighbours_lie_inside_their_object_and_near_its_centre(grid: Grid) -> None:
    wide = assign(grid, BOXES, 1)
    assert torch.bincount(wide.labels).tolist() == [9, 9, 1]  # the last one is smaller than a cell
    centre, stride = grid.centre[wide.index[3:]], grid.stride[wide.index[3:]]
    low, high = wide.boxes[3:, :2], wide.boxes[3:, 2:]
    assert bool(((centre > low) & (centre < high)).all())
    assert bool((((low + high) / 2 - centre).abs() <= 1.5 * stride[:, None]).all())


def test_neighbours_stay_on_the_map(grid: Grid) -> None:
    corner = torch.tensor([[0.0, 0, 12, 12], [300, 300, 320, 320]])
    wide = assign(grid, corner, 2)
    assert bool((wide.index < grid.offsets()[1]).all())
    assert bool((grid.centre[wide.index] > 0).all() and (grid.centre[wide.index] < 320).all())


def test_centres_take_slots_before_neighbours(grid: Grid) -> None:
    # Four objects in a row, each a neighbour of the next: three slots per cell are not enough.
    row = torch.tensor([[40.0, 40, 66, 66]]) + torch.tensor(
        [[0.0], [8], [16], [24]]
    ) * torch.tensor([1.0, 0, 1, 0])
    wide = assign(grid, row, 1)
    assert wide.labels[:4].tolist() == [0, 1, 2, 3]
    assert len(wide.index.unique()) == len(wide)


def test_a_negative_radius_is_refused() -> None:
    with pytest.raises(ValueError, match="radius"):
        ScaleCentreAssigner(radius=-1)
