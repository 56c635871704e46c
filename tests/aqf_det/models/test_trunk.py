"""Backbone, neck, grid, coder and assigner."""

from __future__ import annotations

from pathlib import Path
from urllib.error import URLError

import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from mmengine.config import Config
from torchvision.models import mobilenet_v2

from aqf_det.models import ScaleCentreAssigner, SeparableYOLONeck, TappedMobileNetV2
from aqf_det.models.coder import decode_sides, encode_sides, make_grid

CONFIGS = Path(__file__).parents[3] / "configs"


def test_taps_have_the_published_channels_and_strides() -> None:
    backbone = TappedMobileNetV2().eval()
    maps = backbone(torch.zeros(1, 3, 64, 96))
    assert [tuple(m.shape[1:]) for m in maps] == [(32, 8, 12), (96, 4, 6), (1280, 2, 3)]
    assert backbone.out_channels == (32, 96, 1280)


def test_narrow_backbone_reports_its_channels() -> None:
    backbone = TappedMobileNetV2(width=0.35).eval()
    maps = backbone(torch.zeros(1, 3, 64, 64))
    assert backbone.out_channels == tuple(m.shape[1] for m in maps)


def test_local_weights_are_loaded_by_torchvision_names(tmp_path: Path) -> None:
    donor = TappedMobileNetV2(width=0.25)
    state = {**donor.state_dict(), "classifier.1.weight": torch.zeros(3, 3)}
    torch.save(state, tmp_path / "w.pth")
    backbone = TappedMobileNetV2(width=0.25, weights=str(tmp_path / "w.pth"))
    backbone.init_weights()
    for name, value in donor.state_dict().items():
        assert torch.equal(backbone.state_dict()[name], value)


def test_unfit_or_missing_weights_are_named(tmp_path: Path) -> None:
    torch.save(TappedMobileNetV2(width=0.25).state_dict(), tmp_path / "w.pth")
    with pytest.raises(ValueError, match=r"do not fit.*width=1"):
        TappedMobileNetV2(width=0.5, weights=str(tmp_path / "w.pth")).init_weights()
    with pytest.raises(FileNotFoundError, match=r"absent\.pth do not exist"):
        TappedMobileNetV2(weights="absent.pth").init_weights()


def test_imagenet_weights_come_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network: the hub's answer is replaced, its address and name are torchvision's."""
    asked = []

    def answer(url: str, **kwargs: object) -> dict[str, torch.Tensor]:
        asked.append(url)
        if len(asked) > 1:
            raise URLError("no route")
        return mobilenet_v2().state_dict()

    monkeypatch.setattr(torchvision.models._api, "load_state_dict_from_url", answer)
    backbone = TappedMobileNetV2(weights="torchvision")
    before = backbone.features[0][0].weight.clone()
    backbone.init_weights()
    assert "mobilenet_v2" in asked[0] and not torch.equal(before, backbone.features[0][0].weight)
    with pytest.raises(FileNotFoundError, match=r"no route.*AQF_WEIGHTS"):
        backbone.init_weights()


def test_frozen_blocks_stay_in_evaluation_mode() -> None:
    backbone = TappedMobileNetV2(width=0.25, frozen_stages=4).train()
    assert not any(m.training for block in backbone.features[:4] for m in block.modules())
    assert all(m.training for block in backbone.features[4:] for m in block.modules())
    assert not any(p.requires_grad for p in backbone.features[:4].parameters())
    norm_eval = TappedMobileNetV2(width=0.25, norm_eval=True).train()
    norms = [m for m in norm_eval.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert norms and not any(m.training for m in norms)


def test_neck_keeps_resolutions_for_odd_maps() -> None:
    neck = SeparableYOLONeck((8, 24, 32), (8, 12, 16)).eval()
    maps = [torch.zeros(1, 8, 9, 13), torch.zeros(1, 24, 5, 7), torch.zeros(1, 32, 3, 4)]
    out = neck(maps)
    assert [tuple(m.shape[1:]) for m in out] == [(8, 9, 13), (12, 5, 7), (16, 3, 4)]


def test_the_paper_detector_has_6_8_million_parameters() -> None:
    from mmdet.registry import MODELS

    cfg = Config.fromfile(CONFIGS / "voc_gaussian.py")
    cfg.model.backbone.weights = None
    count = sum(p.numel() for p in MODELS.build(cfg.model).parameters())
    assert 6.7e6 < count < 6.9e6


@given(
    t=st.lists(st.floats(-6, 6), min_size=4, max_size=4),
    stride=st.sampled_from([8.0, 16.0, 32.0]),
    x=st.floats(0, 500),
)
def test_sides_round_trip_and_always_have_area(t: list[float], stride: float, x: float) -> None:
    target = torch.tensor([t], dtype=torch.float64)
    centre, side = torch.tensor([[x, x / 2]]).double(), torch.tensor([stride]).double()
    boxes = decode_sides(target, centre, side)
    assert bool((boxes[:, 2:] > boxes[:, :2]).all())
    torch.testing.assert_close(encode_sides(boxes, centre, side), target, rtol=1e-6, atol=1e-6)


def test_every_coordinate_depends_on_its_own_output_only_and_grows_outward() -> None:
    t = torch.zeros(1, 4, requires_grad=True)
    centre, stride = torch.tensor([[40.0, 40.0]]), torch.tensor([8.0])
    jacobian = torch.autograd.functional.jacobian(lambda v: decode_sides(v, centre, stride)[0], t)[
        :, 0
    ]
    assert torch.equal(jacobian, torch.diag(torch.tensor([-8.0, -8.0, 8.0, 8.0])))


def test_grid_order_is_level_row_column_slot() -> None:
    grid = make_grid([(2, 3), (1, 2)], [8, 16], 2)
    assert len(grid) == 2 * 3 * 2 + 1 * 2 * 2
    level, y, x, slot = grid.locate(torch.arange(len(grid)))
    assert level.tolist() == [0] * 12 + [1] * 4
    assert y[:12].tolist() == [0] * 6 + [1] * 6
    assert x[12:].tolist() == [0, 0, 1, 1]
    assert slot.tolist() == [0, 1] * 8
    stride = torch.tensor([8.0, 16.0])[level]
    expected = torch.stack([x + 0.5, y + 0.5], -1) * stride[:, None]
    assert torch.equal(grid.centre, expected)


def _assign(boxes: list[list[float]], limits: tuple[float, float] = (30, 90)):
    grid = make_grid([(16, 16), (8, 8), (4, 4)], [8, 16, 32], 3)
    b = torch.tensor(boxes).reshape(-1, 4)
    labels = torch.arange(len(b))
    found = ScaleCentreAssigner(limits).assign(grid, [b], [labels], [torch.ones(len(b))])
    return grid, found


def test_assigner_takes_the_level_of_the_size_and_the_cell_of_the_centre() -> None:
    grid, found = _assign(
        [[0, 0, 30, 30], [0, 0, 30.2, 30.2], [0, 0, 90, 90], [10, 10, 101, 101], [0, 0, 9, 100]]
    )
    level, y, x, slot = grid.locate(found.index)
    assert level.tolist() == [0, 1, 1, 2, 0]
    assert x.tolist() == [1, 0, 2, 1, 0]
    assert y.tolist() == [1, 0, 2, 1, 6]
    assert slot.tolist() == [0] * 5


def test_objects_of_one_cell_take_its_slots_and_the_fourth_is_left_out() -> None:
    box = [40.0, 40.0, 60.0, 60.0]
    grid, found = _assign([box] * 4 + [[0.0, 0.0, 10.0, 10.0]])
    assert found.labels.tolist() == [0, 1, 2, 4]
    assert grid.slot[found.index].tolist() == [0, 1, 2, 0]


def test_assigner_survives_no_objects_no_area_and_centres_outside() -> None:
    _, empty = _assign([])
    assert len(empty) == 0 and empty.boxes.shape == (0, 4)
    grid, found = _assign(
        [[5, 5, 5, 20], [5, 5, float("nan"), 9], [-40, -40, 20, 20], [120, 120, 150, 150]]
    )
    assert found.labels.tolist() == [2, 3]
    _, y, x, _ = grid.locate(found.index)
    assert x.tolist() == [0, 15] and y.tolist() == [0, 15]


def test_limits_must_ascend() -> None:
    with pytest.raises(ValueError, match="ascending"):
        ScaleCentreAssigner((90, 30))
