"""``flow_split``: the branch learns from images that the detector was not trained on.

A detector errs less on its own training images than on others, so a branch that learns from its
errors there is too sure of itself.
"""

from __future__ import annotations

import copy
from typing import Any

from mmengine.config import Config


def apply_flow_split(cfg: Config) -> None:
    """Turn the config's ``flow_split`` into data loaders; nothing is done without one.

    ``flow_split = 0.2`` keeps a fifth of the training images for stage 2 and trains stage 1 on the
    others; the held-out images are repeated so that an epoch of stage 2 is about as long as one of
    stage 1. ``flow_split = "VOC2007/ImageSets/Main/val.txt"`` names another split or annotation
    file of the training data set for stage 2.
    """
    split = cfg.get("flow_split")
    if split is None:
        return
    hooks = [hook for hook in cfg.get("custom_hooks", []) if hook.get("type") == "TwoStageHook"]
    if not hooks:
        raise ValueError("flow_split is for configs with a TwoStageHook among their custom_hooks.")
    if hooks[0].get("stage2_dataloader") is not None:
        raise ValueError("set either flow_split or TwoStageHook's stage2_dataloader, not both.")
    if isinstance(split, str):
        loader = other_split(cfg.train_dataloader, split)
    else:
        share = float(split)
        loader = _part(cfg.train_dataloader, share, held_out=True)
        times = max(1, round((1 - share) / share))
        if times > 1:
            loader["dataset"] = {
                "type": "RepeatDataset",
                "times": times,
                "dataset": loader["dataset"],
            }
        cfg.train_dataloader = _part(cfg.train_dataloader, share, held_out=False)
    hooks[0]["stage2_dataloader"] = loader
    # The loaders say it all; a saved config must not split once more.
    del cfg._cfg_dict["flow_split"]


def _part(loader: Any, share: float, held_out: bool) -> Any:
    """A loader of some of the images of another; what mixes images stays around them."""
    loader = copy.deepcopy(loader)
    outer = None if loader["dataset"]["type"] != "MultiImageMixDataset" else loader["dataset"]
    whole = loader["dataset"] if outer is None else outer["dataset"]
    part = {"type": "ImageSplit", "dataset": whole, "share": share, "held_out": held_out}
    (loader if outer is None else outer)["dataset"] = part
    return loader


def other_split(loader: Any, ann_file: str) -> Any:
    """The loader with images of another split of its data set.

    Of several joined data sets the one is taken to whose folder the split belongs.
    """
    loader = copy.deepcopy(loader)
    holder = loader
    while "dataset" in holder["dataset"]:
        holder = holder["dataset"]
    inner = holder["dataset"]
    leaves = inner.get("datasets", [inner])
    fitting = [leaf for leaf in leaves if ann_file.startswith(_folder(leaf))]
    if not fitting:
        folders = ", ".join(_folder(leaf) for leaf in leaves)
        raise ValueError(f"{ann_file} lies in none of the training data's folders: {folders}.")
    holder["dataset"] = {**fitting[0], "ann_file": ann_file}
    return loader


def _folder(dataset: Any) -> str:
    """Where the images of a data set lie below its root, "" where it does not say."""
    return str(dataset.get("data_prefix", {}).get("sub_data_root", ""))
