"""MobileNetV2 with taps at strides 8, 16 and 32."""

from __future__ import annotations

from pathlib import Path
from urllib.error import URLError

import torch
from mmdet.registry import MODELS
from mmengine.logging import MMLogger
from mmengine.model import BaseModule
from torch import Tensor, nn
from torchvision.models import MobileNet_V2_Weights, mobilenet_v2

TAPS = (6, 13, 18)


@MODELS.register_module()
class TappedMobileNetV2(BaseModule):
    """torchvision's MobileNetV2 without classifier, tapped after blocks 6, 13 and 18.

    At ``width=1`` the taps have 32, 96 and 1280 channels at strides 8, 16 and 32. Parameter names
    are torchvision's (``features.*``). ImageNet weights expect RGB / 255 with the usual ImageNet
    mean and standard deviation, which is what the shipped configs' preprocessor produces.

    Args:
        width: Channel multiplier.
        weights: ``None`` (random), ``"torchvision"`` (ImageNet, fetched from torchvision's hub) or
            the path of a file with ``features.*`` tensors. Only ``width=1`` has published weights.
        frozen_stages: The first ``frozen_stages`` of the 19 blocks stay as they are: no gradient,
            BatchNorm in evaluation mode.
        norm_eval: Keep every BatchNorm of the backbone in evaluation mode, for small batches.
    """

    def __init__(
        self,
        width: float = 1.0,
        weights: str | None = None,
        frozen_stages: int = 0,
        norm_eval: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= frozen_stages <= TAPS[-1] + 1:
            raise ValueError(f"frozen_stages must lie in [0, {TAPS[-1] + 1}], got {frozen_stages}.")
        self.features = mobilenet_v2(width_mult=width).features
        self.weights = weights
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.out_channels = tuple(_last_channels(self.features[i]) for i in TAPS)
        for parameter in self.features[:frozen_stages].parameters():
            parameter.requires_grad_(False)

    def init_weights(self) -> None:
        """Load ``weights`` where given; torchvision's own initialisation has run otherwise."""
        if self.weights is None:
            return
        state = {k: v for k, v in read_weights(self.weights).items() if k.startswith("features.")}
        own = {k: v.shape for k, v in self.state_dict().items()}
        if {k: v.shape for k, v in state.items()} != own:
            raise ValueError(
                f"the weights {self.weights!r} do not fit this MobileNetV2: their features.* "
                "tensors differ in name or shape (published weights need width=1)."
            )
        self.load_state_dict(state)
        MMLogger.get_current_instance().info(f"loaded MobileNetV2 weights from {self.weights}")

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (B, 3, H, W) -> three maps at strides 8, 16 and 32."""
        # Depthwise convolutions run about twice as fast on the CPU in this layout, which spreads to
        # every later map.
        x = x.contiguous(memory_format=torch.channels_last)
        maps = []
        for i, block in enumerate(self.features):
            x = block(x)
            if i in TAPS:
                maps.append(x)
        return tuple(maps)

    def train(self, mode: bool = True) -> TappedMobileNetV2:
        """Set the mode; frozen blocks, and with ``norm_eval`` every norm, stay in evaluation."""
        super().train(mode)
        self.features[: self.frozen_stages].eval()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self


def _last_channels(block: nn.Module) -> int:
    return [m.out_channels for m in block.modules() if isinstance(m, nn.Conv2d)][-1]


def read_weights(source: str) -> dict[str, Tensor]:
    """Tensors by name from torchvision's hub (``"torchvision"``) or from a local file."""
    if source == "torchvision":
        try:
            return MobileNet_V2_Weights.IMAGENET1K_V2.get_state_dict(
                check_hash=True, progress=False
            )
        except (URLError, OSError) as error:
            raise FileNotFoundError(
                f"cannot fetch ImageNet weights from torchvision's hub ({error}); give a local "
                "file as model.backbone.weights (or AQF_WEIGHTS), or None to train from scratch."
            ) from error
    if not Path(source).is_file():
        raise FileNotFoundError(
            f"backbone weights {source} do not exist; set model.backbone.weights to a file with "
            "MobileNetV2 tensors named features.*, to 'torchvision', or to None to train from "
            "scratch."
        )
    state = torch.load(source, map_location="cpu", weights_only=True)
    return state.get("state_dict", state)
