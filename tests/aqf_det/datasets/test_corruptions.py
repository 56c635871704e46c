"""Corruptions: reproducible, worse with every severity, and nothing but the image changes."""

from __future__ import annotations

import numpy as np
import pytest
from mmdet.registry import TRANSFORMS

from aqf_core.errors import DomainError, UnknownNameError
from aqf_det.datasets.corruptions import (
    KINDS,
    MAX_SEVERITY,
    CorruptImage,
    corrupt_image,
    insert_corruption,
)
from aqf_det.datasets.demo_scenes import _digits_of_split, make_scene

SEVERITIES = range(1, MAX_SEVERITY + 1)


@pytest.fixture(scope="module")
def scene():
    return make_scene(160, 0, 0, 0, _digits_of_split(0))[0]


def psnr(image, reference):
    error = np.mean((image.astype(float) - reference.astype(float)) ** 2)
    return 10 * np.log10(255**2 / error)


@pytest.mark.parametrize("kind", KINDS)
def test_every_severity_is_worse_than_the_one_before(kind, scene):
    quality = [psnr(corrupt_image(scene, kind, severity), scene) for severity in SEVERITIES]
    assert all(b < a - 0.3 for a, b in zip(quality, quality[1:], strict=False)), quality
    assert 8 < quality[-1] < quality[0] < 40
    assert corrupt_image(scene, kind, 0) is scene


@pytest.mark.parametrize("kind", ["noise", "fog"])
def test_a_severity_scales_one_disturbance(kind, scene):
    """Where severity 5 makes a pixel brighter, severity 1 does not make it darker."""
    mild, strong = (
        corrupt_image(scene.astype(np.float32), kind, severity) - scene for severity in (1, 5)
    )
    assert (mild * strong >= 0).all()
    assert (np.abs(mild) <= np.abs(strong) + 1e-3).all()


@pytest.mark.parametrize("kind", KINDS)
def test_reproducible_and_different_for_every_image(kind, scene):
    before = scene.copy()
    first = corrupt_image(scene, kind, 3)
    assert np.array_equal(first, corrupt_image(scene.copy(), kind, 3))
    assert np.array_equal(scene, before) and first.shape == scene.shape
    assert first.dtype == np.uint8
    mirrored = corrupt_image(scene[:, ::-1], kind, 3)[:, ::-1]
    if kind != "blur":
        assert not np.array_equal(first, mirrored)
        assert not np.array_equal(first, corrupt_image(scene, kind, 3, seed=1))


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_and_shape_of_image(kind):
    grey = np.linspace(0, 255, 40 * 61).reshape(40, 61).astype(np.float32)
    result = corrupt_image(grey, kind, 5)
    assert result.shape == grey.shape and result.dtype == np.float32
    assert 0 <= result.min() and result.max() <= 255
    assert corrupt_image(np.zeros((1, 1, 3), np.uint8), kind, 1).shape == (1, 1, 3)


def test_blur_is_relative_to_the_size_of_the_image():
    """A step seen at twice the resolution is blurred over twice as many pixels."""

    def ramp(size):
        step = np.zeros((size, size), np.float32)
        step[:, size // 2 :] = 255
        row = corrupt_image(step, "blur", 3)[0]
        return np.sum((row > 25) & (row < 230))

    assert ramp(256) == pytest.approx(2 * ramp(128), abs=2)


def test_the_step_changes_only_the_image(scene):
    step = TRANSFORMS.build({"type": "CorruptImage", "kind": "fog", "severity": 2})
    assert isinstance(step, CorruptImage) and "severity=2" in repr(step)
    boxes = np.ones((2, 4))
    results = step({"img": scene, "gt_bboxes": boxes, "img_shape": scene.shape[:2]})
    assert results["gt_bboxes"] is boxes and results["img_shape"] == scene.shape[:2]
    assert np.array_equal(results["img"], corrupt_image(scene, "fog", 2))


def test_bad_input_is_one_sentence():
    with pytest.raises(UnknownNameError, match=r"blur, noise, fog.*'rain'"):
        CorruptImage("rain", 1)
    for severity in (6, -1, 1.5):
        with pytest.raises(DomainError, match="0 to 5"):
            CorruptImage("fog", severity)
    with pytest.raises(ValueError, match="loads an image"):
        insert_corruption([{"type": "LoadAnnotations"}], "fog", 1)
