"""From a config, a checkpoint and pictures to boxes with distributions, in one call."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmcv.transforms import Compose, LoadImageFromFile
from mmdet.registry import DATASETS, MODELS, TRANSFORMS
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import init_default_scope
from mmengine.runner.checkpoint import CheckpointLoader
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import nn

from aqf_core.errors import ShapeError

from .box_predictions import BoxPredictions
from .datasets.transforms import CorruptSampleError, LoadCheckedImage
from .models.checkpoint_kind import CheckpointKindError
from .models.detector import FlowDetection
from .quantile_tables import check_open_levels

IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")

#: Predictions are made on these levels too, so that any level in between can be asked for later.
TAIL_LEVELS = (0.0001, 0.0005, 0.001, 0.0025)
FINE_LEVELS = (
    *TAIL_LEVELS,
    *(i / 200 for i in range(1, 200)),
    *(1 - level for level in reversed(TAIL_LEVELS)),
)
DEFAULT_LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
#: Boxes drawn per detection where the four sides have a joint distribution.
JOINT_SAMPLES = 256

Picture = NDArray[np.uint8]
ImageInput = str | Path | NDArray[Any] | Image.Image
Inputs = ImageInput | Sequence[ImageInput]


def find_images(folder: str | Path) -> list[Path]:
    """The pictures of a folder (not of its subfolders), by name."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}.")
    found = sorted(p for p in folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise FileNotFoundError(
            f"the folder {folder} holds no picture ({', '.join(IMAGE_SUFFIXES)})."
        )
    return found


def load_image(image: ImageInput) -> tuple[Picture, str | None]:
    """A picture as (H, W, 3) BGR bytes, and the path it came from.

    Args:
        image: A path; a uint8 array, (H, W) grey or (H, W, 3) BGR as OpenCV and mmdet have them; or
            a PIL image.
    """
    if isinstance(image, str | Path):
        path = Path(image)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder; pass it alone, not inside a list.")
        if not path.is_file():
            raise FileNotFoundError(f"there is no picture {path}.")
        loaded = LoadCheckedImage().transform({"img_path": str(path)})
        return loaded["img"], str(path)
    if isinstance(image, Image.Image):
        # Turned as its camera says, as OpenCV does with files.
        upright = ImageOps.exif_transpose(image).convert("RGB")
        return np.ascontiguousarray(np.asarray(upright)[..., ::-1]), None
    if isinstance(image, np.ndarray):
        return _check_array(image), None
    raise TypeError(
        f"a picture must be a path, an array or a PIL image, got {type(image).__name__}."
    )


def _check_array(image: NDArray[Any]) -> Picture:
    if image.ndim == 2:
        image = np.repeat(image[..., None], 3, axis=2)
    if image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise ShapeError(f"a picture must have shape (H, W, 3) or (H, W), got {image.shape}.")
    if image.dtype != np.uint8:
        raise TypeError(f"a picture must hold uint8 values 0 ... 255, got {image.dtype}.")
    return np.ascontiguousarray(image)


class QuantileInferencer:
    """Predicts boxes and the distributions of their sides.

    Example:
        >>> inferencer = QuantileInferencer(config, checkpoint)        # doctest: +SKIP
        >>> found = inferencer("street.jpg", levels=[0.05, 0.5, 0.95])  # doctest: +SKIP
        >>> found.quantiles.shape                                       # doctest: +SKIP
        (7, 3, 4)

    Args:
        config: Path of the config the checkpoint was trained with, or the config itself.
        checkpoint: Path of the checkpoint.
        device: Where to run; a GPU when there is one, by default.

    Raises:
        FileNotFoundError: A file is missing.
        CheckpointKindError: The checkpoint belongs to another detector than the config describes.
    """

    def __init__(
        self,
        config: str | Path | Config,
        checkpoint: str | Path,
        device: str | torch.device | None = None,
    ) -> None:
        self.config = _read_config(config)
        init_default_scope(self.config.get("default_scope", "mmdet"))
        weights, meta = _read_checkpoint(checkpoint)
        self.model: Any = _build_detector(self.config)
        _load_weights(self.model, weights, checkpoint)
        default = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device or default)
        self.model.to(self.device).eval()
        self.pipeline = _build_pipeline(self.config)
        self.classes = _class_names(self.config, meta)
        self.head: Any = self.model.flow_head

    def __call__(
        self,
        inputs: Inputs,
        levels: float | Sequence[float] = DEFAULT_LEVELS,
        **options: Any,
    ) -> BoxPredictions | list[BoxPredictions]:
        """Predict.

        Args:
            inputs: One picture (path, array (H, W, 3) BGR, PIL image); or several: a folder, a list
                of pictures, or an array (B, H, W, 3).
            levels: Levels in (0, 1) of the returned ``quantiles``; results answer for any other
                level too.
            **options: See :meth:`stream`.

        Returns:
            A :class:`BoxPredictions` for one picture, a list of them for several.
        """
        single = not _is_collection(inputs)
        found = list(self.stream(inputs, levels, **options))
        return found[0] if single else found

    def stream(
        self,
        inputs: Inputs,
        levels: float | Sequence[float] = DEFAULT_LEVELS,
        *,
        score_threshold: float | None = None,
        samples: int | None = None,
        mc_passes: int | None = None,
        conformal: float | None = None,
        batch_size: int = 4,
    ) -> Iterator[BoxPredictions]:
        """Predict picture by picture, holding no more than a batch in memory.

        Args:
            inputs: As in a call.
            levels: As in a call.
            score_threshold: Smallest score of a detection; the config's by default.
            samples: Boxes drawn per detection from the joint distribution of its sides; 256 by
                default where the sides depend on each other, else none.
            mc_passes: Passes of MC dropout; the config's by default.
            conformal: With a calibrated checkpoint: the coverage that ``conformal_interval``,
                ``conformal_band``, ``conformal_outer`` and ``conformal_inner`` of the results keep.
            batch_size: Pictures per pass through the network.
        """
        wanted = check_open_levels(levels, "levels")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        overrides = self._overrides(wanted, score_threshold, samples, mc_passes)
        if conformal is not None:
            overrides["conformal"] = conformal
        pictures = iter(_pictures(inputs))
        while batch := list(islice(pictures, batch_size)):
            yield from self._predict(batch, wanted, overrides)

    def _overrides(
        self,
        levels: NDArray[np.float64],
        score_threshold: float | None,
        samples: int | None,
        mc_passes: int | None,
    ) -> dict[str, Any]:
        """What this call changes in the head's ``test_cfg``."""
        if samples is None:
            joint = self.head.flow.dependence == "autoregressive"
            samples = JOINT_SAMPLES if joint else 0
        overrides: dict[str, Any] = {
            "levels": tuple(sorted({*FINE_LEVELS, *levels.tolist()})),
            "n_samples": samples,
        }
        if score_threshold is not None:
            overrides["score_thr"] = score_threshold
        if mc_passes is not None:
            overrides["mc_passes"] = mc_passes
        return overrides

    def _predict(
        self, batch: Sequence[ImageInput], levels: NDArray[np.float64], overrides: dict[str, Any]
    ) -> Iterator[BoxPredictions]:
        loaded = [load_image(image) for image in batch]
        packed = [
            self.pipeline(
                {
                    "img": image,
                    "img_shape": image.shape[:2],
                    "ori_shape": image.shape[:2],
                    "img_path": path,
                    "img_id": i,
                }
            )
            for i, (image, path) in enumerate(loaded)
        ]
        before = self.head.test_cfg
        self.head.test_cfg = {**before, **overrides}
        try:
            with torch.inference_mode():
                found = self.model.test_step(pseudo_collate(packed))
        finally:
            self.head.test_cfg = before
        for sample, (image, _) in zip(found, loaded, strict=True):
            yield BoxPredictions.from_data_sample(sample, levels.tolist(), self.classes, image)


def _is_collection(inputs: Any) -> bool:
    """Whether several pictures were given: a folder, a sequence, or a batch array."""
    if isinstance(inputs, str | Path):
        return Path(inputs).is_dir()
    if isinstance(inputs, np.ndarray):
        return inputs.ndim == 4
    return isinstance(inputs, Iterable) and not isinstance(inputs, Image.Image)


def _pictures(inputs: Inputs) -> Iterable[ImageInput]:
    if not _is_collection(inputs):
        return [inputs]  # type: ignore[list-item]
    if isinstance(inputs, str | Path):
        return find_images(inputs)
    return inputs  # type: ignore[return-value]


def _read_config(config: str | Path | Config) -> Config:
    if isinstance(config, Config):
        return config
    if not Path(config).is_file():
        raise FileNotFoundError(f"there is no config {config}.")
    return Config.fromfile(str(config))


def _read_checkpoint(checkpoint: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Weights by name and the training run's metainfo."""
    if "://" not in str(checkpoint) and not Path(checkpoint).is_file():
        raise FileNotFoundError(
            f"there is no checkpoint {checkpoint}; tools/train.py writes them to its --work-dir."
        )
    try:
        content = CheckpointLoader.load_checkpoint(str(checkpoint), map_location="cpu")
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise CheckpointKindError(f"cannot read {checkpoint} as a checkpoint: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointKindError(f"{checkpoint} holds no weights but a {type(content).__name__}.")
    return content.get("state_dict", content), content.get("meta", {})


def _build_detector(config: Config) -> FlowDetection:
    model = config.get("model")
    if model is None:
        raise ValueError("the config describes no model.")
    model = model.copy()
    model.pop("init_cfg", None)
    detector: nn.Module = MODELS.build(model)
    if not isinstance(detector, FlowDetection):
        raise ValueError(
            f"the config's {type(detector).__name__} has no head that predicts quantiles; use a "
            "FlowDetector such as configs/voc_qfr.py, or add a flow to yours (docs/detection.md)."
        )
    return detector


def _load_weights(model: FlowDetection, weights: dict[str, Any], checkpoint: str | Path) -> None:
    try:
        missing, extra = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        if isinstance(error, CheckpointKindError):
            raise
        raise CheckpointKindError(
            f"{checkpoint} does not fit the config: {str(error).splitlines()[-1].strip()}"
        ) from error
    if missing or extra:
        what, names = ("lacks", missing) if missing else ("holds the unknown", extra)
        raise CheckpointKindError(
            f"{checkpoint} does not fit the config: it {what} {names[0]!r} (and {len(names) - 1} "
            "more); use the config it was trained with."
        )
    model.require_trained_branch()


def _build_pipeline(config: Config) -> Compose:
    """The config's test pipeline without reading images and annotations."""
    dataset = config.test_dataloader.dataset
    while "pipeline" not in dataset and "dataset" in dataset:
        dataset = dataset.dataset
    steps = [TRANSFORMS.build(step) for step in dataset.pipeline]
    kept = [
        step
        for step in steps
        if not isinstance(step, LoadImageFromFile) and "Annotations" not in type(step).__name__
    ]
    return Compose(kept)


def _class_names(config: Config, meta: dict[str, Any]) -> tuple[str, ...]:
    names = (meta.get("dataset_meta") or {}).get("classes")
    if names is None:
        dataset = DATASETS.build({**config.test_dataloader.dataset, "lazy_init": True})
        names = dataset.metainfo["classes"]
    return tuple(names)


__all__ = [
    "CheckpointKindError",
    "CorruptSampleError",
    "QuantileInferencer",
    "find_images",
    "load_image",
]
