"""Several answers about one image, from members of an ensemble or views, become one.

All detections are pooled and suppressed together. Each one that is kept stands for an object; in
every answer its partner is the detection of the same class that overlaps it most, if the overlap is
one that would have been suppressed. Then, as for MC dropout,

    score         mean over all answers, 0 where there is no partner,
    box           mean over the partners,
    distribution  equal mixture over the partners.

The order of the answers plays no part, and answers that agree change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmdet.structures.bbox import bbox_overlaps
from torch import Tensor

from aqf_core.distributions import ScalarPredictive

from .box_distribution import BoxDistribution, StackedSides
from .prediction import Detections, suppress
from .prediction_options import PredictionOptions


class JoinedSides(StackedSides):
    """The passes of several distributions of the same boxes, one after the other."""

    def __init__(self, parts: Sequence[StackedSides]) -> None:
        self.parts = list(parts)
        first = self.parts[0]
        passes = sum(part.batch_shape[0] for part in self.parts)
        shape = (passes, *first.batch_shape[1:])
        super().__init__(shape, dtype=first.dtype, device=first.device)

    def _each(self, method: str, value: Tensor) -> list:
        """Results of all parts; a value for all passes alike has length 1 or nothing there."""
        counts = [part.batch_shape[0] for part in self.parts]
        alike = value.dim() < 3 or value.shape[-3] == 1
        values = [value] * len(counts) if alike else value.split(counts, -3)
        return [getattr(p, method)(v) for p, v in zip(self.parts, values, strict=True)]

    def from_base(self, z: Tensor) -> Tensor:
        return torch.cat(self._each("from_base", z), -3)

    def to_base(self, x: Tensor) -> Tensor:
        return torch.cat(self._each("to_base", x), -3)

    def base_and_log_prob(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, log_prob = zip(*self._each("base_and_log_prob", x), strict=True)
        return torch.cat(z, -3), torch.cat(log_prob, -3)

    def select(self, index: Tensor) -> JoinedSides:
        """The boxes at positions (M,) in every pass."""
        return JoinedSides([part.select(index) for part in self.parts])

    def single(self) -> ScalarPredictive:
        """The only pass, batch shape (N, 4)."""
        return self.parts[0].single()


def mixture(members: Sequence[BoxDistribution], weights: Tensor) -> BoxDistribution:
    """The mixture of M distributions of the same N boxes with weights (M, N), sum 1 over M."""
    passes = [member.passes for member in members]
    first = torch.tensor([0, *passes]).cumsum(0).tolist()

    def sampler(z: Tensor, which: Tensor) -> Tensor:
        result = z.new_zeros(len(z), members[0].boxes, 4)
        for member, start in zip(members, first, strict=False):
            mine = ((which >= start) & (which < start + member.passes)).nonzero().flatten()
            result[mine] = member.sampler(z[mine], which[mine] - start).to(result)
        return result

    sides = [member.marginals for member in members if member.marginals is not None]
    # Each member shares its weight among its own passes.
    within = [
        torch.full_like(w, 1 / member.passes).expand(member.passes, -1)
        if member.weights is None
        else member.weights
        for member, w in zip(members, weights, strict=True)
    ]
    return BoxDistribution(
        sum(passes),
        members[0].boxes,
        sampler,
        JoinedSides(sides) if len(sides) == len(members) else None,
        members[0].like,
        torch.cat([w * part for w, part in zip(weights, within, strict=True)]),
    )


def fuse(found: Sequence[Detections], options: PredictionOptions) -> Detections:
    """One answer from several, all in the same pixels."""
    answers = [answer for answer in found if len(answer)]
    if len(found) == 1 or not answers:
        return found[0]
    boxes = torch.cat([answer.boxes for answer in answers])
    scores = torch.cat([answer.scores for answer in answers])
    labels = torch.cat([answer.labels for answer in answers])
    kept = suppress(boxes, scores, labels, options)
    limit = float(options.nms.get("iou_threshold", 0.5))
    partner, present, start = [], [], 0
    for answer in answers:
        overlap = bbox_overlaps(boxes[kept], answer.boxes)
        overlap[labels[kept][:, None] != answer.labels[None]] = -1.0
        # A detection is its own partner, even one without area.
        number = torch.arange(start, start + len(answer), device=kept.device)
        overlap[kept[:, None] == number] = 2.0
        start += len(answer)
        best, index = overlap.max(1)
        partner.append(index)
        present.append(best > limit)
    has = torch.stack(present).to(boxes)
    weights = has / has.sum(0)
    pairs = list(zip(answers, partner, strict=True))
    merged = Detections(
        (weights[..., None] * torch.stack([a.boxes[i] for a, i in pairs])).sum(0),
        (has * torch.stack([a.scores[i] for a, i in pairs])).sum(0) / len(found),
        labels[kept],
        mixture([a.distribution.select(i) for a, i in pairs], weights),
    )
    order = merged.scores.argsort(descending=True, stable=True)
    return merged.select(order[merged.scores[order] > options.score_thr][: options.max_per_img])
