"""Focal losses against loops, and mmdet's focal loss on index targets."""

import pytest
import torch
from mmcv.ops import sigmoid_focal_loss, softmax_focal_loss
from mmdet.models.losses import FocalLoss
from torch import Tensor

from aqf_det.compat.ops import sigmoid_focal_loss_forward
from tests.aqf_det.compat import references
from tests.aqf_det.compat.fake_gpu import OnGpu, pretend_there_is_a_gpu

WEIGHTS = [None, torch.tensor([0.5, 2.0, 1.0, 0.1], dtype=torch.float64)]
PAIRS = {
    "sigmoid": (sigmoid_focal_loss, references.sigmoid_focal_loss, [0, 3, 4, 1, 4]),
    "softmax": (softmax_focal_loss, references.softmax_focal_loss, [0, 3, 2, 1, 3]),
}


def logits(n: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(n, 4, generator=generator, dtype=torch.float64) * 2).to(dtype)


def loss_and_gradient(loss_of, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    loss = loss_of(x)
    return loss.detach(), torch.autograd.grad(loss, x)[0]


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("weight", WEIGHTS, ids=["unweighted", "weighted"])
@pytest.mark.parametrize(("gamma", "alpha"), [(2.0, 0.25), (0.0, 0.5), (0.5, 0.9)])
def test_losses_follow_the_loop(kind, gamma, alpha, weight):
    op, reference, labels = PAIRS[kind]
    target = torch.tensor(labels)
    result = loss_and_gradient(lambda x: op(x, target, gamma, alpha, weight, "sum"), logits())
    expected = loss_and_gradient(
        lambda x: reference(x, target, gamma, alpha, weight).sum(), logits()
    )
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("kind", PAIRS)
def test_reductions(kind):
    op, reference, labels = PAIRS[kind]
    target = torch.tensor(labels)
    by_loop = reference(logits(), target, 2.0, 0.25, None)
    torch.testing.assert_close(op(logits(), target, 2.0, 0.25, None, "mean"), by_loop.sum() / 5)
    if kind == "sigmoid":
        torch.testing.assert_close(op(logits(), target, 2.0, 0.25, None, "none"), by_loop)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [("sigmoid", []), ("sigmoid", [4]), ("softmax", []), ("softmax", [3]), ("softmax", [-1, 1])],
    ids=["sigmoid no row", "sigmoid one row", "no row", "one row", "an ignored row"],
)
def test_no_row_one_row_and_an_ignored_row_follow_the_loop(kind, labels):
    op, reference, _ = PAIRS[kind]
    x, target = logits(len(labels)), torch.tensor(labels, dtype=torch.long)
    result = loss_and_gradient(lambda x: op(x, target, 2.0, 0.25, None, "sum"), x)
    expected = loss_and_gradient(lambda x: reference(x, target, 2.0, 0.25, None).sum(), x)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("kind", PAIRS)
def test_extreme_logits_stay_finite(kind):
    op, _, _ = PAIRS[kind]
    x = torch.tensor([[1e4, -1e4, 0.0, 50.0], [-1e4, 1e4, -50.0, 0.0]])
    for gamma in (0.0, 0.5, 2.0):
        loss, gradient = loss_and_gradient(
            lambda x, gamma=gamma: op(x, torch.tensor([0, 0]), gamma, 0.25, None, "sum"), x
        )
        assert loss.isfinite() and gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sigmoid_focal_loss_in_half_precision_is_rounded_once(dtype):
    x, target = logits(dtype=dtype), torch.tensor([0, 3, 4, 1, 4])
    loss = sigmoid_focal_loss(x, target, 2.0, 0.25, None, "none")
    exact = references.sigmoid_focal_loss(x.double(), target, 2.0, 0.25, None)
    assert loss.dtype == dtype
    torch.testing.assert_close(loss, exact.to(dtype))
    _, gradient = loss_and_gradient(
        lambda x: sigmoid_focal_loss(x, target, 2.0, 0.25, None, "sum"), x
    )
    _, exact_gradient = loss_and_gradient(
        lambda x: references.sigmoid_focal_loss(x, target, 2.0, 0.25, None).sum(), x.double()
    )
    torch.testing.assert_close(gradient, exact_gradient.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_softmax_focal_loss_in_half_precision(dtype):
    # mmcv itself takes the softmax in half precision, so only its precision can be asked for.
    x, target = logits(dtype=dtype), torch.tensor([0, 3, 2, 1, 3])
    loss, gradient = loss_and_gradient(
        lambda x: softmax_focal_loss(x, target, 2.0, 0.25, None, "sum"), x
    )
    exact, exact_gradient = loss_and_gradient(
        lambda x: references.softmax_focal_loss(x, target, 2.0, 0.25, None).sum(), x.double()
    )
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(loss.double(), exact, rtol=tolerance, atol=0)
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", PAIRS)
def test_non_contiguous_input_follows_the_loop(kind):
    op, reference, labels = PAIRS[kind]
    strided = logits().t().contiguous().t()
    target = torch.stack([torch.tensor(labels)] * 2, dim=1)[:, 0]
    assert not strided.is_contiguous() and not target.is_contiguous()
    result = loss_and_gradient(lambda x: op(x, target, 2.0, 0.25, None, "sum"), strided)
    expected = loss_and_gradient(lambda x: reference(x, target, 2.0, 0.25, None).sum(), strided)
    torch.testing.assert_close(result, expected)


def test_mmdets_focal_loss_on_a_gpu_goes_through_the_python_op(monkeypatch):
    loss_module = FocalLoss()
    x, target = logits(dtype=torch.float32), torch.tensor([0, 3, 4, 1, 4])
    expected = loss_module(x, target, avg_factor=2.0)  # mmdet's own formula, CPU only
    calls = []

    def counted(*args, **kwargs):
        calls.append(1)
        return sigmoid_focal_loss_forward(*args, **kwargs)

    monkeypatch.setattr("mmcv._ext.sigmoid_focal_loss_forward", counted)
    pretend_there_is_a_gpu(monkeypatch)
    result = loss_module(x.as_subclass(OnGpu), target, avg_factor=2.0)
    assert calls == [1]
    torch.testing.assert_close(result.as_subclass(Tensor), expected)
