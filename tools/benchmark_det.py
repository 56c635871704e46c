"""What distributions cost a detector: latency, memory and training time as ratios within one run.

    python tools/benchmark_det.py --markdown docs/results/detection_speed.md

All detectors have random weights and the shape of configs/voc_*.py. Every picture keeps as many
boxes as the config allows, so the cost of quantiles is the worst case. The variants take turns, and
a ratio is the median over rounds of the ratios within a round.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmdet.registry import DATASETS, MODELS
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import init_default_scope

import aqf_det  # noqa: F401
from aqf_det.datasets.demo_scenes import generate_demo_dataset

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


@dataclass(frozen=True)
class Variant:
    """A way to predict.

    Attributes:
        config: File in ``configs/``.
        test_cfg: What it changes in the head's ``test_cfg``.
        goal: Largest allowed ratio to the Gaussian detector, or None.
    """

    config: str
    test_cfg: Mapping[str, Any]
    goal: float | None = None


BASELINE = "Gaussian, no quantiles"
VARIANTS = {
    # The one level is the median, which is the point box.
    BASELINE: Variant("voc_gaussian.py", {"levels": [0.5]}),
    "Gaussian, 199 levels": Variant("voc_gaussian.py", {"levels": 199}),
    "QFR, 9 levels": Variant("voc_qfr.py", {"levels": 9}, 1.05),
    "QFR, 199 levels": Variant("voc_qfr.py", {"levels": 199}, 1.10),
    "QFR VD, 10 passes, 9 levels": Variant("voc_qfr_vd.py", {"levels": 9, "mc_passes": 10}, 1.5),
    "QFR autoregressive, 9 levels": Variant("voc_qfr_ar.py", {"levels": 9}),
}
TRAINING_GOAL = 1.15


@dataclass(frozen=True)
class Ratio:
    """Median over rounds, with quartiles."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float]) -> Ratio:
        """Of paired measurements, round by round."""
        ratios = np.asarray(first) / np.asarray(second)
        low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
        return cls(float(middle), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def build(variant: Variant, device: str) -> tuple[Config, Any]:
    """A detector with random weights that finds as many boxes as it may."""
    cfg = Config.fromfile(CONFIGS / variant.config)
    init_default_scope("mmdet")
    cfg.model.backbone.weights = None
    # One size for all rounds: multi-scale training would compare different sizes.
    cfg.model.data_preprocessor.batch_augments = None
    cfg.model.test_cfg.update(variant.test_cfg)
    # Untrained scores are tiny; without a threshold every picture keeps max_per_img boxes.
    cfg.model.test_cfg.score_thr = 0.0
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    if model.bbox_head.branch is not None:
        model.set_stage(2)
        with torch.no_grad():
            for parameter in model.bbox_head.branch.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
    return cfg, model.to(device).eval()


def picture(cfg: Config, size: int) -> dict[str, Any]:
    """A noise picture after the test pipeline's letterbox, as one batch."""
    from aqf_det.datasets import Letterbox, PackWeightedDetInputs

    image = np.random.default_rng(0).integers(0, 256, (size * 3 // 4, size, 3), dtype=np.uint8)
    results = {"img": image, "img_shape": image.shape[:2], "ori_shape": image.shape[:2]}
    results = PackWeightedDetInputs()(Letterbox(size)(results))
    return pseudo_collate([results])


def timed(run: Callable[[], Any], device: str) -> float:
    """Seconds of one call."""
    if device != "cpu":
        torch.cuda.synchronize()
    at = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - at


def predictor(variant: Variant, size: int, device: str) -> Callable[[], list[Any]]:
    """Predicts one whole picture."""
    cfg, model = build(variant, device)
    batch = picture(cfg, size)

    def run() -> list[Any]:
        with torch.inference_mode():
            return model.test_step(batch)

    return run


def measure_latency(size: int, rounds: int, device: str) -> dict[str, Any]:
    """Seconds per picture and ratios to the Gaussian detector."""
    runs = {name: predictor(variant, size, device) for name, variant in VARIANTS.items()}
    boxes = {name: len(run()[0].pred_instances) for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        rng.shuffle(order)
        for name in order:
            seconds[name].append(timed(runs[name], device))
    return {
        name: {
            "seconds": float(np.median(times)),
            "boxes": boxes[name],
            "ratio": asdict(Ratio.of(times, seconds[BASELINE])),
            "goal": VARIANTS[name].goal,
        }
        for name, times in seconds.items()
    }


def peak_megabytes(variant: Variant, size: int, device: str) -> float:
    """Memory that predicting one picture needs beyond the model and its libraries."""
    run = predictor(variant, size, device)
    if device != "cpu":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    run()  # libraries load and the allocator settles
    return peak_above_now(run)


def peak_above_now(run: Callable[[], Any]) -> float:
    """Megabytes by which the process grows at most during a call, beyond what it holds before."""
    forget = Path("/proc/self/clear_refs")
    if not forget.exists():
        raise RuntimeError("peak memory on the CPU needs Linux's /proc; pass --no-memory.")
    grown = []
    for _ in range(5):
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # free memory does not count as held
        forget.write_text("5")  # resets the high-water mark
        before = _resident("VmRSS")
        run()
        grown.append((_resident("VmHWM") - before) / 1e3)
    return float(np.median(grown))


def _resident(field: str) -> float:
    """Kilobytes of this process: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(field)))


def measure_memory(size: int, device: str) -> dict[str, float]:
    """Peak memory of every variant, each in a process of its own."""
    result = {}
    for name in VARIANTS:
        command = [sys.executable, __file__, "--memory-of", name, "--image-size", str(size)]
        command += ["--device", device, "--threads", str(torch.get_num_threads())]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        result[name] = float(output.split()[-1])
    return result


def training_set(root: Path, size: int, count: int) -> Config:
    """The training data set of configs/voc_qfr.py on generated scenes."""
    generate_demo_dataset(root, n_train=count, n_val=0, n_test=0, image_size=size // 32 * 32)
    cfg = Config.fromfile(CONFIGS / "voc_qfr.py")
    dataset = cfg.train_dataloader.dataset
    one = dataset.dataset.datasets[0]
    one.update(
        data_root=f"{root}/",
        ann_file="ImageSets/Main/train.txt",
        data_prefix={"sub_data_root": ""},
        metainfo={"classes": ("digit_0", "digit_4", "digit_7")},
    )
    dataset.dataset = one
    for step in dataset.pipeline:
        if step.type == "Letterbox":
            step.size = size
    return dataset


def measure_training(size: int, batch_size: int, rounds: int, device: str) -> dict[str, Any]:
    """A stage-2 step against data loading and the frozen trunk's forward pass."""
    cfg, model = build(VARIANTS["QFR, 9 levels"], device)
    model.train()
    optimizer = torch.optim.Adam(model.bbox_head.branch.parameters(), 2e-4)
    load_times, forward_times, step_times = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        data = DATASETS.build(training_set(Path(folder) / "scenes", size, 4 * batch_size))
        for turn in range(rounds + 1):
            first = turn * batch_size
            at = time.perf_counter()
            batch = pseudo_collate([data[(first + i) % len(data)] for i in range(batch_size)])
            load = time.perf_counter() - at

            def forward(batch: Any = batch) -> None:
                with torch.no_grad():
                    ready = model.data_preprocessor(batch, True)
                    model.bbox_head.hidden(model.extract_feat(ready["inputs"]))

            def step(batch: Any = batch) -> None:
                ready = model.data_preprocessor(batch, True)
                losses = model.loss(ready["inputs"], ready["data_samples"])
                optimizer.zero_grad()
                losses["loss_flow"].backward()
                optimizer.step()

            forward_time = timed(forward, device)
            step_time = timed(step, device)
            if turn:  # the first round warms up
                load_times.append(load)
                forward_times.append(forward_time)
                step_times.append(step_time)
    load, forward_all, step_all = map(np.array, (load_times, forward_times, step_times))
    return {
        "load_seconds": float(np.median(load)),
        "forward_seconds": float(np.median(forward_all)),
        "step_seconds": float(np.median(step_all)),
        "ratio": asdict(Ratio.of(list(load + step_all), list(load + forward_all))),
        "goal": TRAINING_GOAL,
        "batch_size": batch_size,
    }


def markdown(result: Mapping[str, Any]) -> str:
    """The report as a page."""
    lines = [
        "# What distributions cost a detector",
        "",
        "The detector of configs/voc_*.py with random weights, keeping as many boxes as it may: "
        "the worst case. Variants take turns; a ratio is the median over rounds.",
        "",
        f"{result['image_size']} x {result['image_size']} pixels, {result['threads']} thread(s), "
        f"{result['device']}, {result['rounds']} rounds; brackets are quartiles over rounds; "
        "memory is beyond the loaded model and varies by some 20 MB between processes.",
        "",
        "| prediction | ms | ratio | goal | boxes | peak memory MB | memory ratio |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    memory = result.get("memory") or {}
    for name, row in result["latency"].items():
        goal = f"{row['goal']:.2f}" if row["goal"] else ""
        here = memory.get(name)
        shown = [f"{here:.0f}", f"{here / memory[BASELINE]:.3f}"] if here else ["", ""]
        cells = [f"{1e3 * row['seconds']:.1f}", str(Ratio(**row["ratio"])), goal, str(row["boxes"])]
        lines.append(f"| {name} | {' | '.join(cells + shown)} |")
    training = result["training"]
    lines += [
        "",
        "| stage-2 training step | ms |",
        "|---|---:|",
        f"| data loading, batch of {training['batch_size']} | "
        f"{1e3 * training['load_seconds']:.0f} |",
        f"| forward pass of the frozen trunk | {1e3 * training['forward_seconds']:.0f} |",
        f"| whole step without loading | {1e3 * training['step_seconds']:.0f} |",
        f"| (loading + step) / (loading + forward), goal {training['goal']:.2f} | "
        f"{Ratio(**training['ratio'])} |",
        "",
        "```bash",
        "python tools/benchmark_det.py --markdown docs/results/detection_speed.md",
        "```",
        "",
    ]
    return "\n".join(lines)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--image-size", type=int, default=544)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=8, help="of the training step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-memory", action="store_true", help="leave out peak memory")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--markdown", type=Path, help="write a page with the tables here")
    parser.add_argument("--memory-of", choices=list(VARIANTS), help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure, print and write."""
    args = parse_args(argv)
    torch.set_num_threads(args.threads)
    if args.memory_of:
        print(peak_megabytes(VARIANTS[args.memory_of], args.image_size, args.device))
        return {}
    result = {
        "image_size": args.image_size,
        "threads": args.threads,
        "device": args.device,
        "rounds": args.rounds,
        "latency": measure_latency(args.image_size, args.rounds, args.device),
        "memory": None if args.no_memory else measure_memory(args.image_size, args.device),
        "training": measure_training(args.image_size, args.batch_size, args.rounds, args.device),
    }
    text = markdown(result)
    print(text)
    for path, content in ((args.json, json.dumps(result, indent=2) + "\n"), (args.markdown, text)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    return result


if __name__ == "__main__":
    main()
