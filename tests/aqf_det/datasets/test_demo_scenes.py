"""The demo data set: deterministic, VOC-readable, and its hidden sides follow the stated law."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aqf_core.errors import LevelError
from aqf_det.datasets import HiddenSideTruth, read_hidden_sides
from aqf_det.datasets import demo_scenes as scenes
from aqf_det.datasets.demo_scenes import generate_demo_dataset
from aqf_det.datasets.hidden_side import SIDES, ExtensionLaw


def tree_hash(root):
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def test_deterministic_by_seed_and_not_rewritten(tmp_path):
    first = generate_demo_dataset(tmp_path / "a", 3, 1, 2, seed=5)
    second = generate_demo_dataset(tmp_path / "b", 3, 1, 2, seed=5)
    third = generate_demo_dataset(tmp_path / "c", 3, 1, 2, seed=6)
    assert tree_hash(first) == tree_hash(second) != tree_hash(third)
    stamp = (first / "dataset.json").stat().st_mtime_ns
    generate_demo_dataset(first, 3, 1, 2, seed=5)
    assert (first / "dataset.json").stat().st_mtime_ns == stamp
    generate_demo_dataset(first, 3, 1, 2, seed=6)
    assert tree_hash(first) == tree_hash(third)


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="multiple of 32"):
        generate_demo_dataset(tmp_path / "x", image_size=150)
    with pytest.raises(ValueError, match="counts"):
        generate_demo_dataset(tmp_path / "x", 0, 0, 0)
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="choose another"):
        generate_demo_dataset(tmp_path, 1, 1, 1)
    assert (tmp_path / "mine.txt").read_text() == "precious"


@pytest.fixture(scope="module")
def layouts():
    rng = np.random.default_rng(0)
    return [scenes.lay_out(rng, 160, 3) for _ in range(150)]


def test_extension_leaves_no_trace_in_the_picture(layouts):
    digits = scenes._digits_of_split(0)
    for index, layout in enumerate(layouts[:15]):
        changed = [(replace(o, share=0.8) if o.hidden else o, board) for o, board in layout]
        images = [
            scenes.paint_scene(np.random.default_rng(index), 160, items, digits)
            for items in (layout, changed)
        ]
        assert np.array_equal(*images)


def test_geometry_tells_nothing_about_the_extension(layouts):
    for item, board in (pair for layout in layouts for pair in layout):
        short, long = item.rect(0.0), item.rect(1.0)
        assert min(short + long) >= 0 and max(short + long) <= 160
        if not item.hidden:
            assert board is None
            continue
        cells = [
            ((x1 + x2) / 2 // scenes.GRID, (y1 + y2) / 2 // scenes.GRID)
            for x1, y1, x2, y2 in (short, long)
        ]
        assert cells[0] == cells[1]
        sizes = [np.sqrt((x2 - x1) * (y2 - y1)) for x1, y1, x2, y2 in (short, long)]
        assert 30 < sizes[0] < sizes[1] < 90  # one pyramid level
        hidden_part = np.array(long)
        hidden_part[SIDES.index(item.side) - 2] = item.edge
        assert (np.array(board[:2]) <= hidden_part[:2]).all()
        assert (np.array(board[2:]) >= hidden_part[2:]).all()


def test_sides_follow_the_stored_truth(tmp_path):
    root = generate_demo_dataset(tmp_path / "scenes", 0, 0, 150, 160, seed=3)
    pit, share = [], []
    for path in sorted((root / "Annotations").iterdir()):
        for box, truth in read_hidden_sides(path):
            share.append(truth is not None)
            if truth is not None:
                pit.append(float(truth.cdf(box[truth.coordinate])))
                assert truth.direction * (box[truth.coordinate] - truth.edge) >= -0.01
    assert len(pit) > 150 and 0.5 < np.mean(share) < 0.8
    # A Kolmogorov-Smirnov statistic beyond 1.63 / sqrt(n) has probability 1 %; the seed is fixed.
    ordered = np.sort(pit)
    distance = np.abs(ordered - (np.arange(len(pit)) + 0.5) / len(pit)).max()
    assert distance < 1.63 / np.sqrt(len(pit))


@settings(max_examples=30, deadline=None)
@given(
    side=st.sampled_from(SIDES),
    law=st.sampled_from(sorted(scenes.CLASS_LAWS)),
    edge=st.floats(-50, 500),
    extent=st.floats(5, 80),
)
def test_quantile_inverts_cdf(side, law, edge, extent):
    truth = HiddenSideTruth(side, edge, extent, scenes.CLASS_LAWS[law])
    levels = np.linspace(0.01, 0.99, 25)
    quantiles = truth.quantile(levels)
    assert (np.diff(quantiles) > 0).all()
    np.testing.assert_allclose(truth.cdf(quantiles), levels, atol=1e-9)


def test_law_matches_its_closed_form_and_refuses_bad_levels():
    law = ExtensionLaw(((1.0, 2.0, 3.0),))
    levels = np.array([0.1, 0.5, 0.9])
    np.testing.assert_allclose(law.quantile(levels), (1 - (1 - levels) ** (1 / 3)) ** 0.5)
    for bad in (0.0, 1.0, np.nan):
        with pytest.raises(LevelError, match="inside"):
            law.quantile([0.5, bad])
    with pytest.raises(ValueError, match="side"):
        HiddenSideTruth("front", 0, 1, law)
