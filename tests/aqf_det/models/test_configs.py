"""Every shipped config describes what its name says."""

from __future__ import annotations

from pathlib import Path

import mmdet
import pytest
import torch
from mmdet.registry import DATASETS, METRICS, MODELS, TRANSFORMS
from mmdet.structures import DetDataSample
from mmengine.config import Config

CONFIGS = Path(__file__).parents[3] / "configs"
# name: (kind of head, loss of the branch or of the only Gaussian, dropout)
EXPECTED = {
    "voc_gaussian": ("gaussian", "kl_pixel", 0.0),
    "voc_gaussian_nll": ("gaussian/affine/independent", "nll", 0.0),
    "voc_gaussian_crps": ("gaussian/affine/independent", "crps", 0.0),
    "voc_gaussian_vd": ("gaussian", "kl_pixel", 0.15),
    "voc_qfr": ("quantile/spline/independent", "quantile", 0.0),
    "voc_qfr_ar": ("quantile/spline/autoregressive", "quantile", 0.0),
    "voc_qfr_vd": ("quantile/spline/independent", "quantile", 0.15),
    "voc_cdfr": ("cdf/spline/independent", "crps", 0.0),
    "coco_qfr": ("quantile/spline/independent", "quantile", 0.0),
    "demo_gaussian": ("gaussian", "kl_pixel", 0.0),
    "demo_gaussian_nll": ("gaussian/affine/independent", "nll", 0.0),
    "demo_gaussian_crps": ("gaussian/affine/independent", "crps", 0.0),
    "demo_qfr": ("quantile/spline/independent", "quantile", 0.0),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_config_describes_its_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQF_DATA", "/elsewhere")
    monkeypatch.setenv("AQF_WEIGHTS", "weights.pth")
    monkeypatch.setenv("AQF_DEMO", "/elsewhere/demo")
    cfg = Config.fromfile(CONFIGS / f"{name}.py")
    assert "mmdet::" not in cfg.text
    head = MODELS.build(cfg.model).bbox_head
    signature, loss, dropout = EXPECTED[name]
    assert head.flow.signature == signature
    assert head.flow.base == "kl_pixel"  # all rows share one detector
    assert head.flow.loss == loss and head.dropout.p == dropout
    assert (cfg.model.test_cfg.mc_passes > 1) == (dropout > 0)

    # A branch needs epochs after stage 1, a plain Gaussian has none.
    stage1 = cfg.custom_hooks[0].stage1_epochs
    assert (cfg.train_cfg.max_epochs > stage1) == (head.branch is not None)
    if name.startswith("voc"):
        assert (stage1, cfg.train_cfg.max_epochs) == (60, 60 if head.branch is None else 80)
        assert cfg.optim_wrapper.optimizer == {"type": "Adam", "lr": 2e-4}
        assert cfg.param_scheduler[0].milestones == [30, 45]
        assert cfg.model.backbone.weights == "weights.pth"

    data = cfg.test_dataloader.dataset
    assert data.data_root.startswith("/elsewhere")
    assert DATASETS.get(data.type) is not None
    assert all(TRANSFORMS.get(step.type) is not None for step in data.pipeline)
    types = [metric.type for metric in cfg.test_evaluator]
    assert "BoxUncertaintyMetric" in types
    assert all(METRICS.get(kind) is not None for kind in types)


@pytest.mark.parametrize("name", ["rtmdet_tiny_qfr", "voc_frcnn_qfr"])
def test_config_adds_a_flow_to_a_stock_detector(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQF_DATA", "/elsewhere")
    cfg = Config.fromfile(CONFIGS / f"{name}.py")
    assert "mmdet::" not in cfg.text
    model = MODELS.build(cfg.model)
    assert model.flow_head.flow.signature == "quantile/spline/independent"
    stage1 = cfg.custom_hooks[0].stage1_epochs
    assert cfg.train_cfg.max_epochs > stage1
    assert (stage1 == 0) == bool(cfg.load_from)
    data = cfg.test_dataloader.dataset
    assert data.data_root.startswith("/elsewhere")
    steps = [*data.pipeline, *cfg.train_dataloader.dataset.pipeline]
    assert all(TRANSFORMS.get(step.type) is not None for step in steps)
    assert "BoxUncertaintyMetric" in [metric.type for metric in cfg.test_evaluator]


def test_rtmdet_is_the_one_that_mmdet_ships() -> None:
    """Its checkpoint fits by name and shape, and nothing else differs that decides on boxes."""
    path = Path(mmdet.__file__).parent / ".mim/configs/rtmdet/rtmdet_tiny_8xb32-300e_coco.py"
    stock = Config.fromfile(path).model
    ours = Config.fromfile(CONFIGS / "rtmdet_tiny_qfr.py").model
    shapes = [
        {k: v.shape for k, v in MODELS.build(model).state_dict().items()} for model in (stock, ours)
    ]
    assert {k: v for k, v in shapes[1].items() if not k.startswith("flow_head.")} == shapes[0]
    assert ours.test_cfg == stock.test_cfg
    for key in ("mean", "std", "bgr_to_rgb"):
        assert ours.data_preprocessor[key] == stock.data_preprocessor[key]
    same = {k: v for k, v in stock.bbox_head.items() if k != "norm_cfg"}
    assert {k: v for k, v in ours.bbox_head.items() if k != "norm_cfg"} == same


def test_the_recipe_of_the_docs_turns_a_stock_config_into_one_with_a_flow(tmp_path: Path) -> None:
    page = (CONFIGS.parent / "docs" / "detection.md").read_text()
    section = page.split("## Add a flow to the detector you have")[1]
    recipe = section.split("```python\n")[1].split("```")[0]
    assert len(recipe.splitlines()) == 10
    folder = Path(mmdet.__file__).parent / ".mim/configs/rtmdet"
    recipe = recipe.replace('"rtmdet_tiny_8xb32', f'"{folder}/rtmdet_tiny_8xb32', 1)
    (tmp_path / "my_flow.py").write_text(recipe)
    cfg = Config.fromfile(tmp_path / "my_flow.py")
    stock_cfg = Config.fromfile(folder / "rtmdet_tiny_8xb32-300e_coco.py")
    cfg.model.backbone.init_cfg = stock_cfg.model.backbone.init_cfg = None
    for model in (cfg.model, stock_cfg.model):
        model.test_cfg.update(max_per_img=20, nms_pre=100)
    stock, flow = (MODELS.build(model).eval() for model in (stock_cfg.model, cfg.model))
    flow.load_state_dict(stock.state_dict(), strict=False)
    meta = {"img_shape": (64, 64), "scale_factor": (0.3, 0.7)}
    images, results = torch.randn(1, 3, 64, 64), []
    for model in (stock, flow):
        with torch.no_grad():
            results += model.predict(images, [DetDataSample(metainfo=meta)])
    first, second = (result.pred_instances for result in results)
    assert len(first) == 20
    assert all(torch.equal(first[key], second[key]) for key in first.keys())
    assert second.bbox_quantiles.shape == (20, 199, 4)
    metrics = [metric.type for metric in cfg.test_evaluator]
    assert metrics == ["CocoMetric", "BoxUncertaintyMetric"]
    assert (cfg.custom_hooks[0].type, cfg.optim_wrapper.optimizer.lr) == ("TwoStageHook", 1e-3)


def test_every_config_is_expected() -> None:
    """New configs join the table above or a test of their own."""
    names = {path.stem for path in CONFIGS.glob("*.py")}
    assert set(EXPECTED) <= names
    for path in CONFIGS.glob("*.py"):
        assert len(path.read_text().splitlines()) < 60, f"{path.name} is no short diff"
