r"""Scores of a generative model: of its conditionals, of its samples, and against memorising.

CRPS      of every variable given the observed earlier ones, mean over variables; the quantile
          loss is half of it
U-CRPS    of every variable by itself: samples against observations, mean over variables
energy    E|X - y| - E|X - X'| / 2 of the joint samples, divided by the root of d
D-Loss    accuracy of an SVM that tells samples from test rows, cross-validated
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ... import metrics
from ...datasets.samples import Samples
from ...losses import sample_crps
from ..records import Record
from .models import GenerativeModel
from .training import mean_by_parts

__all__ = ["marginal_crps", "sample_energy", "score_model", "score_samples"]

TEST_ROWS = 10_000
SAMPLES = 4000
# Rows of each kind that a discriminator sees, and how many sets of samples it judges.
JUDGED, SETS = 1000, 5


def sample_energy(samples: Tensor, x: Tensor) -> float:
    r"""Energy score of samples (m, d) that serve every observation (n, d), over \(\sqrt d\).

    The fair estimator of `aqf_core.losses.energy_score`, whose second term is the same for all
    observations here.

    Example:
        >>> from aqf_core.losses import energy_score
        >>> samples, x = torch.randn(20, 3), torch.randn(5, 3)
        >>> each = energy_score(samples[:, None].expand(20, 5, 3), x)
        >>> abs(sample_energy(samples, x) * 3**0.5 - float(each)) < 1e-5
        True
    """
    m = len(samples)
    near, spread = _distances(x, samples), _distances(samples, samples)
    return float((near / (m * len(x)) - spread / (2 * m * (m - 1))) / x.shape[1] ** 0.5)


def _distances(rows: Tensor, others: Tensor) -> float:
    """Sum of the distances of all rows (n, d) from all others (m, d)."""
    return sum(float(torch.cdist(part, others).double().sum()) for part in torch.split(rows, 512))


def marginal_crps(samples: Tensor, x: Tensor) -> float:
    """CRPS of every variable's marginal, given by samples (m, d), at x (n, d); mean over both.

    Example:
        >>> marginal_crps(torch.tensor([[0.0], [0.0]]), torch.tensor([[1.0], [3.0]]))
        2.0
    """
    # |X - y| summed over all pairs: in the order of samples and observations together.
    total = 0.0
    for j in range(x.shape[1]):
        drawn, seen = samples[:, j].double().sort().values, x[:, j].double()
        below = torch.searchsorted(drawn, seen)
        sums = torch.cat([drawn.new_zeros(1), drawn.cumsum(0)])
        m = len(drawn)
        near = (seen * (2 * below - m) + sums[-1] - 2 * sums[below]).mean() / m
        # sample_crps at a point below all samples is mean - spread; take the spread from it.
        spread = (drawn - drawn[0]).mean() - sample_crps(drawn, drawn[0])
        total += float(near - spread)
    return total / x.shape[1]


def score_model(model: GenerativeModel, data: Samples, seed: int = 0) -> tuple[Record, Tensor]:
    """All scores of a model on the test rows.

    Args:
        model: trained.
        data: its training and test rows are used.
        seed: of the samples.

    Returns:
        The scores, in units of the data, and the samples (m, d) behind them.
    """
    torch.manual_seed(seed)
    model.eval()
    rows = torch.from_numpy(data.test[:TEST_ROWS])
    labels = None if data.labels is None else torch.from_numpy(data.labels[2][:TEST_ROWS])
    crps = mean_by_parts(model.crps, rows, labels) / data.unit
    scores = {
        "crps": crps,
        "quantile_loss": crps / 2,
        "log_likelihood": mean_by_parts(model.log_prob, rows, labels),
    }
    count = max(SAMPLES, SETS * min(JUDGED, len(rows)))
    samples = model.sample(count)
    return scores | score_samples(samples, data), samples


def score_samples(samples: Tensor, data: Samples) -> Record:
    """Scores of samples (m, d), whoever drew them, on the test rows.

    Samples that are not finite count as they are in `broken`, and are left out of the scores.

    Example:
        >>> from aqf_core.datasets import load_digit_images
        >>> digits = load_digit_images()
        >>> scores = score_samples(torch.from_numpy(digits.validation), digits)
        >>> scores["d_loss"] < 0.6, scores["copies"] < 0.1
        (True, True)
    """
    whole = samples.isfinite().all(1)
    broken = 1.0 - float(whole.double().mean())
    samples = samples[whole]
    test = torch.from_numpy(data.test[:TEST_ROWS])
    judged = test[:JUDGED]
    size = min(len(judged), len(samples))
    sets = [samples[k : k + size] for k in range(0, len(samples) - size + 1, size)][:SETS]
    told = [metrics.d_loss(judged, part, seed=k) for k, part in enumerate(sets)]
    trees = metrics.classifier_two_sample_test(judged, sets[0])
    known = torch.from_numpy(data.train[: 10 * TEST_ROWS])
    near = metrics.nearest_neighbours(known, judged, samples[:JUDGED])
    unit = data.unit
    return {
        "u_crps": marginal_crps(samples, test) / unit,
        "energy": sample_energy(samples[:SAMPLES], test[:SAMPLES]) / unit,
        "d_loss": float(np.mean(told)),
        "two_sample_accuracy": trees.accuracy,
        "two_sample_p": trees.p_value,
        "closer": near.closer,
        "distance_ratio": near.ratio,
        "copies": near.copies,
        "broken": broken,
    }
