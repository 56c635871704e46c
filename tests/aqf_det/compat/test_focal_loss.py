"""Focal losses against loops, and mmdet's focal loss on index targets."""

import pytest
import torch
from mmcv.ops import SigmoidFocalLoss, SoftmaxFocalLoss, sigmoid_focal_loss, softmax_focal_loss
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
    x = x.clone().requires_grad_()
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


@pytest.mark.parametrize("op", [SigmoidFocalLoss(2.0, 0.25), SoftmaxFocalLoss(2.0, 0.25)])
def test_an_ignored_row_or_no_row_at_all(op):
    x = torch.zeros(0, 4, requires_grad=True)
    if isinstance(op, SigmoidFocalLoss):
        op.reduction = "sum"
        loss = op(x, torch.zeros(0, dtype=torch.long))
        assert loss == 0
        loss.backward()
        assert x.grad.shape == (0, 4)
    else:
        x = logits(2).requires_grad_()
        loss = softmax_focal_loss(x, torch.tensor([-1, 1]), 2.0, 0.25, None, "sum")
        torch.testing.assert_close(
            loss, references.softmax_focal_loss(x, torch.tensor([-1, 1]), 2.0, 0.25, None).sum()
        )
        loss.backward()
        assert not x.grad[0].any() and x.grad[1].any()


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
def test_non_contiguous_input(kind):
    op, _, labels = PAIRS[kind]
    target = torch.tensor(labels)
    strided = logits().t().contiguous().t()
    pairs = torch.stack([target, target], dim=1)[:, 0]
    plain = loss_and_gradient(lambda x: op(x, target, 2.0, 0.25, None, "sum"), logits())
    result = loss_and_gradient(lambda x: op(x, pairs, 2.0, 0.25, None, "sum"), strided)
    torch.testing.assert_close(result, plain)


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
