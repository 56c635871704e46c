"""tools/robustness.py end to end on generated scenes, with a detector of random weights."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from mmdet.registry import MODELS
from mmengine.config import Config
from mmengine.registry import init_default_scope

from aqf_core.errors import DomainError
from aqf_det.datasets.demo_scenes import generate_demo_dataset
from aqf_det.engine import running
from aqf_det.engine.cached_branch import save_detector
from aqf_det.robustness import CLEAN, Condition, Sweep

from ..models.conftest import with_statistics
from ..test_inference import small_config

ROOT = Path(__file__).resolve().parents[3]


def tool() -> ModuleType:
    path = ROOT / "tools" / "robustness.py"
    spec = importlib.util.spec_from_file_location("tools_robustness", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A config that finds something by accident, and its checkpoint."""
    root = tmp_path_factory.mktemp("robustness")
    data = generate_demo_dataset(root / "data", n_train=0, n_val=0, n_test=4, image_size=128)
    cfg = small_config()
    cfg.work_dir = str(root)
    cfg.test_dataloader.dataset.data_root = f"{data}/"
    cfg.model.test_cfg.update(score_thr=0.001, levels=19)
    cfg.test_evaluator[-1].update(score_threshold=0.0, iou_threshold=0.05, replicates=10)
    cfg.test_evaluator.append({"type": "PDQMetric", "score_threshold": 0.0, "replicates": 10})
    cfg.dump(root / "config.py")
    init_default_scope("mmdet")
    torch.manual_seed(0)
    detector = with_statistics(MODELS.build(cfg.model))
    detector.set_stage(2)
    save_detector(detector, root / "detector.pth", dict(cfg.metainfo))
    return [str(root / "config.py"), str(root / "detector.pth")]


def test_a_sweep_writes_its_report_and_goes_on_where_it_stopped(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    options = ["--out", str(out), "--replicates", "20", "--kinds", "noise"]
    tool().main([*files, *options, "--severities", "5"])
    printed = capsys.readouterr().out
    assert "[2/2] test: noise, severity 5" in printed and "done before" not in printed
    assert "- noise: uncertainty" in printed and str(out / "robustness.png") in printed
    numbers = json.loads((out / "results.json").read_text())
    assert [row["kind"] for row in numbers["measurements"]] == ["clean", "noise"]
    clean, noise = numbers["measurements"]
    assert clean["matched"] > 0 and clean["images"] == 4
    for name in ("std", "mpiw_90", "crps", "calibration_mae", "picp_90", "pdq", "mAP"):
        assert clean[name] is not None, name
    assert clean["crps"] != noise["crps"]

    # A lost measurement is made again, the others are not; the result is the same.
    before = (out / "results.json").read_text()
    (out / "measurements" / "noise_5.json").unlink()
    tool().main([*files, *options, "--severities", "5"])
    printed = capsys.readouterr().out
    assert "clean images  done before" in printed
    assert "severity 5  done before" not in printed
    assert (out / "results.json").read_text() == before
    # Other settings are other results.
    sweep = Sweep(running.load_config(files[0]), files[1], out, ["noise"], [5])
    assert all(step.is_done() for step in sweep.steps())
    sweep.cfg.model.test_cfg.score_thr = 0.002
    assert not any(step.is_done() for step in sweep.steps())


def test_check_decides_the_exit_status(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tool()
    verdicts = {"fog": type("G", (), {"verdict": "does not grow"})()}
    monkeypatch.setattr(module, "run_steps", lambda steps: None)
    monkeypatch.setattr(module.Sweep, "measurements", lambda self: [])
    monkeypatch.setattr(module, "write_report", lambda *a: verdicts)
    (tmp_path / "results.md").write_text("")
    module.main([*files, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        module.main([*files, "--out", str(tmp_path), "--check"])
    assert stopped.value.code == 1


def test_the_corruption_enters_every_test_pipeline(files: list[str], tmp_path: Path) -> None:
    cfg = Config.fromfile(files[0])
    inner = cfg.test_dataloader.dataset
    cfg.test_dataloader.dataset = {"type": "ConcatDataset", "datasets": [inner, inner]}
    cfg.test_evaluator = cfg.test_evaluator[0]
    sweep = Sweep(cfg, files[1], tmp_path, ["blur", "fog", "blur"], [4, 2])
    names = [condition.name for condition in sweep.conditions()]
    assert names == ["clean", "blur_2", "blur_4", "fog_2", "fog_4"]
    changed = sweep.config(Condition("fog", 2))
    for part in changed.test_dataloader.dataset.datasets:
        step = part.pipeline[1]
        assert (step["type"], step["kind"], step["severity"]) == ("CorruptImage", "fog", 2)
    assert inner.pipeline[1].type == "Letterbox"
    assert len(sweep.config(CLEAN).test_dataloader.dataset.datasets[0].pipeline) == 4
    types = [metric["type"] for metric in changed.test_evaluator]
    assert types[1:] == ["BoxUncertaintyMetric", "PDQMetric", "DetectionECEMetric"]


def test_bad_input_is_one_sentence(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, checkpoint = files
    main = tool().main
    for argv, text in [
        (["absent.py", checkpoint], "config absent.py does not exist."),
        ([config, "absent.pth"], "checkpoint absent.pth does not exist."),
    ]:
        assert running.run_tool(lambda argv=argv: main([*argv, "--out", str(tmp_path)])) == 2
        assert capsys.readouterr().err.strip() == text
    for wrong in (["--kinds", "rain"], ["--severities", "7"]):
        with pytest.raises(SystemExit):
            main([*files, *wrong])
        assert "invalid choice" in capsys.readouterr().err
    cfg = Config.fromfile(config)
    with pytest.raises(DomainError, match="severity from 1 on"):
        Sweep(cfg, checkpoint, tmp_path, ["fog"], [])
    cfg.test_dataloader.dataset.pipeline.pop(0)
    with pytest.raises(DomainError, match="loads an image"):
        Sweep(cfg, checkpoint, tmp_path, ["fog"], [1])
    cfg.test_dataloader.dataset.pop("pipeline")
    with pytest.raises(DomainError, match="no pipeline"):
        Sweep(cfg, checkpoint, tmp_path, ["fog"], [1])
    assert not list(tmp_path.iterdir())


def test_other_weights_are_other_results(files: list[str], tmp_path: Path) -> None:
    cfg = running.load_config(files[0])
    copy = tmp_path / "copy.pth"
    copy.write_bytes(Path(files[1]).read_bytes())
    same = [Sweep(cfg, path, tmp_path, ["fog"], [1]) for path in (files[1], str(copy))]
    assert len({sweep._fingerprint(CLEAN) for sweep in same}) == 1
    copy.write_bytes(np.arange(9).tobytes())
    other = Sweep(cfg, str(copy), tmp_path, ["fog"], [1])
    assert other._fingerprint(CLEAN) != same[0]._fingerprint(CLEAN)
