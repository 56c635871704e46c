"""Predictions of joint distributions: exact samples and densities, marginals from samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..distributions import ScalarPredictive
from ..normal import level_to_base, log_density
from .prediction import Array, Prediction, _count

__all__ = ["JointPrediction"]


class JointPrediction(Prediction):
    """Joint distributions of several targets.

    Samples and the density are exact. Whatever concerns one target alone (quantiles, intervals,
    cdf, moments, CRPS) is computed from `DRAWS` quasi-random samples per row, the same for every
    row, so that it does not change from call to call.
    """

    DRAWS = 1024

    def _members(self, rows: Tensor, z: Tensor, pick: Tensor) -> Tensor:
        """Values (S, n, d) of base points z (S, 1 or n, d); sample s comes from member pick[s]."""
        model, recalibration = self._fitted.model, self._fitted.recalibration
        context = model.encoding(rows.to(model.space.loc)).unsqueeze(0)
        if recalibration is not None:
            z = recalibration.from_base(z)
        out = z.new_empty(len(z), len(rows), z.shape[-1])
        for k in range(model.members):
            own = pick == k
            if bool(own.any()):
                base = z[own].unsqueeze(1).expand(-1, 1, len(rows), -1)
                out[own] = model.flow(k).from_base(base, context).squeeze(1)
        return out

    def _final(self, rows: Tensor, bulk: bool = False) -> ScalarPredictive:
        model = self._fitted.model
        z = _quasi_normal(self.DRAWS, model.outputs or 1).to(model.space.loc).unsqueeze(1)
        pick = torch.arange(self.DRAWS) % model.members
        # Neighbours in the sequence go to different members; shuffle so that no pattern remains.
        pick = pick[torch.randperm(self.DRAWS, generator=torch.Generator().manual_seed(1))]
        return SampledPredictive(self._members(rows, z, pick))

    def sample(self, n: int = 1, random_state: Any = None) -> Array:
        n = _count(n)
        model = self._fitted.model
        like = model.space.loc
        parts = []
        with self._seeded(random_state), torch.no_grad():
            for part in self._slices():
                rows = self._rows[part]
                z = torch.randn(n, len(rows), model.outputs or 1).to(like)
                pick = torch.randint(model.members, (n,))
                parts.append(self._members(rows, z, pick).movedim(0, 1).cpu())
        draws: Array = torch.cat(parts).double().numpy()
        return self._fitted.loc + self._fitted.scale * draws

    @torch.no_grad()
    def log_pdf(self, y: Any) -> Array:
        """Logarithm of the joint density at y (n, d): shape (n,)."""
        model, recalibration = self._fitted.model, self._fitted.recalibration
        values, _ = self._values(y)
        parts = []
        for part in self._slices():
            like = model.space.loc
            context = model.encoding(self._rows[part].to(like)).unsqueeze(0)
            v = values[part].to(like).unsqueeze(0)
            each = []
            for k in range(model.members):
                flow = model.flow(k)
                log_prob = flow.log_prob(v, context)
                if recalibration is not None:
                    z = flow.to_base(v, context)
                    w, log_slope = recalibration.to_base(z)
                    log_prob = log_prob + (log_density(w) - log_density(z) + log_slope).sum(-1)
                each.append(log_prob.squeeze(0))
            stacked = torch.stack(each)
            parts.append(torch.logsumexp(stacked, 0).cpu() - np.log(len(each)))
        log_pdf: Array = torch.cat(parts).double().numpy() - np.log(self._fitted.scale).sum()
        inside = np.broadcast_to(self._beyond(y) == 0, values.shape).all(-1)
        return np.where(inside, log_pdf, -np.inf)

    def event(self, below: Any = None, above: Any = None) -> Array:
        """P(above_j < Y_j <= below_j for every target j): shape (n,)."""
        if below is None and above is None:
            raise ValueError("say which event: below=, above=, or both.")
        top = self._values(np.inf if below is None else below)[0]
        bottom = self._values(-np.inf if above is None else above)[0]

        def run(dist: ScalarPredictive, part: slice) -> Tensor:
            assert isinstance(dist, SampledPredictive)
            draws = dist.draws
            inside = (draws <= top[part].to(draws)) & (draws > bottom[part].to(draws))
            return inside.all(-1).double().mean(0)

        return self._collect(run)

    def energy_score(self, y: Any) -> Array:
        """Energy score of the joint distribution at y (n, d), targets in their own units: (n,)."""
        from ..losses import energy_score

        values = torch.from_numpy(np.asarray(y, dtype=np.float64))
        loc, scale = torch.from_numpy(self._fitted.loc), torch.from_numpy(self._fitted.scale)

        def run(dist: ScalarPredictive, part: slice) -> Tensor:
            assert isinstance(dist, SampledPredictive)
            return energy_score(loc + scale * dist.draws.cpu(), values[part], reduction="none")

        return self._collect(run)


class SampledPredictive(ScalarPredictive):
    """Marginal distributions given by equally likely draws (S, *batch_shape)."""

    def __init__(self, draws: Tensor) -> None:
        self.draws = draws
        self.sorted = draws.sort(0).values
        super().__init__(draws.shape[1:], dtype=draws.dtype, device=draws.device)

    def quantiles(self, levels: Tensor) -> Tensor:
        # torch.quantile limits its size; midpoints (s + 1/2) / S are the levels of sorted draws.
        place = (levels * len(self.sorted) - 0.5).clamp(0, len(self.sorted) - 1)
        first = place.floor().long().clamp_max(len(self.sorted) - 2)
        share = self._outer(place - first)
        return torch.lerp(self.sorted[first], self.sorted[first + 1], share).movedim(0, -1)

    def _cdf(self, x: Tensor) -> Tensor:
        return (
            (self.draws <= x.unsqueeze(-len(self.batch_shape) - 1))
            .to(self.dtype)
            .mean(-len(self.batch_shape) - 1)
        )

    @property
    def mean(self) -> Tensor:
        return self.draws.mean(0)

    @property
    def variance(self) -> Tensor:
        return self.draws.var(0)

    def _exact_crps(self, x: Tensor) -> Tensor | None:
        from ..losses import sample_crps

        return sample_crps(self.draws, x, reduction="none")


def _quasi_normal(n: int, d: int) -> Tensor:
    """Low-discrepancy points of N(0, I), the same at every call: (n, d)."""
    engine: Any = torch.quasirandom.SobolEngine
    u = engine(d, scramble=True, seed=0).draw(n, dtype=torch.float64)
    return level_to_base(u.clamp(0.5 / n / n, 1 - 0.5 / n / n))
