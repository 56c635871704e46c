"""Quantile boxes: lines lie where the quantiles are, and mmdet's hook and backends can use them."""

from __future__ import annotations

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmdet.registry import VISUALIZERS
from mmdet.structures import DetDataSample
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

from aqf_core.errors import ShapeError
from aqf_det.engine import CheckedVisualizationHook
from aqf_det.visualization import (
    QuantileBoxVisualizer,
    class_colour,
    draw_quantile_boxes,
    enlargement,
)

LEVELS = tuple(i / 200 for i in range(1, 200))
GREY = np.full((200, 300, 3), 90, np.uint8)
BOX = np.array([[60.0, 50.0, 200.0, 150.0]])


def spread(sigmas=(1.0, 1.0, 20.0, 1.0), boxes=BOX, levels=LEVELS):
    z = np.array([np.log(u / (1 - u)) for u in levels])
    return boxes[:, None] + z[None, :, None] * np.array(sigmas)


def sample(n=1, quantiles=True):
    boxes = np.repeat(BOX, n, axis=0)
    data = DetDataSample(
        metainfo={"img_path": "x.jpg", "ori_shape": (200, 300), "quantile_levels": LEVELS}
    )
    data.gt_instances = InstanceData(
        bboxes=torch.from_numpy(BOX + 4), labels=torch.zeros(1, dtype=torch.long)
    )
    fields = {
        "bboxes": torch.from_numpy(boxes),
        "scores": torch.full((n,), 0.9),
        "labels": torch.zeros(n, dtype=torch.long),
    }
    if quantiles:
        fields["bbox_quantiles"] = torch.from_numpy(spread(boxes=boxes))
        fields["bbox_std"] = torch.ones(n, 4)
    data.pred_instances = InstanceData(**fields)
    return data


@pytest.fixture
def visualizer():
    tool = QuantileBoxVisualizer()
    tool.dataset_meta = {"classes": ("cat", "dog")}
    return tool


def changed(picture):
    return np.abs(picture.astype(int) - 90).max(-1) > 12


def test_lines_lie_at_the_quantiles():
    colour = class_colour(0)
    picture = draw_quantile_boxes(GREY, BOX, [0], quantiles=spread(), levels=LEVELS)
    row = picture[100].astype(float) @ np.array(colour) / 255  # brightness in the box's colour
    z = np.log(np.arange(1, 10) / np.arange(9, 0, -1))
    expected = [x for x in 200 + 20 * z if abs(x - 200) > 4]  # the box itself covers the median
    for x in expected:
        peak = int(np.floor(x))
        near = row[peak - 1 : peak + 2].max()
        between = row[peak + 3 : peak + 4].min()
        assert near > between + 15, x
    # Strongest beside the median, faintest at .1 and .9; nothing beyond.
    strength = [row[int(x) - 1 : int(x) + 2].max() for x in expected]
    assert strength[0] < strength[len(strength) // 2 - 1]
    assert not changed(picture)[100, 255:].any()


def test_sharp_sides_stay_sharp_and_spread_has_the_length_of_the_side():
    picture = changed(draw_quantile_boxes(GREY, BOX, [0], quantiles=spread(), levels=LEVELS))
    assert not picture[60:140, 70:150].any()  # inside
    assert not picture[:40].any() and not picture[160:].any()
    rows = np.nonzero(picture[:, 230])[0]  # a place only reached by lines of the right side
    assert 48 <= rows.min() <= 52 and 148 <= rows.max() <= 152


def test_image_is_not_modified_and_parts_are_optional():
    image = GREY.copy()
    draw_quantile_boxes(image, BOX, [0], captions=["a"], truths=BOX + 5)
    assert np.array_equal(image, GREY)
    assert np.array_equal(draw_quantile_boxes(GREY, np.zeros((0, 4)), []), GREY)
    with pytest.raises(ValueError, match="levels"):
        draw_quantile_boxes(GREY, BOX, [0], quantiles=spread())
    with pytest.raises(ShapeError):
        draw_quantile_boxes(GREY, BOX, [0], quantiles=spread(), levels=LEVELS[:5])


def test_few_levels_and_boxes_beyond_the_picture():
    levels = (0.05, 0.5, 0.95)
    far = np.array([[-500.0, -500.0, 5000.0, 90.0], [400.0, 300.0, 500.0, 400.0]])
    picture = draw_quantile_boxes(
        GREY, far, [0, 1], quantiles=spread(boxes=far, levels=levels), levels=levels
    )
    assert picture.shape == GREY.shape and changed(picture)[85:95].any()


def test_small_images_are_enlarged_and_large_ones_kept():
    assert enlargement((160, 160), 640) == 4
    assert enlargement((2000, 1000), 640) == 1


def test_class_colours_are_bright_and_distinct():
    colours = np.array([class_colour(i) for i in range(20)])
    assert (colours @ (0.299, 0.587, 0.114) > 130).all()
    distance = np.abs(colours[:, None] - colours[None]).sum(-1)
    assert distance[~np.eye(20, dtype=bool)].min() > 20


def test_stitched_and_overlaid_pictures(visualizer, tmp_path):
    path = tmp_path / "both.png"
    visualizer.add_datasample("x", GREY, sample(), out_file=str(path))
    both = cv2.imread(str(path))
    assert both.shape == (667, 2000, 3)  # truth beside prediction, enlarged
    visualizer.overlay_truth = True
    visualizer.add_datasample("x", GREY, sample(), out_file=str(path))
    one = cv2.imread(str(path))
    assert one.shape == (667, 1000, 3)
    assert (one.min(-1) > 235).any()  # white dashes and caption


def test_predictions_without_quantiles_or_detections(visualizer, tmp_path):
    for n, quantiles in ((1, False), (0, True), (0, False)):
        path = tmp_path / f"{n}{quantiles}.png"
        visualizer.add_datasample("x", GREY, sample(n, quantiles), out_file=str(path))
        assert path.is_file()
    visualizer.add_datasample("x", GREY, None, out_file=str(tmp_path / "none.png"))
    without = sample()
    without.set_metainfo({"quantile_levels": None})
    with pytest.raises(ValueError, match="quantile_levels"):
        visualizer.add_datasample("x", GREY, without)


def test_hook_leaves_out_images_that_cannot_be_read(tmp_path):
    drawn = []
    QuantileBoxVisualizer.get_instance("hook_test")
    hook = CheckedVisualizationHook(draw=True, interval=2)
    hook._visualizer = SimpleNamespace(add_datasample=lambda *a, **k: drawn.append(k["step"]))
    runner = SimpleNamespace(iter=0)
    good, bad = sample(), sample()
    cv2.imwrite(str(tmp_path / "good.jpg"), GREY)
    (tmp_path / "bad.jpg").write_bytes(b"")
    good.set_metainfo({"img_path": str(tmp_path / "good.jpg")})
    bad.set_metainfo({"img_path": str(tmp_path / "bad.jpg")})
    for step, data in enumerate([good, good, bad, good, good]):
        hook.after_val_iter(runner, step, {}, [data])
    assert drawn == [0, 4]
    hook.after_test_iter(runner, 0, {}, [bad, good])
    assert len(drawn) == 3


def test_hook_writes_to_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    init_default_scope("mmdet")
    image = tmp_path / "scene.jpg"
    cv2.imwrite(str(image), GREY)
    tool = VISUALIZERS.build(
        {
            "type": "QuantileBoxVisualizer",
            "name": "tensorboard_test",
            "vis_backends": [{"type": "TensorboardVisBackend"}],
            "save_dir": str(tmp_path),
        }
    )
    tool.dataset_meta = {"classes": ("cat",)}
    hook = CheckedVisualizationHook(draw=True, interval=1)
    hook._visualizer = tool
    runner = type("Runner", (), {"iter": 7})()
    data = sample()
    data.set_metainfo({"img_path": str(image)})
    hook.after_val_iter(runner, 0, {}, [data])
    tool.close()
    events = EventAccumulator(str(tmp_path / "vis_data"))
    events.Reload()
    (picture,) = events.Images("val_img")
    assert picture.step == 7 and (picture.width, picture.height) == (2000, 667)
