"""What the command line tools do once their arguments are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from mmdet.evaluation import DumpDetResults
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner, find_latest_checkpoint

from aqf_core.errors import AQFError

from ..datasets import CorruptSampleError
from ..evaluation import BoxUncertaintyMetric
from ..models import CheckpointKindError
from .flow_split import apply_flow_split
from .stages import detector_of


def load_config(
    path: str,
    work_dir: str | None = None,
    options: dict[str, Any] | None = None,
    launcher: str = "none",
    data_root: str | None = None,
) -> Config:
    """Read a config and apply the command line.

    Args:
        path: The config file.
        work_dir: ``work_dirs/<name of the config>`` by default.
        options: Entries to override.
        launcher: Who started the processes.
        data_root: Folder that holds ``VOCdevkit``, ``coco`` or ``demo``; the environment variable
            ``AQF_DATA`` or ``data`` by default.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"config {path} does not exist.")
    if data_root is not None:
        # The names that configs look up.
        os.environ["AQF_DATA"], os.environ["AQF_DEMO"] = data_root, str(Path(data_root) / "demo")
    cfg = Config.fromfile(path)
    cfg.launcher = launcher
    if options:
        cfg.merge_from_dict(options)
    if work_dir is not None:
        cfg.work_dir = work_dir
    elif cfg.get("work_dir") is None:
        cfg.work_dir = str(Path("work_dirs") / Path(path).stem)
    if launcher != "none" and not torch.cuda.is_available():
        _prepare_cpu_processes(cfg, launcher)
    return cfg


def _prepare_cpu_processes(cfg: Config, launcher: str) -> None:
    """Several processes without a GPU: mmengine would select a CUDA device and NCCL."""
    if launcher != "pytorch":
        raise ValueError(f"without a GPU use --launcher pytorch (torchrun), not {launcher}.")
    cfg.model_wrapper_cfg = {
        "type": "MMDistributedDataParallel",
        "device_ids": None,
        "broadcast_buffers": False,
        "find_unused_parameters": cfg.get("find_unused_parameters", False),
    }
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")


def enable_amp(cfg: Config) -> None:
    """Train in mixed precision: float16 with loss scaling on a GPU, bfloat16 on the CPU."""
    if torch.cuda.is_available():
        cfg.optim_wrapper.type = "AmpOptimWrapper"
        cfg.optim_wrapper.loss_scale = "dynamic"
    else:
        cfg.optim_wrapper.type = "CPUAmpOptimWrapper"


def enable_auto_scale_lr(cfg: Config) -> None:
    """Scale the learning rate by the total batch size over ``auto_scale_lr.base_batch_size``."""
    if "base_batch_size" not in cfg.get("auto_scale_lr", {}):
        raise KeyError(
            "--auto-scale-lr needs auto_scale_lr=dict(base_batch_size=...) in the config."
        )
    cfg.auto_scale_lr.enable = True


def set_resume(cfg: Config, resume: str) -> None:
    """Continue from a checkpoint file, or with ``"auto"`` from the latest one in ``work_dir``.

    A run that was stopped before its first checkpoint begins again, with the same ``load_from``.
    """
    found = find_latest_checkpoint(cfg.work_dir) if resume == "auto" else resume
    cfg.resume = found is not None
    cfg.load_from = found or cfg.get("load_from")


def check_checkpoint_path(path: str) -> None:
    """Refuse a missing local file before anything is built."""
    if "://" not in path and not Path(path).is_file():
        raise FileNotFoundError(f"checkpoint {path} does not exist.")


def train(cfg: Config, hooks: Sequence[Hook] = ()) -> Runner:
    """Run or resume the recipe of a config, with further hooks; returns the runner."""
    apply_flow_split(cfg)
    if cfg.get("load_from"):
        check_checkpoint_path(cfg.load_from)
        # The loaded detector replaces ImageNet weights; there is no need to fetch them.
        for name in ("weights", "init_cfg"):
            if name in cfg.model.backbone:
                cfg.model.backbone[name] = None
    runner = Runner.from_cfg(cfg)
    for hook in hooks:
        runner.register_hook(hook)
    runner.train()
    return runner


def run_tool(main: Callable[[], object]) -> int:
    """Run the main function of a tool; returns its exit status.

    What is wrong with the input ends with its one sentence instead of a traceback.
    """
    try:
        main()
    except (AQFError, CheckpointKindError, CorruptSampleError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _add_dump(runner: Runner, path: str) -> None:
    """Make the test evaluator write ``path``."""
    metrics = runner.test_evaluator.metrics
    if not path.endswith(".npz"):
        metrics.append(DumpDetResults(out_file_path=path))
        return
    tables = [metric for metric in metrics if isinstance(metric, BoxUncertaintyMetric)]
    if not tables:
        raise ValueError(
            "an .npz dump is written by BoxUncertaintyMetric, which test_evaluator does not list."
        )
    tables[0].dump_path = path


def test(
    cfg: Config, checkpoint: str, dump: str | None = None, hooks: Sequence[Hook] = ()
) -> dict[str, float]:
    """Evaluate a checkpoint on the config's test set; returns the metrics.

    Args:
        cfg: The config.
        checkpoint: Weights written by training.
        dump: Where to write the matched pairs (``.npz``, what ``tools/analyze.py`` reads) or all
            predictions (``.pkl``, as mmdet does), or None.
        hooks: Further hooks.
    """
    check_checkpoint_path(checkpoint)
    if dump is not None and not dump.endswith((".npz", ".pkl", ".pickle")):
        raise ValueError(f"the dump file must end in .npz or .pkl, got {dump}.")
    cfg.load_from = checkpoint
    # A checkpoint's weights are the averaged ones already, and the hook fails without training.
    cfg.custom_hooks = [h for h in cfg.get("custom_hooks") or [] if h["type"] != "EMAHook"]
    runner = Runner.from_cfg(cfg)
    if dump is not None:
        Path(dump).parent.mkdir(parents=True, exist_ok=True)
        _add_dump(runner, dump)
    for hook in hooks:
        runner.register_hook(hook)
    runner.load_or_resume()
    detector_of(runner).require_trained_branch()
    return runner.test()
