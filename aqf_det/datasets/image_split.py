"""A part of the images of a data set: detector and branch can be trained on different ones."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from mmdet.registry import DATASETS


@DATASETS.register_module()
class ImageSplit:
    """A random share of the images of another data set, or all others.

    The same share and seed split the same images in every run and process, so two of these with
    ``held_out`` true and false have no image in common and miss none.

    Args:
        dataset: Config of the data set.
        share: Share of the images that is held out, in (0, 1).
        held_out: Whether to give the held-out images or the others.
        seed: Of the choice.
        lazy_init: As for every mmengine data set.
    """

    def __init__(
        self,
        dataset: Mapping[str, Any],
        share: float,
        held_out: bool,
        seed: int = 0,
        lazy_init: bool = False,
    ) -> None:
        if not 0 < share < 1:
            raise ValueError(f"the share of held-out images must lie inside (0, 1), got {share}.")
        self.dataset = DATASETS.build(dataset)
        self.share, self.held_out, self.seed = share, held_out, seed
        self._index: np.ndarray | None = None
        if not lazy_init:
            self.full_init()

    @property
    def metainfo(self) -> dict[str, Any]:
        """That of the data set."""
        return copy.deepcopy(self.dataset.metainfo)

    def full_init(self) -> None:
        """Load the annotations and choose the images."""
        self.dataset.full_init()
        count = len(self.dataset)
        chosen = round(self.share * count)
        if not 0 < chosen < count:
            raise ValueError(
                f"a share of {self.share} of {count} images leaves nothing on one side."
            )
        order = np.random.default_rng(self.seed).permutation(count)
        self._index = np.sort(order[:chosen] if self.held_out else order[chosen:])

    @property
    def index(self) -> np.ndarray:
        """Positions of the images in the whole data set."""
        if self._index is None:
            self.full_init()
        assert self._index is not None
        return self._index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, number: int) -> Any:
        return self.dataset[int(self.index[number])]

    def get_data_info(self, number: int) -> dict[str, Any]:
        """The annotation of an image."""
        return self.dataset.get_data_info(int(self.index[number]))
