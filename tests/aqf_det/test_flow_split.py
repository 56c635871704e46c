"""The branch learns from images of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from mmdet.registry import DATASETS
from mmengine.config import Config
from mmengine.registry import init_default_scope

from aqf_det.datasets.demo_scenes import generate_demo_dataset
from aqf_det.engine.flow_split import apply_flow_split

ROOT = Path(__file__).resolve().parents[2]


def config(name: str, split: object) -> Config:
    cfg = Config.fromfile(ROOT / "configs" / name)
    cfg.flow_split = split
    return cfg


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate_demo_dataset(
        tmp_path_factory.mktemp("split") / "demo", n_train=10, n_val=3, n_test=2, image_size=128
    )


def ids(dataset: object) -> list[str]:
    return [dataset.get_data_info(i)["img_id"] for i in range(len(dataset))]


def test_a_share_splits_the_training_images(data: Path) -> None:
    init_default_scope("mmdet")
    cfg = config("demo_qfr.py", 0.2)
    cfg.train_dataloader.dataset.data_root = f"{data}/"
    whole = ids(DATASETS.build(cfg.train_dataloader.dataset))
    apply_flow_split(cfg)
    first = DATASETS.build(cfg.train_dataloader.dataset)
    second = DATASETS.build(cfg.custom_hooks[0].stage2_dataloader.dataset)
    assert len(first) == 8 and len(second) == 8  # two images, four times
    assert set(ids(first)) | set(ids(second)) == set(whole)
    assert not set(ids(first)) & set(ids(second)) and len(set(ids(second))) == 2
    assert first.metainfo["classes"] == second.metainfo["classes"]
    assert first[0]["inputs"].shape == second[7]["inputs"].shape
    assert "flow_split" not in cfg
    apply_flow_split(cfg)  # nothing left to do


def test_images_are_mixed_within_a_part_only() -> None:
    cfg = config("voc_qfr.py", 0.25)
    apply_flow_split(cfg)
    loader = cfg.custom_hooks[0].stage2_dataloader
    assert loader.dataset.type == "RepeatDataset" and loader.dataset.times == 3
    for dataset in (cfg.train_dataloader.dataset, loader.dataset.dataset):
        assert dataset.type == "MultiImageMixDataset"
        assert dataset.dataset.type == "ImageSplit"
        assert dataset.dataset.dataset.type == "ConcatDataset"


def test_a_split_is_read_from_the_folder_it_belongs_to() -> None:
    cfg = config("voc_qfr.py", "VOC2012/ImageSets/Main/val.txt")
    before = cfg.train_dataloader.to_dict()
    apply_flow_split(cfg)
    chosen = cfg.custom_hooks[0].stage2_dataloader.dataset.dataset
    assert chosen.ann_file == "VOC2012/ImageSets/Main/val.txt"
    assert chosen.data_prefix.sub_data_root == "VOC2012/" and chosen.pipeline
    assert cfg.train_dataloader.to_dict() == before


def test_wrong_splits_are_refused(data: Path) -> None:
    with pytest.raises(
        ValueError, match=r"none of the training data's folders: VOC2007/, VOC2012/"
    ):
        apply_flow_split(config("voc_qfr.py", "elsewhere/val.txt"))
    with pytest.raises(ValueError, match="TwoStageHook"):
        apply_flow_split(config("voc320_gaussian.py", 0.2))
    both = config("voc_qfr.py", 0.2)
    both.custom_hooks[0].stage2_dataloader = {}
    with pytest.raises(ValueError, match="not both"):
        apply_flow_split(both)
    init_default_scope("mmdet")
    for share, message in ((1.5, "inside"), (0.01, "nothing on one side")):
        cfg = config("demo_qfr.py", share)
        cfg.train_dataloader.dataset.data_root = f"{data}/"
        apply_flow_split(cfg)
        with pytest.raises(ValueError, match=message):
            DATASETS.build(cfg.train_dataloader.dataset)
