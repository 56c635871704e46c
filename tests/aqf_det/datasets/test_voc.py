"""The VOC data set names damaged files and never stops an epoch because of one."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from mmdet.registry import DATASETS
from mmengine.dataset import pseudo_collate
from mmengine.registry import init_default_scope
from torch.utils.data import DataLoader

from aqf_det.datasets import CorruptSampleError, DatasetNotFoundError
from aqf_det.datasets.demo_scenes import CLASSES, generate_demo_dataset

LOAD = [{"type": "LoadCheckedImage"}, {"type": "LoadAnnotations", "with_bbox": True}]
PIPELINE = [*LOAD, {"type": "Letterbox", "size": 96}, {"type": "PackWeightedDetInputs"}]


@pytest.fixture(autouse=True)
def _mmdet_scope():
    init_default_scope("mmdet")


@pytest.fixture
def root(tmp_path):
    return generate_demo_dataset(tmp_path / "scenes", 6, 1, 3)


def build(root, **changes):
    config = {
        "type": "VOCDetectionDataset",
        "data_root": str(root),
        "ann_file": "ImageSets/Main/train.txt",
        "data_prefix": {"sub_data_root": ""},
        "metainfo": {"classes": CLASSES},
        "pipeline": PIPELINE,
    }
    return DATASETS.build({**config, **changes})


def edit_boxes(path, change):
    tree = ET.parse(path)
    change(tree)
    tree.write(path)


def test_loads_a_batch_with_fractional_boxes(root):
    dataset = build(root)
    assert len(dataset) == 6
    xml = ET.parse(root / "Annotations/train_00000.xml").getroot()
    written = [float(xml.findtext(f"object/bndbox/{k}")) for k in ("xmin", "ymin", "xmax", "ymax")]
    info = dataset.get_data_info(0)
    assert info["instances"][0]["bbox"] == pytest.approx([value - 1 for value in written])
    batch = next(iter(DataLoader(dataset, batch_size=6, collate_fn=pseudo_collate)))
    assert batch["inputs"][0].shape == (3, 96, 96)
    assert sum(len(item.gt_instances) for item in batch["data_samples"]) >= 6


def test_missing_root_shows_the_tree(tmp_path):
    with pytest.raises(DatasetNotFoundError) as error:
        build(tmp_path / "nowhere", data_prefix={"sub_data_root": "VOC2007/"})
    message = str(error.value)
    for part in ("nowhere", "VOC2007/", "JPEGImages", "Annotations", "ImageSets/Main", "AQF_DATA"):
        assert part in message


def test_unknown_classes_are_refused_by_name(root):
    with pytest.raises(ValueError, match=r"digit_\d.*metainfo"):
        build(root, metainfo={"classes": ("cat",)})


def test_class_subset_leaves_other_objects_out(root):
    full, part = build(root), build(root, metainfo={"classes": (CLASSES[0],)})
    labels = [label for i in range(len(full)) for label in full.get_cat_ids(i)]
    kept = [label for i in range(len(part)) for label in part.get_cat_ids(i)]
    assert 0 < labels.count(0) < len(labels)
    assert kept == [0] * labels.count(0)


def test_corrupt_xml_is_skipped_or_refused(root):
    (root / "Annotations/train_00002.xml").write_text("<annotation><object>")
    (root / "Annotations/train_00003.xml").unlink()
    assert len(build(root)) == 4
    with pytest.raises(CorruptSampleError, match="train_00002.xml"):
        build(root, on_corrupt="raise")
    with pytest.raises(ValueError, match="on_corrupt"):
        build(root, on_corrupt="ignore")


@pytest.mark.parametrize("workers", [0, 2])
def test_truncated_image_never_stops_an_epoch(root, workers):
    path = root / "JPEGImages/train_00001.jpg"
    path.write_bytes(path.read_bytes()[:900])
    loader = DataLoader(build(root), batch_size=2, collate_fn=pseudo_collate, num_workers=workers)
    ids = [item.img_id for batch in loader for item in batch["data_samples"]]
    assert len(ids) == 6 and "train_00001" not in ids
    with pytest.raises(CorruptSampleError, match="train_00001.jpg"):
        build(root, on_corrupt="raise")[1]


def test_damaged_test_image_counts_as_an_empty_one(root):
    (root / "JPEGImages/test_00001.jpg").write_bytes(b"")
    dataset = build(root, ann_file="ImageSets/Main/test.txt", test_mode=True)
    samples = [dataset[i]["data_samples"] for i in range(3)]
    assert [item.img_id for item in samples] == ["test_00000", "test_00001", "test_00002"]
    assert [len(item.gt_instances) > 0 for item in samples] == [True, False, True]


def test_zero_area_boxes_are_dropped_and_empty_images_kept_or_filtered(root):
    def flatten(tree):
        for item in tree.getroot().findall("object"):
            item.find("bndbox/xmax").text = item.findtext("bndbox/xmin")

    edit_boxes(root / "Annotations/train_00000.xml", flatten)
    kept = build(root)
    assert len(kept) == 6 and kept.dropped_boxes >= 1
    assert len(kept[0]["data_samples"].gt_instances) == 0
    assert len(build(root, filter_cfg={"filter_empty_gt": True})) == 5


def test_difficult_and_small_objects_are_ignored_not_lost(root):
    def mark(tree):
        for item in tree.getroot().findall("object"):
            item.find("difficult").text = "1"

    edit_boxes(root / "Annotations/train_00000.xml", mark)
    data = build(root)[0]["data_samples"]
    assert len(data.gt_instances) == 0 and len(data.ignored_instances) > 0
    assert len(build(root, filter_cfg={"filter_empty_gt": True})) == 5
    with pytest.raises(ValueError, match="leaves no training image"):
        build(root, filter_cfg={"filter_empty_gt": True, "bbox_min_size": 500})


def test_size_tag_may_be_missing(root):
    def drop(tree):
        tree.getroot().remove(tree.getroot().find("size"))

    edit_boxes(root / "Annotations/train_00000.xml", drop)
    info = build(root, on_corrupt="raise").get_data_info(0)
    assert (info["width"], info["height"]) == (160, 160)


@pytest.mark.parametrize("value", ["0", "wide"])
def test_a_size_that_says_nothing_is_read_from_the_image(root, value):
    edit_boxes(
        root / "Annotations/train_00000.xml",
        lambda tree: setattr(tree.getroot().find("size/width"), "text", value),
    )
    info = build(root, on_corrupt="raise").get_data_info(0)
    assert (info["width"], info["height"]) == (160, 160)


def test_mixup_around_the_data_set(root):
    inner = build(root, pipeline=LOAD)
    mixed = DATASETS.build(
        {
            "type": "MultiImageMixDataset",
            "dataset": inner,
            "pipeline": [{"type": "WeightedMixUp", "prob": 1.0}, *PIPELINE[2:]],
        }
    )
    for item in (mixed[i]["data_samples"].gt_instances for i in range(6)):
        assert len(item.weights) == len(item.bboxes) == len(item.labels)
        lam = float(item.weights[0])
        assert all(min(abs(w - lam), abs(w - 1 + lam)) < 1e-6 for w in item.weights.tolist())


def test_coco_gets_the_same_treatment(root, tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"instances_train2017\.json[\s\S]*AQF_DATA"):
        DATASETS.build(coco(tmp_path / "nowhere"))
    names = ["train_00000.jpg", "train_00001.jpg"]
    (root / "JPEGImages" / names[1]).write_bytes(b"")
    images = [
        {"id": i, "file_name": name, "width": 160, "height": 160} for i, name in enumerate(names)
    ]
    boxes = [
        {
            "id": i,
            "image_id": i,
            "category_id": 1,
            "bbox": [9, 9, 40, 30],
            "area": 1200,
            "iscrowd": 0,
        }
        for i in range(2)
    ]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "digit"}]}
    (root / "instances.json").write_text(json.dumps(content))
    dataset = DATASETS.build(coco(root))
    assert [dataset[i]["data_samples"].img_id for i in (0, 1, 1)] == [0, 0, 0]
    with pytest.raises(CorruptSampleError, match="train_00001"):
        DATASETS.build({**coco(root), "on_corrupt": "raise"})[1]
    (root / "instances.json").write_text('{"images": [')
    with pytest.raises(CorruptSampleError, match=r"instances\.json is no COCO annotation file"):
        DATASETS.build(coco(root))


def coco(root):
    return {
        "type": "CocoDetectionDataset",
        "data_root": str(root),
        "ann_file": "instances.json" if root.exists() else "annotations/instances_train2017.json",
        "data_prefix": {"img": "JPEGImages/"},
        "metainfo": {"classes": ("digit",)},
        "pipeline": PIPELINE,
    }
