"""A branch that is trained on all images and calibrated by branches that knew only the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aqf_det.calibration import out_of_fold
from aqf_det.calibration.held_out import collect_held_out
from aqf_det.calibration.out_of_fold import OutOfFold, train_calibrated_branch
from aqf_det.engine.cached_branch import collect_cells, image_code

from .conftest import SIZE, make_sample


def images_and_boxes(count: int) -> list[dict[str, Any]]:
    """Batches of two images with two objects each."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for start in range(0, count, 2):
        inputs, samples = [], []
        for number in range(start, start + 2):
            low = 4 + 30 * torch.rand(2, 2, generator=generator)
            boxes = torch.cat([low, low + 20 + 40 * torch.rand(2, 2, generator=generator)], -1)
            sample = make_sample(boxes, torch.tensor([0, 1]))
            sample.set_metainfo({"img_id": f"{number:04d}"})
            samples.append(sample)
            inputs.append(torch.randint(0, 256, (3, SIZE, SIZE), generator=generator))
        batches.append({"inputs": inputs, "data_samples": samples})
    return batches


def test_every_image_is_judged_by_a_branch_that_did_not_see_it(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(flow={"kind": "quantile"}, test={"score_thr": 0.0, "max_per_img": 100})
    data = images_and_boxes(12)
    cells = collect_cells(model, data)
    codes = {image_code(s.metainfo) for batch in data for s in batch["data_samples"]}
    assert cells.image is not None and set(cells.image.tolist()) == codes
    trained: list[set[int]] = []
    original = out_of_fold.train_branch

    def spy(detector: Any, cells: Any, steps: int, rows: Any = None, **options: Any) -> None:
        trained.append(set(cells.image.tolist() if rows is None else cells.image[rows].tolist()))
        original(detector, cells, steps, rows=rows, **options)

    monkeypatch.setattr(out_of_fold, "train_branch", spy)
    boxes = train_calibrated_branch(
        model, cells, data, steps=5, folds=3, iou_threshold=0.1, score_threshold=0.0, batch_size=8
    )
    assert len(trained) == 4 and trained[-1] == codes
    for number, seen in enumerate(trained[:-1]):
        assert seen == {code for code in codes if code % 3 != number}
    calibration = model.bbox_head.calibration
    assert calibration.fitted and model.stage == 2
    assert calibration.base_values is not None and len(calibration.base_values) == len(boxes) > 8
    with pytest.raises(ValueError, match="at least 2 folds"):
        train_calibrated_branch(model, cells, data, steps=1, folds=1)
    with pytest.raises(ValueError, match="some of them are empty"):
        train_calibrated_branch(model, cells, data, steps=1, folds=50)


def test_equal_detectors_give_what_one_gives(build: Any) -> None:
    model = build(test={"score_thr": 0.0, "max_per_img": 100})
    data = images_and_boxes(4)
    one = collect_held_out(model, data, 0.0, 0.1)
    many = collect_held_out(OutOfFold([model, model, model]), data, 0.0, 0.1)
    torch.testing.assert_close(one.base_values, many.base_values, rtol=1e-3, atol=1e-3)
    assert torch.equal(one.image, many.image)
