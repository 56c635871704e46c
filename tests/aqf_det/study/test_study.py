"""tools/run_voc.py end to end on generated scenes, with a detector of random weights."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import shutil
from collections.abc import Callable
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
from aqf_det.study import Run, Study, StudySize, planned_runs
from aqf_det.study.finish import finishing_steps
from aqf_det.study.gallery import chosen_images
from aqf_det.study.options import OPTIONS, Predictor
from aqf_det.study.progress import Step, run_steps
from aqf_det.study.run import FIRST
from aqf_det.study.variants import AR_QFR, DETECTOR, GAUSSIANS, QFR

from ..models.conftest import with_statistics
from ..test_inference import small_config

ROOT = Path(__file__).resolve().parents[3]
MINIATURE = StudySize(
    seeds=2,
    folds=2,
    steps=4,
    pretraining=2,
    training={"batch_size": 16},
    rounds={"unseen": 1, "seen": 1},
    passes=2,
    samples=8,
    replicates=20,
    gallery=1,
    shown_score=0.0,
    variants=(DETECTOR, GAUSSIANS[-1], QFR, AR_QFR),
)


def tool() -> ModuleType:
    path = ROOT / "tools" / "run_voc.py"
    spec = importlib.util.spec_from_file_location("tools_run_voc", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A config that finds something by accident, and its checkpoint."""
    root = tmp_path_factory.mktemp("study")
    data = generate_demo_dataset(root / "data", n_train=6, n_val=10, n_test=8, image_size=128)
    cfg = small_config("demo_gaussian.py")
    cfg.work_dir = str(root)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.dataset.data_root = f"{data}/"
        for step in loader.dataset.pipeline:
            if step.type == "Letterbox":
                step.size = 128
    cfg.model.test_cfg.update(score_thr=0.001, levels=39, max_per_img=20)
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        evaluator[-1].update(score_threshold=0.0, iou_threshold=0.05)
    cfg.dump(root / "config.py")
    init_default_scope("mmdet")
    torch.manual_seed(0)
    detector = with_statistics(MODELS.build(cfg.model))
    save_detector(detector, root / "detector.pth", dict(cfg.metainfo))
    return str(root / "config.py"), str(root / "detector.pth")


def all_steps(study: Study) -> list[Step]:
    return [*study.steps(), *finishing_steps(study, "the command")]


@pytest.fixture(scope="module")
def finished(files: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A miniature study that was interrupted within its runs."""
    root = tmp_path_factory.mktemp("study")
    out, twin = root / "out", root / "twin.pth"
    shutil.copy(files[1], twin)
    study = Study(Config.fromfile(files[0]), files[1], out, MINIATURE, more=(str(twin),))
    steps = all_steps(study)

    def stop(report: Callable[[float], None]) -> None:
        raise KeyboardInterrupt

    cut = [*steps[:12], Step("power cut", 1.0, lambda: False, stop)]
    with pytest.raises(KeyboardInterrupt):
        run_steps(cut, io.StringIO())
    with study.ledger.path.open("a") as file:
        file.write('{"name": "half a li')
    study = dataclasses.replace(study)
    stream = io.StringIO()
    run_steps(all_steps(study), stream)
    assert stream.getvalue().count("done before") == 12
    return study


@pytest.mark.slow
def test_every_run_leaves_one_line(finished: Study) -> None:
    names = []
    for line in finished.ledger.path.read_text().splitlines():
        if not line.startswith('{"name": "half a li'):
            names.append(json.loads(line)["name"])
    assert len(names) == len(set(names))
    assert {run.name for run in planned_runs(MINIATURE)} < set(names)


@pytest.mark.slow
def test_a_second_study_only_writes_the_report(finished: Study) -> None:
    stream = io.StringIO()
    steps = all_steps(finished)
    run_steps(steps, stream)
    assert stream.getvalue().count("done before") == len(steps) - 1


@pytest.mark.slow
def test_another_checkpoint_starts_anew(
    finished: Study, files: tuple[str, str], tmp_path: Path
) -> None:
    content = torch.load(files[1], weights_only=True)
    content["state_dict"]["bbox_head.outputs.0.bias"] += 0.5
    torch.save(content, tmp_path / "other.pth")
    other = Study(finished.cfg, str(tmp_path / "other.pth"), finished.out, MINIATURE)
    assert not any(step.is_done() for step in other.steps())


@pytest.mark.slow
def test_cached_predictions_are_those_of_the_whole_detector(
    finished: Study, tmp_path: Path
) -> None:
    for run in (Run(QFR, False, "unseen", 1), Run(QFR, True, "unseen", 0)):
        weights = finished.run_file(run, "branch.pth").with_name(f"{run.name}.pth")
        cfg = finished.config(run.variant, run.dropout)
        cfg.work_dir, cfg.launcher = str(tmp_path), "none"
        dump = tmp_path / f"{run.name}.npz"
        metrics = running.test(cfg, str(weights), dump=str(dump))
        tested, cached = (type(finished.pairs(run, True)).load(dump), finished.pairs(run, True))
        np.testing.assert_array_equal(tested.box, cached.box)
        np.testing.assert_array_equal(tested.score, cached.score)
        np.testing.assert_allclose(tested.quantiles, cached.quantiles, atol=2e-2)
        np.testing.assert_allclose(tested.energy, cached.energy, rtol=1e-2)
        own = finished.ledger.entries()["detector_test"]["metrics"]
        # Branches never move a box: mAP is the detector's, bit for bit.
        assert metrics["area/AP50"] == own["area/AP50"]


@pytest.mark.slow
def test_the_report_has_every_row_and_every_goal(finished: Study) -> None:
    text = (finished.out / "results.md").read_text()
    numbers = json.loads((finished.out / "results.json").read_text())
    for run in planned_runs(MINIATURE):
        assert f"| {run.title} " in text
    assert len(numbers["rows"]) == 2 * len({(r.setting, r.row) for r in planned_runs(MINIATURE)})
    assert [goal["reached"] in (True, False) for goal in numbers["goals"]] == [True] * 7
    by_name = {entry["name"]: entry for entry in numbers["options"]}
    plain = by_name["option_plain"]
    rows = [r for r in numbers["rows"] if (r["setting"], r["row"]) == ("unseen", "qfr")]
    assert (
        plain["points"]["area/AP50"] == numbers["detector"]["detector_test"]["metrics"]["area/AP50"]
    )
    run = finished.ledger.entries()["unseen_qfr_0"]
    # The map of so few and so wild boxes magnifies rounding: here some lie 30 deviations off.
    for kind, tolerance in (("before", 1e-5), ("after", 0.05)):
        crps = run[kind]["all"]["crps"]["value"]
        assert plain[kind]["uncertainty/crps"] == pytest.approx(crps, rel=tolerance)
    assert len(rows) == 2
    for name in ("calibration.png", "pit.png"):
        assert (finished.out / name).stat().st_size > 1000


@pytest.mark.slow
def test_an_ensemble_with_a_twin_of_the_detector_is_the_detector(finished: Study) -> None:
    entries = finished.ledger.entries()
    (twin,) = finished.others
    plain, both = entries["option_plain"], entries[f"option_detectors_{twin.digest}"]
    assert both["points"]["area/AP50"] == plain["points"]["area/AP50"]
    for kind, tolerance in (("before", 1e-4), ("after", 0.05)):
        crps = plain[kind]["uncertainty/crps"]
        assert both[kind]["uncertainty/crps"] == pytest.approx(crps, rel=tolerance)


@pytest.mark.slow
def test_members_of_an_ensemble_of_detectors_look_for_themselves(finished: Study) -> None:
    looked: list[str] = []
    option = next(option for option in OPTIONS if option.all_detectors)
    first, second = (study.trained(FIRST)[0] for study in (finished, *finished.others))
    for name, detector in (("first", first), ("second", second)):
        hook = lambda *_, name=name: looked.append(name)  # noqa: E731
        detector.backbone.register_forward_pre_hook(hook)
    batch = next(iter(finished.loader("test")))
    ready = first.data_preprocessor(batch, False)
    metas = [sample.metainfo for sample in ready["data_samples"]]
    with torch.no_grad():
        views = first.views(ready["inputs"], metas, flip=False)
        Predictor(option, [first, second], []).detect(views, ready["data_samples"])
    assert looked == ["first", "second"]


@pytest.mark.slow
def test_photographs_are_chosen_by_rule(finished: Study) -> None:
    pairs = finished.pairs(Run(QFR, False, "unseen", 0), True)
    names = chosen_images(pairs, 1, 0.0)
    assert list(names) == ["most_certain", "median", "most_uncertain"]
    drawn = sorted(path.name for path in (finished.out / "gallery").glob("*.png"))
    wanted = [f"{rule}_1_{Path(n).name}.png" for rule, found in names.items() for n in found]
    assert drawn == sorted(wanted)


def test_the_detector_is_neither_trained_nor_repeated() -> None:
    own = [run for run in planned_runs(StudySize()) if run.variant is DETECTOR]
    assert [run.name for run in own] == ["unseen_detector_0", "unseen_detector_vd_0"]


def test_missing_files_are_named_in_one_sentence(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, checkpoint = files
    main = tool().main
    cases = {
        "missing.pth does not exist": [config, str(tmp_path / "missing.pth")],
        "lost.pth does not exist": [config, checkpoint, "--more", str(tmp_path / "lost.pth")],
        "--data-root": [
            str(ROOT / "configs/voc320_gaussian.py"),
            checkpoint,
            "--data-root",
            str(tmp_path),
        ],
    }
    for sentence, arguments in cases.items():
        out = tmp_path / "out"
        status = running.run_tool(lambda: main([*arguments, "--out", str(out)]))  # noqa: B023
        error = capsys.readouterr().err.strip()
        assert status == 2 and sentence in error and len(error.splitlines()) == 1
        assert not out.exists()


def test_test_images_are_no_held_out_images(files: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(DomainError, match="images of the test"):
        Study(Config.fromfile(files[0]), files[1], tmp_path, held_out="ImageSets/Main/test.txt")
