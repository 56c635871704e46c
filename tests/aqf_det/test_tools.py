"""The command line tools, end to end on a small generated data set."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.runner import CheckpointLoader

from aqf_det.datasets import DatasetNotFoundError
from aqf_det.datasets.demo_scenes import generate_demo_dataset
from aqf_det.engine import running
from aqf_det.models import CheckpointKindError

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    """Import a script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_config(folder: Path, base: str, data: Path, **top: Any) -> str:
    """A config that shrinks one of the demo configs to seconds."""
    lines = [
        f"_base_ = ['{ROOT}/configs/{base}.py']",
        "model = dict(backbone=dict(width=0.25),"
        " neck=dict(in_channels=(8, 24, 1280), out_channels=(8, 12, 16)),"
        " bbox_head=dict(in_channels=(8, 12, 16)), test_cfg=dict(score_thr=0.001, levels=19))",
        f"root = '{data}/'",
        "train_dataloader = dict(batch_size=3, dataset=dict(data_root=root))",
        "val_dataloader = dict(batch_size=2, dataset=dict(data_root=root))",
        "test_dataloader = dict(batch_size=2, dataset=dict(data_root=root))",
        "val_evaluator = [dict(type='VOCMetric', metric='mAP', eval_mode='area'),"
        " dict(type='BoxUncertaintyMetric', replicates=20, iou_threshold=0.05,"
        " score_threshold=0.001)]",
        "test_evaluator = val_evaluator",
        "param_scheduler = [dict(type='RestartedMultiStepLR', milestones=[1], restarts=[2])]",
        "custom_hooks = [dict(type='TwoStageHook', stage1_epochs=2)]",
        "default_hooks = dict(logger=dict(interval=1), checkpoint=dict(max_keep_ckpts=9))",
        f"train_cfg = dict(max_epochs={top.pop('max_epochs', 3)}, val_interval=9)",
        *(f"{name} = {value!r}" for name, value in top.items()),
    ]
    path = folder / f"{base}_small.py"
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate_demo_dataset(
        tmp_path_factory.mktemp("data") / "demo", n_train=6, n_val=3, n_test=5, image_size=128
    )


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work dir of a complete run: two epochs of stage 1, one of stage 2."""
    folder = tmp_path_factory.mktemp("run")
    config = write_config(folder, "demo_qfr", data)
    pictures = ["default_hooks.visualization.draw=True", "default_hooks.visualization.interval=1"]
    tool("train").main([config, "--work-dir", str(folder), "--cfg-options", *pictures])
    return folder


def load_safely(path: Path) -> dict[str, Any]:
    return CheckpointLoader.load_checkpoint(str(path), map_location="cpu")


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_safely(path)["state_dict"]


def same_trunk(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    names = [n for n in one if "branch" not in n and not n.endswith(("stage", "signature"))]
    return len(names) > 300 and all(torch.equal(one[n], other[n]) for n in names)


def logged(folder: Path, key: str) -> list[float]:
    """Values of a key in the scalars of the latest run."""
    return [row[key] for row in scalars(folder) if key in row]


def scalars(folder: Path) -> list[dict[str, Any]]:
    newest = max(folder.glob("*/vis_data/scalars.json"))
    return [json.loads(line) for line in newest.read_text().splitlines()]


def test_one_run_trains_both_stages(trained: Path) -> None:
    first, last = weights(trained / "epoch_2.pth"), weights(trained / "epoch_3.pth")
    assert int(first["bbox_head.stage"]) == 1 and int(last["bbox_head.stage"]) == 2
    assert not same_trunk(weights(trained / "epoch_1.pth"), first)
    assert same_trunk(first, last)
    branch = [n for n in last if "branch" in n]
    assert any(not torch.equal(first[n], last[n]) for n in branch)
    # 2 iterations per epoch: full rate, a tenth of it, and full again for the branch.
    rates = logged(trained, "lr")
    assert np.allclose(np.array(rates) / rates[0], [1, 1, 0.1, 0.1, 1, 1])


def test_a_run_logs_what_its_stage_does_and_draws_validation_images(trained: Path) -> None:
    steps = [row for row in scalars(trained) if "lr" in row]
    assert {"loss_box", "loss_conf", "loss_cls"} <= set(steps[3])
    assert steps[-1]["loss"] == steps[-1]["loss_flow"] and "loss_box" not in steps[-1]
    (validation,) = [row for row in scalars(trained) if "uncertainty/crps" in row]
    assert "uncertainty/paper_winkler_95_high" in validation
    text = max(trained.glob("*/*.log")).read_text()
    (line,) = [line for line in text.splitlines() if "uncertainty/crps: " in line]
    assert "uncertainty/calibration_mae: " in line and "pascal_voc/mAP: " in line
    assert "paper" not in line and "time: " in line
    assert len(list(trained.rglob("vis_image/val_img_*.png"))) == 2


def test_resuming_lands_in_the_stage_of_the_checkpoint(
    data: Path, trained: Path, tmp_path: Path
) -> None:
    train = tool("train")
    start = trained / "epoch_2.pth"
    config = write_config(tmp_path, "demo_qfr", data)
    train.main([config, "--work-dir", str(tmp_path), "--resume", str(start)])
    last = weights(tmp_path / "epoch_3.pth")
    assert int(last["bbox_head.stage"]) == 2 and same_trunk(weights(start), last)
    options = ["--cfg-options", "train_cfg.max_epochs=4"]
    train.main([config, "--work-dir", str(tmp_path), "--resume", *options])
    assert same_trunk(weights(start), weights(tmp_path / "epoch_4.pth"))
    assert len(logged(tmp_path, "lr")) == 2


def test_the_branch_may_learn_from_images_of_its_own(
    data: Path, trained: Path, tmp_path: Path
) -> None:
    """Stage 2 on the three validation images: one iteration instead of two."""
    config = Path(write_config(tmp_path, "demo_qfr", data))
    config.write_text(
        config.read_text() + "\nbranch_data = dict(batch_size=3, num_workers=0,"
        " sampler=dict(type='DefaultSampler', shuffle=True),"
        " dataset=dict(type='VOCDetectionDataset', data_root=root,"
        " ann_file='ImageSets/Main/val.txt', data_prefix=dict(sub_data_root=''),"
        " metainfo={{_base_.metainfo}}, pipeline={{_base_.train_pipeline}}))"
        "\ncustom_hooks = [dict(type='TwoStageHook', stage1_epochs=2,"
        " stage2_dataloader=branch_data)]"
    )
    start = str(trained / "epoch_2.pth")
    tool("train").main([str(config), "--work-dir", str(tmp_path), "--resume", start])
    assert len(logged(tmp_path, "lr")) == 1


def test_flow_split_keeps_images_for_the_branch(data: Path, trained: Path, tmp_path: Path) -> None:
    """Half of the six training images for stage 2: one iteration instead of two."""
    config = write_config(tmp_path, "demo_qfr", data, flow_split=0.5)
    start = str(trained / "epoch_2.pth")
    tool("train").main([config, "--work-dir", str(tmp_path), "--resume", start])
    assert len(logged(tmp_path, "lr")) == 1
    assert int(weights(tmp_path / "epoch_3.pth")["bbox_head.stage"]) == 2
    saved = running.load_config(str(tmp_path / Path(config).name))
    parts = [saved.train_dataloader, saved.custom_hooks[0].stage2_dataloader]
    assert [part.dataset.held_out for part in parts] == [False, True]
    assert "flow_split" not in saved


def test_load_from_starts_at_stage_two(data: Path, trained: Path, tmp_path: Path) -> None:
    """From the stage 1 of another kind of branch, with mixed precision and averaging."""
    start = trained / "stage1.pth"
    config = write_config(tmp_path, "demo_gaussian_nll", data, load_from=str(start))
    text = Path(config).read_text() + (
        "\ncustom_hooks = [dict(type='TwoStageHook', stage1_epochs=2),"
        " dict(type='EMAHook', momentum=0.1, update_buffers=True, priority=49)]"
    )
    Path(config).write_text(text)
    tool("train").main([config, "--work-dir", str(tmp_path), "--amp"])
    assert not (tmp_path / "epoch_2.pth").exists()
    assert same_trunk(weights(start), weights(tmp_path / "epoch_3.pth"))
    assert int(weights(tmp_path / "epoch_3.pth")["bbox_head.stage"]) == 2
    # The full rate again, as after a stage 1 of the same run.
    assert set(logged(tmp_path, "lr")) == {running.load_config(config).optim_wrapper.optimizer.lr}


def test_load_from_only_initialises_a_detector_without_a_branch(
    data: Path, trained: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path, "demo_gaussian", data, max_epochs=1)
    options = ["--cfg-options", f"load_from={trained / 'stage1.pth'}"]
    tool("train").main([config, "--work-dir", str(tmp_path), *options])
    found = weights(tmp_path / "epoch_1.pth")
    assert int(found["bbox_head.stage"]) == 1 and not same_trunk(
        found, weights(trained / "stage1.pth")
    )
    with pytest.raises(ValueError, match=r"max_epochs=5 .*no flow branch"):
        tool("train").main(
            [config, "--work-dir", str(tmp_path), "--cfg-options", "train_cfg.max_epochs=5"]
        )


def test_resuming_before_the_first_checkpoint_begins_again(data: Path, tmp_path: Path) -> None:
    cfg = running.load_config(write_config(tmp_path, "demo_qfr", data), str(tmp_path))
    running.set_resume(cfg, "auto")
    assert (cfg.resume, cfg.load_from) == (False, None)
    cfg.load_from = "stage1.pth"
    running.set_resume(cfg, "auto")
    assert (cfg.resume, cfg.load_from) == (False, "stage1.pth")
    (tmp_path / "last_checkpoint").write_text("epoch_7.pth")
    running.set_resume(cfg, "auto")
    assert (cfg.resume, cfg.load_from) == (True, "epoch_7.pth")


def test_testing_prints_tables_and_dumps(data: Path, trained: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, "demo_qfr", data)
    checkpoint = str(trained / "epoch_3.pth")
    dump = tmp_path / "dumps" / "pairs.npz"
    tool("test").main([config, checkpoint, "--work-dir", str(tmp_path), "--dump", str(dump)])
    metrics = json.loads(max(tmp_path.glob("*/*.json")).read_text())
    assert {"pascal_voc/mAP", "uncertainty/crps"} <= set(metrics)
    from aqf_det.evaluation import BoxPairs

    assert BoxPairs.load(dump).quantiles.shape[1:] == (19, 4)
    cfg = running.load_config(config, str(tmp_path), {"model.test_cfg.levels": [0.1, 0.9]})
    cfg.default_hooks.visualization.update(
        draw=True, interval=1, score_thr=0.0, test_out_dir="pictures"
    )
    cfg.visualizer.vis_backends.append({"type": "TensorboardVisBackend"})
    running.test(cfg, checkpoint, str(tmp_path / "all.pkl"))
    assert (tmp_path / "all.pkl").stat().st_size > 0
    assert len(list(tmp_path.rglob("pictures/*.jpg"))) == 5
    assert list(tmp_path.rglob("events.out.tfevents*"))


def test_point_metrics_of_both_stages_agree(data: Path, trained: Path, tmp_path: Path) -> None:
    """mAP of the Gaussian and of the flow is the same number, not a similar one."""
    results = []
    for base, name in (("demo_gaussian", "epoch_2.pth"), ("demo_qfr", "epoch_3.pth")):
        state = load_safely(trained / name)
        if base == "demo_gaussian":
            state["state_dict"] = {
                k: v for k, v in state["state_dict"].items() if "branch" not in k
            }
            kind = torch.full((64,), 32, dtype=torch.uint8)
            kind[:8] = torch.tensor(list(b"gaussian"), dtype=torch.uint8)
            state["state_dict"]["bbox_head.signature"] = kind
        torch.save(state, tmp_path / name)
        cfg = running.load_config(write_config(tmp_path, base, data), str(tmp_path))
        results.append(running.test(cfg, str(tmp_path / name)))
    for key in results[0]:
        if "mAP" in key or "AP50" in key:
            assert results[0][key] == results[1][key]


# ------------------------------------------------------------------------- bad input


def test_a_stage_one_checkpoint_is_not_tested_as_a_flow(
    data: Path, trained: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path, "demo_qfr", data)
    with pytest.raises(CheckpointKindError, match="untrained"):
        tool("test").main([config, str(trained / "epoch_2.pth"), "--work-dir", str(tmp_path)])


def test_missing_files_are_named(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, "demo_qfr", data)
    with pytest.raises(FileNotFoundError, match=r"checkpoint absent\.pth does not exist"):
        tool("test").main([config, "absent.pth", "--work-dir", str(tmp_path)])
    with pytest.raises(FileNotFoundError, match=r"config absent\.py does not exist"):
        tool("train").main(["absent.py"])
    with pytest.raises(ValueError, match=r"\.npz or \.pkl"):
        cfg = running.load_config(config, str(tmp_path))
        running.test(cfg, __file__, "dump.csv")
    gone = write_config(tmp_path, "demo_qfr", tmp_path / "nowhere")
    with pytest.raises(DatasetNotFoundError, match="Expected tree"):
        tool("train").main([gone, "--work-dir", str(tmp_path)])


def test_a_config_with_averaged_weights_is_tested(
    data: Path, trained: Path, tmp_path: Path
) -> None:
    checkpoint, results = str(trained / "epoch_3.pth"), []
    for hooks in ([], [{"type": "EMAHook", "ema_type": "ExpMomentumEMA", "momentum": 0.002}]):
        config = write_config(tmp_path, "demo_qfr", data)
        cfg = running.load_config(config, str(tmp_path))
        cfg.custom_hooks = [*cfg.get("custom_hooks", []), *hooks]
        results.append(running.test(cfg, checkpoint))
    assert str(results[0]) == str(results[1])  # NaN included


def test_no_detection_is_a_result(data: Path, trained: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, "demo_qfr", data)
    cfg = running.load_config(config, str(tmp_path), {"model.test_cfg.score_thr": 0.9999})
    found = running.test(cfg, str(trained / "epoch_3.pth"), str(tmp_path / "none.npz"))
    assert found["pascal_voc/mAP"] == 0 and found["uncertainty/n_pairs"] == 0
    assert np.isnan(found["uncertainty/crps"])


def test_refusals_end_with_a_sentence(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AQF_DATA", "AQF_DEMO"):
        monkeypatch.setenv(name, "elsewhere")
    options = [str(ROOT / "configs/voc_qfr.py"), "--work-dir", str(tmp_path)]
    options += ["--data-root", str(tmp_path / "mine")]
    assert running.run_tool(lambda: tool("train").main(options)) == 2
    message = capsys.readouterr().err
    assert f"{tmp_path}/mine/VOCdevkit/VOC2007/ImageSets/Main/trainval.txt does not" in message
    assert "Traceback" not in message and "--data-root" in message
    assert running.run_tool(lambda: None) == 0


def test_auto_scale_lr_needs_its_base(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, "demo_qfr", data)
    cfg = running.load_config(config)
    assert cfg.work_dir == "work_dirs/demo_qfr_small"
    running.enable_auto_scale_lr(cfg)
    assert cfg.auto_scale_lr.enable
    cfg._cfg_dict.pop("auto_scale_lr")
    with pytest.raises(KeyError, match="base_batch_size"):
        running.enable_auto_scale_lr(cfg)


# ------------------------------------------------------------------------- several processes


def launch(processes: int, script: str, *args: str) -> None:
    """Run a tool under torchrun with gloo."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={processes}"]
    command += ["--standalone", str(ROOT / "tools" / script), *args, "--launcher", "pytorch"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_two_processes_train_and_evaluate_like_one(
    data: Path, trained: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path, "demo_qfr", data)
    two = tmp_path / "two"
    launch(2, "train.py", config, "--work-dir", str(two), "--auto-scale-lr")
    first, last = weights(two / "epoch_2.pth"), weights(two / "epoch_3.pth")
    assert same_trunk(first, last)
    assert any(not torch.equal(first[n], last[n]) for n in last if "branch" in n)
    # Twice three images per step where the config was made for eight.
    rate = running.load_config(config).optim_wrapper.optimizer.lr
    assert logged(two, "lr")[0] == pytest.approx(rate * 6 / 8)

    # Five test images: the two processes get three each, one of them twice.
    checkpoint = str(two / "epoch_3.pth")
    launch(2, "test.py", config, checkpoint, "--work-dir", str(tmp_path / "b"))
    cfg = running.load_config(config, str(tmp_path / "a"))
    single = running.test(cfg, checkpoint)
    double = json.loads(max((tmp_path / "b").glob("*/*.json")).read_text())
    assert single["uncertainty/n_pairs"] > 0
    for key, value in single.items():
        assert double[key] == pytest.approx(value, rel=1e-6, nan_ok=True), key
