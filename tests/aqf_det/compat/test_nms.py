"""Hard, soft and batched non-maximum suppression against loops."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmcv.ops import batched_nms, nms, soft_nms
from torch import Tensor

from tests.aqf_det.compat import references


def random_boxes(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(n, 2, generator=generator) * 40
    size = torch.rand(n, 2, generator=generator) * 30 + 1
    return torch.cat([corner, corner + size], dim=1), torch.rand(n, generator=generator)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("n", [0, 1, 2, 40])
def test_nms_keeps_what_the_loop_keeps(n, offset):
    boxes, scores = random_boxes(n)
    dets, kept = nms(boxes, scores, 0.4, offset=offset)
    assert kept.tolist() == references.nms(boxes, scores, 0.4, offset)
    assert kept.dtype == torch.int64
    torch.testing.assert_close(dets, torch.cat([boxes[kept], scores[kept, None]], dim=1))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(*[st.integers(0, 12)] * 2, *[st.integers(1, 8)] * 2, st.integers(0, 1000)),
        max_size=12,
        unique_by=lambda row: row[4],
    ),
    threshold=st.sampled_from([0.11, 0.34, 0.51, 0.77]),
)
def test_nms_on_touching_nested_and_duplicate_boxes(rows, threshold):
    table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 5)
    boxes = torch.cat([table[:, :2], table[:, :2] + table[:, 2:4]], dim=1)
    _, kept = nms(boxes, table[:, 4], threshold)
    assert kept.tolist() == references.nms(boxes, table[:, 4], threshold)


def test_identical_boxes_leave_the_first_of_the_best():
    boxes, scores = torch.tensor([[1.0, 1.0, 5.0, 5.0]]).repeat(4, 1), torch.tensor([5, 9, 9, 1])
    _, kept = nms(boxes, scores / 10, 0.5)
    assert kept.tolist() == references.nms(boxes, scores / 10, 0.5) == [1]


def test_a_box_at_exactly_the_threshold_stays():
    boxes = torch.tensor([[0.0, 0.0, 2.0, 1.0], [1.0, 0.0, 3.0, 1.0]])  # IoU = 1/3
    _, kept = nms(boxes, torch.tensor([0.9, 0.8]), 1 / 3)
    assert kept.tolist() == references.nms(boxes, torch.tensor([0.9, 0.8]), 1 / 3) == [0, 1]


def test_nms_filters_by_score_and_limits_the_number():
    boxes, scores = random_boxes(30)
    confident = (scores > 0.5).nonzero().squeeze(1)
    expected = confident[references.nms(boxes[confident], scores[confident], 0.5)]
    _, kept = nms(boxes, scores, 0.5, score_threshold=0.5, max_num=4)
    assert kept.tolist() == expected[:4].tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_nms_of_other_types(dtype):
    boxes, scores = random_boxes(25)
    boxes, scores = boxes.round().to(dtype), scores.to(dtype)
    dets, kept = nms(boxes, scores, 0.42)
    assert kept.tolist() == references.nms(boxes, scores, 0.42)
    assert dets.dtype == dtype


def test_nms_of_non_contiguous_input_and_of_arrays():
    boxes, scores = random_boxes(25)
    expected = references.nms(boxes, scores, 0.4)
    _, kept = nms(boxes.t().contiguous().t(), torch.stack([scores, scores], dim=1)[:, 1], 0.4)
    assert kept.tolist() == expected
    dets, kept = nms(boxes.numpy(), scores.numpy(), 0.4)
    assert isinstance(dets, np.ndarray) and isinstance(kept, np.ndarray)
    assert kept.tolist() == expected


def test_gradients_reach_the_kept_boxes_and_scores_only():
    boxes, scores = random_boxes(12)
    boxes, scores = boxes.requires_grad_(), scores.requires_grad_()
    dets, kept = nms(boxes, scores, 0.4)
    dets.sum().backward()
    expected = torch.zeros(12).index_fill(0, kept, 1.0)
    torch.testing.assert_close(scores.grad, expected)
    torch.testing.assert_close(boxes.grad, expected[:, None].expand(-1, 4))


@pytest.mark.parametrize("method", ["naive", "linear", "gaussian"])
@pytest.mark.parametrize(("n", "offset"), [(0, 0), (1, 0), (30, 0), (30, 1)])
def test_soft_nms_follows_the_loop(n, offset, method):
    boxes, scores = random_boxes(n)
    options = {"iou_threshold": 0.3, "sigma": 0.4, "min_score": 0.05, "method": method}
    dets, kept = soft_nms(boxes, scores, offset=offset, **options)
    expected, decayed = references.soft_nms(boxes, scores, 0.3, 0.4, 0.05, method, offset)
    assert kept.tolist() == expected
    torch.testing.assert_close(dets[:, :4], boxes[kept])
    torch.testing.assert_close(dets[:, 4], torch.tensor(decayed, dtype=torch.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_soft_nms_in_half_precision(dtype):
    boxes, scores = random_boxes(15)
    boxes, scores = boxes.round().to(dtype), scores.to(dtype)
    dets, kept = soft_nms(boxes, scores, method="gaussian", min_score=0.01)
    expected, decayed = references.soft_nms(boxes, scores, 0.3, 0.5, 0.01, "gaussian")
    assert kept.tolist() == expected
    tolerance = torch.finfo(dtype).eps
    torch.testing.assert_close(
        dets[:, 4].double(), torch.tensor(decayed).double(), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("method", ["naive", "linear", "gaussian"])
def test_soft_nms_of_identical_boxes_and_non_contiguous_input(method):
    boxes = torch.tensor([[1.0, 1.0, 5.0, 5.0]]).repeat(3, 1).t().contiguous().t()
    scores = torch.tensor([[0.5, 0.0], [0.9, 0.0], [0.9, 0.0]])[:, 0]
    assert not boxes.is_contiguous() and not scores.is_contiguous()
    dets, kept = soft_nms(boxes, scores, method=method)
    expected, decayed = references.soft_nms(boxes, scores, 0.3, 0.5, 1e-3, method)
    assert kept.tolist() == expected
    torch.testing.assert_close(dets[:, 4], torch.tensor(decayed, dtype=torch.float32))


def per_class(boxes: Tensor, scores: Tensor, labels: Tensor, threshold: float) -> list[int]:
    kept = []
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        kept += members[references.nms(boxes[members], scores[members], threshold)].tolist()
    return sorted(kept, key=lambda i: -scores[i].item())


@pytest.mark.parametrize("split_thr", [10000, 10])
def test_batched_nms_suppresses_within_a_class_however_it_splits(split_thr):
    boxes, scores = random_boxes(50)
    labels = torch.tensor([0, 2, 7])[torch.arange(50) % 3]  # classes between them stay empty
    config = {"type": "nms", "iou_threshold": 0.4, "split_thr": split_thr}
    dets, kept = batched_nms(boxes, scores, labels, config)
    assert kept.tolist() == per_class(boxes, scores, labels, 0.4)
    torch.testing.assert_close(dets[:, :4], boxes[kept])
    _, limited = batched_nms(boxes, scores, labels, {**config, "max_num": 5})
    assert limited.tolist() == kept[:5].tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_batched_nms_in_half_precision_suppresses_within_a_class(dtype):
    boxes, scores = random_boxes(50)
    boxes, scores = (boxes * 10).round().to(dtype), scores.to(dtype)
    labels = torch.tensor([0, 40, 79])[torch.arange(50) % 3]
    dets, kept = batched_nms(boxes, scores, labels, {"iou_threshold": 0.4})
    assert set(kept.tolist()) == set(per_class(boxes, scores, labels, 0.4))
    torch.testing.assert_close(dets, torch.cat([boxes[kept], scores[kept, None]], dim=1))


@pytest.mark.parametrize("split_thr", [10000, 10])
def test_batched_soft_nms_decays_within_a_class_however_it_splits(split_thr):
    boxes, scores = random_boxes(30)
    labels = torch.arange(30) % 2
    config = {"type": "soft_nms", "iou_threshold": 0.3, "min_score": 0.05, "split_thr": split_thr}
    dets, kept = batched_nms(boxes, scores, labels, config)
    expected = {}
    for label in (0, 1):
        members = (labels == label).nonzero().squeeze(1)
        indices, decayed = references.soft_nms(
            boxes[members], scores[members], 0.3, 0.5, 0.05, "linear"
        )
        expected |= dict(zip(members[indices].tolist(), decayed, strict=True))
    assert set(kept.tolist()) == set(expected)
    for index, score in zip(kept.tolist(), dets[:, 4].tolist(), strict=True):
        assert score == pytest.approx(expected[index], rel=1e-4)


def test_batched_nms_can_ignore_classes_or_skip_suppression():
    boxes, scores = random_boxes(20)
    labels = torch.arange(20) % 4
    _, kept = batched_nms(boxes, scores, labels, {"iou_threshold": 0.4}, class_agnostic=True)
    assert kept.tolist() == references.nms(boxes, scores, 0.4)
    _, kept = batched_nms(boxes, scores, labels, None)
    assert kept.tolist() == scores.argsort(descending=True).tolist()


@pytest.mark.parametrize("kind", ["nms", "soft_nms"])
def test_batched_nms_of_no_boxes_is_no_detection(kind):
    nothing = torch.zeros(0, dtype=torch.long)
    dets, kept = batched_nms(
        torch.zeros(0, 4), torch.zeros(0), nothing, {"type": kind, "iou_threshold": 0.5}
    )
    assert dets.shape == (0, 5)
    assert kept.shape == (0,) and kept.dtype == torch.int64
