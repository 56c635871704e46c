"""Sigmoid and softmax focal loss on class indices (https://arxiv.org/abs/1708.02002).

``weight`` is either empty or has one entry per class; a row whose target is no class
(background, index C, or a negative index) has no class weight and takes weight 1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from aqf_det.compat.ops.precision import compute_dtype


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Fill ``output`` with the loss of every logit.

    With p = sigmoid(input): ``-alpha (1-p)^gamma log p`` at the target class and
    ``-(1-alpha) p^gamma log(1-p)`` elsewhere, times the weight of the row's target class.

    Args:
        input: ``(N, C)`` logits.
        target: ``(N,)`` class indices in 0..C, C meaning background.
        weight: ``(C,)`` or empty.
        output: ``(N, C)``, written.
        gamma: Focusing exponent.
        alpha: Weight of the positives.
    """
    logits = input.to(compute_dtype(input))
    positive = _one_hot(target, input.size(1))
    log_p, log_q = F.logsigmoid(logits), F.logsigmoid(-logits)
    p, q = log_p.exp(), log_q.exp()
    loss = torch.where(positive, -alpha * q**gamma * log_p, -(1 - alpha) * p**gamma * log_q)
    output.copy_(loss * _row_weight(target, weight, logits)[:, None])


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Fill ``grad_input`` with d loss / d logit.

    ``-alpha (1-p)^gamma (1 - p - gamma p log p)`` at the target class and
    ``(1-alpha) p^gamma (p - gamma (1-p) log(1-p))`` elsewhere.
    """
    logits = input.to(compute_dtype(input))
    positive = _one_hot(target, input.size(1))
    log_p, log_q = F.logsigmoid(logits), F.logsigmoid(-logits)
    p, q = log_p.exp(), log_q.exp()
    grad = torch.where(
        positive,
        -alpha * q**gamma * (q - gamma * p * log_p),
        (1 - alpha) * p**gamma * (p - gamma * q * log_q),
    )
    grad_input.copy_(grad * _row_weight(target, weight, logits)[:, None])


def softmax_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Fill ``output`` with ``-alpha (1-p_t)^gamma log p_t`` times the target's class weight.

    Args:
        input: ``(N, C)`` class probabilities (softmax already applied).
        target: ``(N,)`` class indices; a negative one makes the row's loss zero.
        weight: ``(C,)`` or empty.
        output: ``(N,)``, written.
        gamma: Focusing exponent.
        alpha: Factor of the loss.
    """
    p, log_p, row_weight = _softmax_terms(input, target, weight)
    output.copy_(-alpha * (1 - p) ** gamma * log_p * row_weight)


def softmax_focal_loss_backward(
    input: Tensor,
    target: Tensor,
    weight: Tensor,
    buff: Tensor,
    grad_input: Tensor,
    gamma: float,
    alpha: float,
) -> None:
    """Fill ``grad_input`` with d loss / d logit, where ``input`` = softmax(logits).

    The gradient is ``b (1[c = t] - p_c)`` with ``b``, left in ``buff``, equal to
    ``alpha (gamma (1-p_t)^(gamma-1) p_t log p_t - (1-p_t)^gamma)``.
    """
    p, log_p, row_weight = _softmax_terms(input, target, weight)
    q = 1 - p
    # (1-p)^(gamma-1) log p tends to 0 at p = 1, where gamma < 1 would compute inf * 0.
    focus = torch.where(q > 0, gamma * q ** (gamma - 1) * p * log_p, torch.zeros_like(p))
    factor = alpha * (focus - q**gamma) * row_weight
    buff.copy_(factor)
    probabilities = input.to(factor.dtype)
    grad_input.copy_(factor[:, None] * (_one_hot(target, input.size(1)).to(factor) - probabilities))


def _softmax_terms(input: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    probabilities = input.to(compute_dtype(input))
    p = probabilities.gather(1, target.clamp(min=0)[:, None]).squeeze(1)
    log_p = p.clamp(min=torch.finfo(p.dtype).tiny).log()
    row_weight = _row_weight(target, weight, probabilities)
    return p, log_p, torch.where(target >= 0, row_weight, torch.zeros_like(row_weight))


def _one_hot(target: Tensor, n_classes: int) -> Tensor:
    return target[:, None] == torch.arange(n_classes, device=target.device)


def _row_weight(target: Tensor, weight: Tensor, like: Tensor) -> Tensor:
    if weight.numel() == 0:
        return like.new_ones(len(target))
    is_class = (target >= 0) & (target < len(weight))
    chosen = weight.to(like.dtype)[target.clamp(0, len(weight) - 1)]
    return torch.where(is_class, chosen, torch.ones_like(chosen))
