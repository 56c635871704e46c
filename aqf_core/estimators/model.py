"""A bag of networks and its head: what an estimator trains and asks."""

from __future__ import annotations

from torch import Tensor, nn

from ..conditioners.base import Conditioner
from ..distributions import ScalarPredictive
from ..flows import AutoregressiveQuantileFlow
from ..spaces import OutputSpace, Support
from .encoding import FeatureEncoding
from .heads import FlowHead, Head

__all__ = ["BagModel"]


class BagModel(nn.Module):
    """Rows of features -> encoded inputs -> K networks -> numbers -> a head.

    Args:
        encoding: fitted encoding of the features.
        network: a bag, which maps inputs (K, B, width) to numbers (K, B, d, P).
        head: what the numbers mean.
        outputs: number d of targets; None for a single target without a dimension of its own.
        support: bounds of every target, in the units that the model sees.
    """

    def __init__(
        self,
        encoding: FeatureEncoding,
        network: Conditioner,
        head: Head,
        outputs: int | None = None,
        support: Support | None = None,
    ) -> None:
        super().__init__()
        self.encoding = encoding
        self.network = network
        self.head = head
        self.outputs = outputs
        self.space = OutputSpace(outputs, support)

    @property
    def members(self) -> int:
        return int(self.network.members)  # type: ignore[arg-type]

    @property
    def joint(self) -> bool:
        """Whether targets depend on each other given the features."""
        return self.outputs is not None and bool(getattr(self.network, "sees_variables", True))

    def numbers(self, inputs: Tensor, y: Tensor) -> Tensor:
        """Parameters (K, B, P) or (K, B, d, P) for inputs (K, B, width) and targets of the batch.

        Only a joint model looks at y.
        """
        if self.outputs is None:
            return self.network(inputs, inputs).squeeze(-2)  # type: ignore[no-any-return]
        seen = self.space.to_model(y)[0].clamp(-100.0, 100.0) if self.joint else y
        return self.network(seen, inputs)  # type: ignore[no-any-return]

    def loss(self, inputs: Tensor, y: Tensor, exact: bool = False) -> Tensor:
        """Losses (K, B) of the members, summed over targets.

        Args:
            inputs: encoded rows (K, B, width).
            y: targets (K, B) or (K, B, d).
            exact: without the noise of random levels.
        """
        each = self.head.loss(self.numbers(inputs, y), y, self.space, exact)
        return each if self.outputs is None else each.sum(-1)

    def flow(self, member: int) -> AutoregressiveQuantileFlow:
        """The joint distribution that one member predicts."""
        assert isinstance(self.head, FlowHead) and self.outputs is not None
        network = self.network.select(member)  # type: ignore[operator]
        flow = AutoregressiveQuantileFlow(
            self.outputs, network.context, self.head.transformer, network
        )
        flow.space = self.space
        return flow

    def marginals(self, inputs: Tensor) -> ScalarPredictive:
        """The pooled distribution of rows (N, width): batch shape (N,) or (N, d).

        Only for models that are not joint.
        """
        inputs = inputs.expand(self.members, *inputs.shape)
        h = self.numbers(inputs, inputs)
        return self.head.pooled(h, self.space)

    def member_marginals(self, inputs: Tensor) -> ScalarPredictive:
        """The distributions of each member for its own inputs (K, N, width)."""
        return self.head.distribution(self.numbers(inputs, inputs), self.space)
