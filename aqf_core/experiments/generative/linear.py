"""Linear prediction of every variable from the earlier ones: an exact first layer of a flow."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["LinearPrediction"]

# Share of its own variance that every variable gets added, lest equal columns are singular.
RIDGE = 1e-6


class LinearPrediction(nn.Module):
    r"""Rows x and their standardised residuals e, one to one.

    .. math:: x = \mu + L e, \qquad L L^\top = \mathrm{Cov}(x), \quad L \text{ lower triangular}

    So \(L_{jj} e_j\) is what a linear regression of \(x_j\) on \(x_{<j}\) leaves over. Because L is
    triangular, the conditional of \(x_j\) given \(x_{<j}\) is that of \(e_j\) given \(e_{<j}\),
    shifted and scaled by \(L_{jj}\): quantiles, CRPS and densities of a flow over e carry over.

    Args:
        features: number of variables d.
        joint: if false, L is diagonal: each variable is only standardised.

    Attributes:
        mean, root, inverse: buffers (d,), L (d, d) and its inverse; the identity until `fit`.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> rows = torch.randn(1000, 2) @ torch.tensor([[1.0, 3.0], [0.0, 0.1]])
        >>> linear = LinearPrediction(2).fit(rows)
        >>> linear.residuals(rows).T.cov().round(decimals=2).abs()
        tensor([[1., 0.],
                [0., 1.]])
        >>> torch.allclose(linear.rows(linear.residuals(rows)), rows, atol=1e-4)
        True
    """

    mean: Tensor
    root: Tensor
    inverse: Tensor

    def __init__(self, features: int, joint: bool = True) -> None:
        super().__init__()
        self.joint = joint
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("root", torch.eye(features))
        self.register_buffer("inverse", torch.eye(features))

    @property
    def scale(self) -> Tensor:
        """The deviation (d,) of every variable from its prediction."""
        return self.root.diagonal()

    @torch.no_grad()
    def fit(self, rows: Tensor) -> LinearPrediction:
        """Estimate mean and covariance from rows (n, d) and return self."""
        rows = rows.double()
        centred = rows - rows.mean(0)
        covariance = centred.T @ centred / (len(rows) - 1)
        own = covariance.diagonal().diag()
        root = torch.linalg.cholesky(covariance + RIDGE * own) if self.joint else own.sqrt()
        self.mean.copy_(rows.mean(0))
        self.root.copy_(root)
        self.inverse.copy_(torch.linalg.inv(root).tril())
        return self

    def residuals(self, rows: Tensor) -> Tensor:
        """e of rows (n, d)."""
        return (rows - self.mean) @ self.inverse.T

    def rows(self, residuals: Tensor) -> Tensor:
        """Rows with residuals e (n, d); the inverse of `residuals`."""
        return torch.addmm(self.mean, residuals, self.root.T)

    def log_slope(self) -> Tensor:
        """log |de / dx|, a number: what a log-density of e gains as one of x."""
        return -self.scale.log().sum()
