"""A Pascal VOC data set that says what is wrong with the files instead of crashing in mid-epoch."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from mmdet.datasets import VOCDataset
from mmdet.registry import DATASETS
from mmengine.logging import MMLogger
from PIL import Image

from .checked import CheckedSamples, DatasetNotFoundError
from .transforms import CorruptSampleError

EXPECTED_TREE = """\
{folder}/
    JPEGImages/000001.jpg ...
    Annotations/000001.xml ...
    ImageSets/Main/trainval.txt, test.txt ..."""
HOW_TO_GET = (
    "Get VOC 2007 and 2012 from http://host.robots.ox.ac.uk/pascal/VOC/ (VOCtrainval_06-Nov-2007"
    ".tar, VOCtest_06-Nov-2007.tar, VOCtrainval_11-May-2012.tar), unpack them in one folder, which "
    "gives VOCdevkit/VOC2007 and VOCdevkit/VOC2012, and name that folder with --data-root or the "
    "environment variable AQF_DATA (default: data). The generated demo data set comes from "
    "`python -m aqf_det.datasets.demo_scenes data/demo`."
)


@DATASETS.register_module()
class VOCDetectionDataset(CheckedSamples, VOCDataset):
    """mmdet's VOC data set made robust.

    Boxes follow mmdet: 1 is subtracted from all four XML coordinates, fractions are kept. Boxes
    without area, with non-numeric coordinates or of classes not in ``metainfo`` are left out.
    Difficult objects, and in training boxes below ``filter_cfg['bbox_min_size']`` pixels, are
    marked to be ignored. With ``filter_cfg=dict(filter_empty_gt=True)`` training images without a
    usable object are dropped.

    Args:
        on_corrupt: ``"skip"`` names a damaged image or XML in a warning and goes on (another image
            in training, an empty image at test time); ``"raise"`` stops with
            :class:`CorruptSampleError`.
        **kwargs: As for ``mmdet.VOCDataset``.
    """

    def __init__(self, **kwargs: Any) -> None:
        self.dropped_boxes = 0
        super().__init__(**kwargs)

    def load_data_list(self) -> list[dict]:
        """Parse every XML named in the split file; see the class for what is left out."""
        self.cat2label = {name: i for i, name in enumerate(self._metainfo["classes"])}
        seen_names: set[str] = set()
        data_list = []
        for image_id in self._image_ids():
            root = Path(self.sub_data_root)
            xml_path = root / self.ann_subdir / f"{image_id}.xml"
            image_path = root / self.img_subdir / f"{image_id}.jpg"
            try:
                info, names = self._parse(xml_path, image_path)
            except (ET.ParseError, OSError, CorruptSampleError) as error:
                self.report_corrupt(f"annotation {xml_path}: {error}")
                continue
            seen_names |= names
            info.update(img_id=image_id, img_path=str(image_path), xml_path=str(xml_path))
            data_list.append(info)
        if not data_list:
            raise CorruptSampleError(f"no readable annotation is listed in {self.ann_file}.")
        if seen_names and not seen_names & set(self.cat2label):
            raise ValueError(
                f"none of the configured classes {list(self.cat2label)} occurs in {self.ann_file}; "
                f"the annotations name {sorted(seen_names)}. Set `metainfo=dict(classes=...)`."
            )
        if self.dropped_boxes:
            MMLogger.get_current_instance().warning(
                f"{self.ann_file}: left out {self.dropped_boxes} box(es) without area"
            )
        return data_list

    def filter_data(self) -> list[dict]:
        """In training apply ``filter_cfg``: ``filter_empty_gt`` and ``min_size`` (of the image)."""
        if self.test_mode:
            return self.data_list
        config = self.filter_cfg or {}
        drop_empty, min_size = config.get("filter_empty_gt", False), config.get("min_size", 0)
        kept = [
            info
            for info in self.data_list
            if min(info["width"], info["height"]) >= min_size
            and not (drop_empty and all(item["ignore_flag"] for item in info["instances"]))
        ]
        if not kept:
            raise ValueError(f"filter_cfg={config} leaves no training image of {self.ann_file}.")
        return kept

    def _image_ids(self) -> list[str]:
        path, root = Path(self.ann_file), Path(self.sub_data_root)
        for needed in (path, root / self.img_subdir, root / self.ann_subdir):
            if not needed.exists():
                tree = EXPECTED_TREE.format(folder=root)
                raise DatasetNotFoundError(
                    f"{needed} does not exist. Expected tree:\n{tree}\n{HOW_TO_GET}"
                )
        # Per-class lists ("000012 -1") carry a second column; the first is the image.
        lines = path.read_text().splitlines()
        ids = [line.split()[0] for line in lines if line.strip()]
        if not ids:
            raise CorruptSampleError(f"the split file {path} lists no image.")
        return ids

    def _parse(self, xml_path: Path, image_path: Path) -> tuple[dict, set[str]]:
        """Read one XML; return the image's record and the class names it mentions."""
        tree = ET.parse(xml_path).getroot()
        width, height = self._image_size(tree, image_path)
        instances, names = [], set()
        for item in tree.findall("object"):
            name = (item.findtext("name") or "").strip()
            names.add(name)
            if name not in self.cat2label:
                continue
            box = self._box(item)
            if box is None:
                self.dropped_boxes += 1
                continue
            small = min(box[2] - box[0], box[3] - box[1]) < (self.bbox_min_size or 0)
            difficult = (item.findtext("difficult") or "0").strip() == "1"
            ignored = difficult or (small and not self.test_mode)
            instances.append(
                {
                    "bbox": box,
                    "bbox_label": self.cat2label[name],
                    "ignore_flag": int(ignored),
                }
            )
        return {"width": width, "height": height, "instances": instances}, names

    @staticmethod
    def _image_size(tree: ET.Element, image_path: Path) -> tuple[int, int]:
        """Width and height from <size>, or from the image's header where the tag says nothing."""
        try:
            width, height = (int(tree.findtext(f"size/{key}", "")) for key in ("width", "height"))
        except ValueError:
            width = height = 0
        if min(width, height) < 1:
            with Image.open(image_path) as image:
                width, height = image.size
        return width, height

    @staticmethod
    def _box(item: ET.Element) -> list[float] | None:
        """The xyxy box of an <object>, or None when it has no area or no numbers."""
        try:
            corners = ("xmin", "ymin", "xmax", "ymax")
            box = [float(item.findtext(f"bndbox/{key}") or "nan") - 1 for key in corners]
        except ValueError:
            return None
        usable = all(map(math.isfinite, box)) and box[2] > box[0] and box[3] > box[1]
        return box if usable else None
