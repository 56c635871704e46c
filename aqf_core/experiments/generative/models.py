r"""MAF-LL, MAF-QL and NAQF: one autoregressive flow with another transformer or objective.

| method | transformer | objective |
|---|---|---|
| MAF-LL | affine | likelihood |
| MAF-QL | affine | quantile loss |
| NAQF | neural (a monotone spline, or what is asked for) | quantile loss |

All have the same conditioner, and as many parameters: an affine transformer needs fewer outputs, so
its conditioner gets wider hidden layers. Images take whole grey levels k; they are learned as
k + u with u uniform in [0, 1), and a sample x is the grey level floor(x).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...datasets.samples import Samples
from ...errors import AQFError
from ...flows import AutoregressiveQuantileFlow
from ...validation import lookup
from .linear import LinearPrediction

__all__ = [
    "METHODS",
    "Architecture",
    "FlowModel",
    "GenerativeMethod",
    "GenerativeModel",
    "build_model",
    "matched_width",
    "parameter_count",
]

# Values behind the common scale of all pixels.
POOLED = 4096


@dataclass(frozen=True)
class GenerativeMethod:
    """What tells one method from another.

    Attributes:
        name: on the command line and in results.
        label: in tables.
        objective: of training, see `AutoregressiveQuantileFlow.loss`.
        transformer: name, or None for the neural one that is asked for.
        package: the library it needs besides ours.
    """

    name: str
    label: str
    objective: str
    transformer: str | None = None
    package: str | None = None

    def title(self, conditioner: str) -> str:
        """The label, with the prefix Pixel for convolutional conditioners."""
        pixel = conditioner == "pixelcnn" and self.package is None
        return f"Pixel{self.label}" if pixel else self.label


METHODS: dict[str, GenerativeMethod] = {
    m.name: m
    for m in (
        GenerativeMethod("maf-ll", "MAF-LL", "nll", "affine"),
        GenerativeMethod("maf-ql", "MAF-QL", "quantile", "affine"),
        GenerativeMethod("naqf", "NAQF", "quantile"),
        GenerativeMethod("zuko-nsf", "zuko NSF", "nll", package="zuko"),
    )
}


@dataclass(frozen=True)
class Architecture:
    """The size of a model.

    Attributes:
        conditioner: "masked_mlp", "recurrent" or "pixelcnn".
        hidden: sizes of the hidden layers of NAQF; the other methods get as many parameters.
        transformer: the neural transformer.
        transformer_options: its arguments.
        conditioner_options: further arguments of the conditioner.
        by_class: whether images are generated given their class, which is drawn first.
        levels: quantile levels per variable and step.
        linear: whether variables of tables are first predicted linearly from the earlier ones, see
            `LinearPrediction`; all methods then model what is left over.
    """

    conditioner: str = "masked_mlp"
    hidden: tuple[int, ...] = (128, 128)
    transformer: str = "spline"
    transformer_options: dict[str, Any] = field(default_factory=dict)
    conditioner_options: dict[str, Any] = field(default_factory=dict)
    by_class: bool = False
    levels: int = 8
    linear: bool = False


class GenerativeModel(nn.Module):
    """What training and scoring need: a loss, and scores and samples of rows (n, d).

    Attributes:
        objective: of training, see `AutoregressiveQuantileFlow.loss`.
    """

    objective: str

    def loss(self, rows: Tensor, labels: Tensor | None = None) -> Tensor:
        """The training loss of rows (n, d) with classes (n,), averaged."""
        raise NotImplementedError

    def log_prob(self, rows: Tensor, labels: Tensor | None = None) -> Tensor:
        """Log-likelihood (n,) in nats, without gradients."""
        raise NotImplementedError

    def crps(self, rows: Tensor, labels: Tensor | None = None, levels: int = 128) -> Tensor:
        """CRPS (n, d) of every variable given the observed earlier ones, in units of the data."""
        raise NotImplementedError

    def sample(self, n: int) -> Tensor:
        """New rows (n, d)."""
        raise NotImplementedError


class FlowModel(GenerativeModel):
    """A flow over rows (n, d) of a data set, with its grey levels and classes if it has any.

    Args:
        flow: over observations of `data.shape`; its context is the one-hot class, or empty.
        data: what it will learn from: sets the scales.
        objective: of `loss`.
        levels: quantile levels per variable.
        linear: whether the flow is over the residuals of a `LinearPrediction`; tables only.

    Example:
        >>> from aqf_core.datasets import load_digit_images
        >>> digits = load_digit_images()
        >>> model = FlowModel(AutoregressiveQuantileFlow((1, 8, 8), hidden=(16,)), digits)
        >>> model.sample(5).shape
        torch.Size([5, 64])
    """

    shares: Tensor

    def __init__(
        self,
        flow: AutoregressiveQuantileFlow,
        data: Samples,
        objective: str = "quantile",
        levels: int = 8,
        linear: bool = False,
    ) -> None:
        super().__init__()
        if linear and data.grey is not None:
            raise AQFError("grey levels are not predicted linearly; leave that to tables.")
        self.flow, self.objective, self.levels = flow, objective, levels
        self.grey, self.shape = data.grey, data.shape
        rows = torch.from_numpy(data.train)
        shares = torch.ones(1)
        if flow.context:
            if data.labels is None:
                raise AQFError(f"{data.name} has no classes to generate by.")
            shares = torch.bincount(torch.from_numpy(data.labels[0]), minlength=flow.context)
        self.register_buffer("shares", shares / shares.sum())
        if data.grey is not None:
            # All pixels share one scale: one that hardly varies must not count as much as others.
            chosen = np.random.default_rng(0).integers(rows.numel(), size=POOLED)
            rows = self._noisy(rows.reshape(-1)[torch.from_numpy(chosen), None])
        self.linear = LinearPrediction(data.features).fit(rows) if linear else None
        if self.linear is not None:
            rows = self.linear.residuals(rows)
        flow.fit_scaling(rows.expand(-1, data.features).reshape(-1, *self.shape))

    def prepared(self, rows: Tensor) -> Tensor:
        """Observations (n, *shape) as the flow sees them; grey levels get their noise."""
        rows = self._noisy(rows) if self.linear is None else self.linear.residuals(rows)
        return rows.reshape(-1, *self.shape)

    def _noisy(self, rows: Tensor) -> Tensor:
        return rows if self.grey is None else rows + torch.rand_like(rows)

    def context(self, labels: Tensor | None) -> Tensor | None:
        """One-hot classes (n, classes), or None."""
        if not self.flow.context or labels is None:
            return None
        return nn.functional.one_hot(labels, self.flow.context).to(self.shares.dtype)

    def loss(self, rows: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.flow.loss(
            self.prepared(rows), self.context(labels), self.objective, levels=self.levels
        )

    @torch.no_grad()
    def log_prob(self, rows: Tensor, labels: Tensor | None = None) -> Tensor:
        """Log-likelihood (n,) in nats; for images a lower bound of that of the grey levels."""
        density = self.flow.log_prob(self.prepared(rows), self.context(labels))
        return density if self.linear is None else density + self.linear.log_slope()

    @torch.no_grad()
    def crps(self, rows: Tensor, labels: Tensor | None = None, levels: int = 128) -> Tensor:
        each = self.flow.crps(self.prepared(rows), self.context(labels), levels).flatten(1)
        return each if self.linear is None else each * self.linear.scale

    @torch.no_grad()
    def sample(self, n: int) -> Tensor:
        """Rows (n, d); images in whole grey levels, their classes as frequent as in training."""
        context = None
        if self.flow.context:
            context = self.context(torch.multinomial(self.shares, n, replacement=True))
        drawn = self.flow.sample(n if context is None else (), context)
        rows = drawn.reshape(n, -1)
        if self.linear is not None:
            return self.linear.rows(rows)
        return rows if self.grey is None else rows.floor().clamp(0, self.grey - 1)


class ZukoModel(GenerativeModel):
    """zuko's neural spline flow with its defaults, on standardised rows.

    Args:
        features: number of variables.
        hidden: sizes of the hidden layers of each of its transforms.
        linear: whether it models the residuals of a `LinearPrediction`.
    """

    objective = "nll"

    def __init__(self, features: int, hidden: Sequence[int], linear: bool = False) -> None:
        super().__init__()
        import zuko

        self.flow = zuko.flows.NSF(features, hidden_features=tuple(hidden))
        self.linear = LinearPrediction(features, joint=linear)

    def fit_scaling(self, rows: Tensor) -> ZukoModel:
        """Standardise by mean and deviation, or by the linear prediction."""
        self.linear.fit(rows)
        return self

    def loss(self, rows: Tensor, labels: Tensor | None = None) -> Tensor:
        return -self._log_prob(rows).mean()

    @torch.no_grad()
    def log_prob(self, rows: Tensor, labels: Tensor | None = None) -> Tensor:
        return self._log_prob(rows)

    def _log_prob(self, rows: Tensor) -> Tensor:
        density: Tensor = self.flow().log_prob(self.linear.residuals(rows))
        return density + self.linear.log_slope()

    def crps(self, rows: Tensor, labels: Tensor | None = None, levels: int = 0) -> Tensor:
        """Not available: the conditionals of stacked transforms have no quantile function."""
        return torch.full_like(rows, float("nan"))

    @torch.no_grad()
    def sample(self, n: int) -> Tensor:
        drawn: Tensor = self.flow().sample((n,))
        return self.linear.rows(drawn)


def parameter_count(model: nn.Module) -> int:
    """Number of trained parameters; masked weights count, whoever masks them.

    Example:
        >>> parameter_count(nn.Linear(3, 2))
        8
    """
    return sum(p.numel() for p in model.parameters())


def matched_width(count: Callable[[int], int], target: int) -> int:
    """The width whose number of parameters is nearest to the target; counts grow with the width.

    Example:
        >>> matched_width(lambda width: width * width, 50)
        7
    """
    low, high = 1, 2
    while count(high) < target:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < target else (low, middle)
    return min((low, high), key=lambda width: abs(count(width) - target))


def build_model(
    method: str, data: Samples, architecture: Architecture, seed: int = 0
) -> GenerativeModel:
    """A model for the data with as many parameters as NAQF of that architecture has.

    Args:
        method: a name in `METHODS`.
        data: what it will learn from.
        architecture: of NAQF.
        seed: of the initial weights.

    Example:
        >>> from aqf_core.datasets import load_digit_images
        >>> digits, small = load_digit_images(), Architecture(hidden=(32, 32))
        >>> [parameter_count(build_model(m, digits, small)) for m in ("naqf", "maf-ll")]
        [47488, 47363]
    """
    kind = lookup(method, METHODS, "method")
    depth = len(architecture.hidden)

    def flow(name: str, hidden: Sequence[int], options: dict[str, Any]) -> Any:
        shape = data.shape if architecture.conditioner == "pixelcnn" else (data.features,)
        if architecture.by_class and data.labels is None:
            raise AQFError(f"{data.name} has no classes to generate by.")
        classes = 1 + int(data.labels[0].max()) if architecture.by_class and data.labels else 0
        return AutoregressiveQuantileFlow(
            shape,
            classes,
            name,
            architecture.conditioner,
            hidden,
            transformer_options=options,
            conditioner_options=architecture.conditioner_options,
        )

    torch.manual_seed(seed)
    neural = flow(architecture.transformer, architecture.hidden, architecture.transformer_options)
    if kind.package == "zuko":
        if data.grey is not None:
            raise AQFError(f"{kind.label} is compared on tables, not on images.")
        width = matched_width(
            lambda w: parameter_count(ZukoModel(data.features, (w,) * depth)),
            parameter_count(neural),
        )
        torch.manual_seed(seed)
        model = ZukoModel(data.features, (width,) * depth, architecture.linear)
        return model.fit_scaling(torch.from_numpy(data.train))
    if kind.transformer is not None:
        name = kind.transformer
        width = matched_width(
            lambda w: parameter_count(flow(name, (w,) * depth, {})), parameter_count(neural)
        )
        torch.manual_seed(seed)
        neural = flow(name, (width,) * depth, {})
    if architecture.conditioner != "pixelcnn" and len(data.shape) > 1:
        data = replace(data, shape=(data.features,))
    return FlowModel(neural, data, kind.objective, architecture.levels, architecture.linear)
