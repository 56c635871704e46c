"""Pipeline steps: boxes follow pixels, and can be mapped back exactly."""

from __future__ import annotations

import random

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmdet.structures.bbox import HorizontalBoxes

from aqf_det.datasets import (
    CorruptSampleError,
    Letterbox,
    LoadCheckedImage,
    ObjectPreservingCrop,
    ObjectPreservingTranslate,
    PackWeightedDetInputs,
    WeightedMixUp,
    to_original_pixels,
)


def sample(boxes, shape=(60, 90), seed=0):
    """A noise image whose objects are filled with their own, unique, grey value."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 100, (*shape, 3), dtype=np.uint8)
    for i, (x1, y1, x2, y2) in enumerate(boxes):
        image[y1:y2, x1:x2] = 200 + i
    return {
        "img": image,
        "img_shape": shape,
        "ori_shape": shape,
        "gt_bboxes": HorizontalBoxes(np.array(boxes, dtype=np.float32).reshape(-1, 4)),
        "gt_bboxes_labels": np.arange(len(boxes)),
        "gt_ignore_flags": np.zeros(len(boxes), dtype=bool),
    }


def assert_boxes_hold_their_objects(results):
    """Every box encloses exactly the pixels of its grey value."""
    for i, box in enumerate(results["gt_bboxes"].tensor.tolist()):
        rows, columns = np.nonzero(results["img"][..., 0] == 200 + i)
        assert [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] == box


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 700),
    width=st.integers(1, 700),
    canvas=st.tuples(st.integers(32, 300), st.integers(32, 300)),
)
def test_letterbox_maps_back_exactly(height, width, canvas):
    boxes = torch.tensor([[0.0, 0.0, width, height], [0.25 * width, 0, 0.5 * width, height / 3]])
    results = {
        "img": np.zeros((height, width, 3), np.uint8),
        "gt_bboxes": HorizontalBoxes(boxes.clone()),
    }
    out = Letterbox(canvas)(results)
    assert out["img"].shape[:2] == out["img_shape"] == canvas
    top, bottom, left, right = out["pad_param"]
    # The whole image lands exactly between the bars, and the bars touch at most two sides.
    assert out["gt_bboxes"].tensor[0].tolist() == pytest.approx(
        [left, top, canvas[1] - right, canvas[0] - bottom], abs=1e-3
    )
    assert min(top + bottom, left + right) == 0
    back = to_original_pixels(out["gt_bboxes"].tensor, out)
    torch.testing.assert_close(back, boxes, atol=2e-3, rtol=1e-5)
    quantiles = out["gt_bboxes"].tensor[:, None].expand(-1, 5, -1)
    torch.testing.assert_close(to_original_pixels(quantiles, out)[:, 3], back)


def test_letterbox_of_a_fitting_image_keeps_its_pixels():
    results = sample([(10, 5, 30, 40)], shape=(64, 96))
    image = results["img"].copy()
    out = Letterbox(96, fill=7)(results)
    assert (out["img"][16:80] == image).all()
    assert (out["img"][:16] == 7).all() and (out["img"][80:] == 7).all()
    assert out["gt_bboxes"].tensor.tolist() == [[10, 21, 30, 56]]
    assert out["scale_factor"] == (1.0, 1.0)


def test_letterbox_refuses_an_empty_canvas():
    with pytest.raises(ValueError, match="positive"):
        Letterbox((0, 32))


@pytest.mark.parametrize("step", [ObjectPreservingCrop(1.0), ObjectPreservingTranslate(1.0)])
def test_objects_survive_crop_and_translation(step):
    random.seed(0)
    moved = 0
    for seed in range(40):
        results = sample([(12, 9, 40, 30), (50, 20, 80, 55)], seed=seed)
        before = results["gt_bboxes"].tensor.clone()
        out = step(results)
        assert_boxes_hold_their_objects(out)
        assert out["img_shape"] == out["img"].shape[:2]
        moved += not torch.equal(before, out["gt_bboxes"].tensor)
    assert moved > 30


@pytest.mark.parametrize("step", [ObjectPreservingCrop, ObjectPreservingTranslate])
def test_probability_zero_and_images_without_objects(step):
    results = sample([(12, 9, 40, 30)])
    image = results["img"].copy()
    assert np.array_equal(step(0.0)(results)["img"], image)
    empty = step(1.0)(sample([]))
    assert min(empty["img"].shape[:2]) >= 30
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        step(1.5)


def test_mixup_weights_and_pixels():
    random.seed(1)
    step = WeightedMixUp(prob=1.0)
    first, second = sample([(0, 0, 10, 10)], (40, 60)), sample([(5, 5, 20, 20)] * 2, (50, 30), 1)
    a, b = first["img"].astype(float), second["img"].astype(float)
    out = step({**first, "mix_results": [second]})
    weights = out["gt_weights"]
    assert weights.dtype == np.float32 and len(weights) == 3
    lam = weights[0]
    np.testing.assert_allclose(weights[1:], 1 - lam, rtol=1e-6)
    assert out["img"].shape[:2] == out["img_shape"] == (50, 60)
    expected = lam * a[:40, :30] + (1 - lam) * b[:40, :30]
    np.testing.assert_allclose(out["img"][:40, :30], expected, atol=0.51)
    np.testing.assert_allclose(out["img"][:40, 30:], lam * a[:, 30:] + (1 - lam) * 128, atol=0.51)
    assert out["gt_bboxes"].tensor.tolist()[1] == [5, 5, 20, 20]
    assert out["gt_bboxes_labels"].tolist() == [0, 0, 1]


def test_mixup_frequency_and_law():
    random.seed(2)
    step = WeightedMixUp()
    picks = [step.get_indexes(range(7)) for _ in range(2000)]
    assert 0.45 < np.mean([len(pick) for pick in picks]) < 0.55
    assert {pick[0] for pick in picks if pick} == set(range(7))
    lams = []
    for _ in range(400):
        first = sample([(0, 0, 2, 2)], (4, 4))
        lams.append(step({**first, "mix_results": [sample([], (4, 4))]})["gt_weights"][0])
    # Beta(1.5, 1.5): mean 1/2, variance 1/16
    assert np.mean(lams) == pytest.approx(0.5, abs=0.05)
    assert np.var(lams) == pytest.approx(1 / 16, abs=0.012)


def test_packing_carries_weights_and_letterbox_geometry():
    results = WeightedMixUp(prob=0.0)(sample([(1, 2, 30, 40), (5, 6, 20, 30)]))
    results["gt_ignore_flags"][1] = True
    packed = PackWeightedDetInputs()(Letterbox(64)(results))
    data = packed["data_samples"]
    assert data.gt_instances.weights.tolist() == [1.0]
    assert len(data.ignored_instances) == 1
    assert {"pad_param", "scale_factor"} <= set(data.metainfo)


def test_damaged_images_are_named(tmp_path):
    good = tmp_path / "good.jpg"
    image = np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)
    cv2.imwrite(str(good), image)
    load = LoadCheckedImage()
    assert load({"img_path": str(good)})["img_shape"] == (50, 70)
    data = good.read_bytes()
    cases = {"cut.jpg": data[: len(data) // 2], "empty.jpg": b"", "text.jpg": b"not an image"}
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CorruptSampleError, match=name):
            load({"img_path": str(tmp_path / name)})
    with pytest.raises(CorruptSampleError, match=r"gone\.jpg"):
        load({"img_path": str(tmp_path / "gone.jpg")})
