"""The inferencer on a small detector: every kind of input, consistent answers, clear refusals."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest
import torch
from mmdet.registry import MODELS
from mmengine.config import Config
from mmengine.registry import init_default_scope
from PIL import Image

from aqf_core.errors import LevelError, ShapeError
from aqf_det import QuantileInferencer
from aqf_det.box_predictions import BoxPredictions
from aqf_det.inference import CheckpointKindError, CorruptSampleError, find_images

ROOT = Path(__file__).resolve().parents[2]
CLASSES = ("digit_0", "digit_4", "digit_7")


def small_config(name: str = "demo_qfr.py") -> Config:
    """A demo config that takes milliseconds."""
    cfg = Config.fromfile(ROOT / "configs" / name)
    cfg.model.neck.out_channels = cfg.model.bbox_head.in_channels = (16, 16, 16)
    for step in cfg.test_dataloader.dataset.pipeline:
        if step.type == "Letterbox":
            step.size = 128
    return cfg


def write_detector(cfg: Config, path: Path, stage: int = 2) -> None:
    """Save random weights that find objects, as a training run would."""
    init_default_scope("mmdet")
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    head = model.bbox_head
    with torch.no_grad():
        for conv in head.outputs:
            conv.weight.normal_(std=0.3)
            conv.bias.view(head.slots, -1)[:, 8] = -1.0
        if head.branch is not None:
            for parameter in head.branch.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    if head.branch is not None:
        model.set_stage(stage)
    content = {"state_dict": model.state_dict(), "meta": {"dataset_meta": {"classes": CLASSES}}}
    torch.save(content, path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Config, checkpoint and three pictures of different shapes."""
    root = tmp_path_factory.mktemp("inference")
    cfg = small_config()
    cfg.dump(root / "config.py")
    write_detector(cfg, root / "detector.pth")
    (root / "pictures").mkdir()
    rng = np.random.default_rng(0)
    for name, shape in (("a.jpg", (90, 160)), ("b.png", (128, 128)), ("c.JPG", (200, 50))):
        picture = cv2.resize(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8), shape[::-1])
        cv2.imwrite(str(root / "pictures" / name), picture)
    (root / "pictures" / "notes.txt").write_text("not a picture")
    return root


@pytest.fixture(scope="module")
def inferencer(folder: Path) -> QuantileInferencer:
    return QuantileInferencer(folder / "config.py", folder / "detector.pth", device="cpu")


def only(found: BoxPredictions | list[BoxPredictions]) -> BoxPredictions:
    assert isinstance(found, BoxPredictions)
    return found


def test_a_picture_gives_boxes_with_monotone_quantiles(
    inferencer: QuantileInferencer, folder: Path
) -> None:
    found = only(inferencer(folder / "pictures/a.jpg", levels=[0.05, 0.5, 0.95]))
    assert len(found) > 0
    assert found.boxes.shape == (len(found), 4) and found.quantiles.shape == (len(found), 3, 4)
    assert found.std.shape == (len(found), 4) and (found.std > 0).all()
    assert set(found.names) <= set(CLASSES)
    assert (np.diff(found.scores) <= 0).all()
    assert (np.diff(found.quantiles, axis=1) > 0).all()
    low, high = found.interval(0.9)
    np.testing.assert_allclose(low, found.quantiles[:, 0])
    np.testing.assert_allclose(high, found.quantiles[:, 2])


def test_levels_only_choose_what_is_returned(inferencer: QuantileInferencer, folder: Path) -> None:
    picture = folder / "pictures/b.png"
    first, second = only(inferencer(picture, 0.25)), only(inferencer(picture, [0.123, 0.25]))
    np.testing.assert_allclose(first.quantiles[:, 0], second.quantiles[:, 1], atol=1e-4)
    np.testing.assert_allclose(first.quantile(0.9), second.quantile(0.9), atol=1e-4)
    # A level that was asked for is exact, not interpolated.
    exact, between = second.quantiles[:, 0], first.quantile(0.123)
    assert (np.abs(exact - between) < 0.02 * first.std).all()


def test_all_inputs_give_the_same_answer(inferencer: QuantileInferencer, folder: Path) -> None:
    paths = [folder / "pictures" / name for name in ("a.jpg", "b.png", "c.JPG")]
    singly = [only(inferencer(path)) for path in paths]
    arrays = [cv2.imread(str(path)) for path in paths]
    images = [Image.fromarray(array[..., ::-1]) for array in arrays]
    for several in (
        inferencer(folder / "pictures"),
        inferencer(str(folder / "pictures"), batch_size=2),
        inferencer(paths, batch_size=3),
        inferencer(arrays, batch_size=1),
        inferencer(images),
        list(inferencer.stream(iter(paths))),  # type: ignore[arg-type]
    ):
        assert isinstance(several, list)
        for one, other in zip(singly, several, strict=True):
            np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-3)
            np.testing.assert_allclose(one.quantiles, other.quantiles, atol=1e-2)
            assert one.names == other.names
    batch = np.stack([arrays[1]] * 2)
    assert len(inferencer(batch)) == 2
    assert only(inferencer(arrays[0])).path is None and singly[0].path == str(paths[0])


def test_grey_arrays_are_accepted(inferencer: QuantileInferencer) -> None:
    grey = np.full((64, 64), 99, np.uint8)
    coloured = np.repeat(grey[..., None], 3, axis=2)
    np.testing.assert_array_equal(only(inferencer(grey)).boxes, only(inferencer(coloured)).boxes)


def test_boxes_are_in_pixels_of_the_picture(inferencer: QuantileInferencer, folder: Path) -> None:
    """Doubling the picture doubles boxes, quantiles and standard deviations."""
    small = cv2.imread(str(folder / "pictures/b.png"))
    large = cv2.resize(small, (256, 256), interpolation=cv2.INTER_NEAREST)
    one, two = only(inferencer(small)), only(inferencer(large))
    assert len(one) == len(two)
    np.testing.assert_allclose(2 * one.boxes, two.boxes, atol=1e-3)
    np.testing.assert_allclose(2 * one.quantiles, two.quantiles, atol=2e-3)
    np.testing.assert_allclose(2 * one.std, two.std, rtol=1e-4)


def test_score_threshold_and_selection(inferencer: QuantileInferencer, folder: Path) -> None:
    found = only(inferencer(folder / "pictures/a.jpg", score_threshold=0.0))
    cut = float(np.median(found.scores))
    fewer = only(inferencer(folder / "pictures/a.jpg", score_threshold=cut))
    assert 0 < len(fewer) < len(found) and (fewer.scores > cut).all()
    best = found[0]
    assert len(best) == 1 and best.boxes.shape == (1, 4)
    np.testing.assert_array_equal(best.outer_box(0.9), found.outer_box(0.9)[:1])
    masked = found[found.scores >= cut]
    assert len(masked) == (found.scores >= cut).sum() and len(list(found)) == len(found)


def test_no_detection_is_an_empty_answer(inferencer: QuantileInferencer, folder: Path) -> None:
    found = only(inferencer(folder / "pictures/a.jpg", score_threshold=0.9999))
    assert len(found) == 0 and found.names == []
    assert found.quantiles.shape == (0, 7, 4)
    assert found.prob_reaches([0, 0, 5, 5]).shape == (0,)
    assert found.draw().shape[2] == 3


def test_samples_on_request_answer_joint_questions(
    inferencer: QuantileInferencer, folder: Path
) -> None:
    found = only(inferencer(folder / "pictures/a.jpg", samples=512))
    assert found.samples is not None and found.samples.shape == (len(found), 512, 4)
    plain = only(inferencer(folder / "pictures/a.jpg"))
    assert plain.samples is None
    region = [30.0, 20.0, 60.0, 50.0]
    # The sides of this flow are independent, so samples and marginals must agree.
    np.testing.assert_allclose(found.prob_reaches(region), plain.prob_reaches(region), atol=0.08)


def test_a_joint_flow_brings_samples_by_itself(folder: Path, tmp_path: Path) -> None:
    cfg = small_config()
    cfg.model.bbox_head.flow.dependence = "autoregressive"
    write_detector(cfg, tmp_path / "joint.pth")
    found = only(QuantileInferencer(cfg, tmp_path / "joint.pth", "cpu")(folder / "pictures/a.jpg"))
    assert found.samples is not None and found.samples.shape[1] == 256
    assert (found.samples[..., :2] < found.samples[..., 2:]).all()


def test_the_test_config_of_the_model_is_left_alone(
    inferencer: QuantileInferencer, folder: Path
) -> None:
    before = dict(inferencer.head.test_cfg)
    inferencer(folder / "pictures/a.jpg", levels=0.5, score_threshold=0.7)
    assert inferencer.head.test_cfg == before


def test_pictures_and_json(inferencer: QuantileInferencer, folder: Path, tmp_path: Path) -> None:
    found = only(inferencer(folder / "pictures/b.png"))
    target = found.save(tmp_path / "new" / "b.png", score_threshold=0.0)
    drawn = cv2.imread(str(target))
    assert drawn.shape == (1000, 1000, 3)
    plain = found.draw(score_threshold=1.1)
    assert np.abs(drawn[..., ::-1].astype(int) - plain).mean() > 1
    again = json.loads(json.dumps(found.to_dict()))
    assert len(again["detections"]) == len(found)
    with pytest.raises(ValueError, match=".png or .jpg"):
        found.save(tmp_path / "b.pdf")


@pytest.mark.parametrize("level", [0, 1, 1.5, -0.1, [0.5, float("nan")]])
def test_impossible_levels_are_refused(
    inferencer: QuantileInferencer, folder: Path, level: object
) -> None:
    with pytest.raises(LevelError, match="levels must lie strictly inside"):
        inferencer(folder / "pictures/a.jpg", levels=level)  # type: ignore[arg-type]


def test_bad_pictures_are_named(
    inferencer: QuantileInferencer, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere.jpg"):
        inferencer(tmp_path / "nowhere.jpg")
    (tmp_path / "broken.jpg").write_bytes(b"not a jpeg")
    with pytest.raises(CorruptSampleError, match="broken.jpg"):
        inferencer(tmp_path / "broken.jpg")
    whole = (folder / "pictures/a.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptSampleError, match=r"cut.jpg.*truncated"):
        inferencer(tmp_path / "cut.jpg")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no picture"):
        inferencer(tmp_path / "empty")
    with pytest.raises(ShapeError, match=r"\(H, W, 3\)"):
        inferencer(np.zeros((8, 8, 4), np.uint8))
    with pytest.raises(TypeError, match="uint8"):
        inferencer(np.zeros((8, 8, 3)))
    with pytest.raises(TypeError, match="a path, an array or a PIL image"):
        inferencer(5)  # type: ignore[arg-type]
    with pytest.raises(IsADirectoryError, match="pass it alone"):
        inferencer([tmp_path])
    assert inferencer([]) == []
    assert [path.name for path in find_images(folder / "pictures")] == ["a.jpg", "b.png", "c.JPG"]


def test_files_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    config, checkpoint = folder / "config.py", folder / "detector.pth"
    with pytest.raises(FileNotFoundError, match="no config"):
        QuantileInferencer(tmp_path / "none.py", checkpoint)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        QuantileInferencer(config, tmp_path / "none.pth")
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(CheckpointKindError, match="text.pth"):
        QuantileInferencer(config, tmp_path / "text.pth")
    torch.save({"state_dict": {"fc.weight": torch.zeros(3)}}, tmp_path / "other.pth")
    with pytest.raises(CheckpointKindError, match="does not hold"):
        QuantileInferencer(config, tmp_path / "other.pth")
    with pytest.raises(CheckpointKindError, match="quantile/spline"):
        QuantileInferencer(small_config("demo_gaussian.py"), checkpoint)


def test_weights_of_another_size_or_stage_are_refused(folder: Path, tmp_path: Path) -> None:
    wide = small_config()
    wide.model.backbone.width = 0.5
    with pytest.raises(CheckpointKindError, match="does not fit the config"):
        QuantileInferencer(wide, folder / "detector.pth")
    gaussian = small_config("demo_gaussian.py")
    write_detector(gaussian, tmp_path / "gaussian.pth")
    with pytest.raises(CheckpointKindError):
        QuantileInferencer(folder / "config.py", tmp_path / "gaussian.pth")
    write_detector(small_config(), tmp_path / "stage1.pth", stage=1)
    with pytest.raises(CheckpointKindError, match="untrained"):
        QuantileInferencer(folder / "config.py", tmp_path / "stage1.pth")


def test_a_detector_without_quantiles_is_refused(folder: Path) -> None:
    cfg = Config({"model": {"type": "DetDataPreprocessor"}, "default_scope": "mmdet"})
    with pytest.raises(ValueError, match="no head that predicts quantiles"):
        QuantileInferencer(cfg, folder / "detector.pth")


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_visualize_draws_folders_and_reports_what_it_cannot_read(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = load_tool("visualize")
    model = ["--config", str(folder / "config.py"), "--checkpoint", str(folder / "detector.pth")]
    out = tmp_path / "drawn"
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"?")
    inputs = [str(folder / "pictures"), str(broken)]
    assert tool.main([*inputs, *model, "--out", str(out), "--levels", "0.1", "0.9"]) == 1
    assert {p.name for p in out.iterdir()} == {"a.png", "b.png", "c.png", "predictions.json"}
    assert "broken.png" in capsys.readouterr().err
    levels = [item["levels"] for item in json.loads((out / "predictions.json").read_text())]
    assert levels == [[0.1, 0.9]] * 3

    # Nothing is written over: neither another drawn picture nor the given one.
    beside = tmp_path / "b.png"
    beside.write_bytes((folder / "pictures/b.png").read_bytes())
    twice = [str(folder / "pictures/b.png"), str(beside)]
    assert tool.main([*twice, *model, "--out", str(tmp_path)]) == 0
    assert beside.read_bytes() == (folder / "pictures/b.png").read_bytes()
    assert {p.name for p in tmp_path.glob("b*.png")} == {
        "b.png",
        "b_2.png",
        "b_3.png",
        "broken.png",
    }

    assert tool.main([str(tmp_path / "nothing"), *model, "--out", str(out)]) == 2
    assert "nothing" in capsys.readouterr().err
    assert tool.main([inputs[0], *model, "--levels", "95", "--out", str(tmp_path / "new")]) == 2
    assert "probabilities, not percentages" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
