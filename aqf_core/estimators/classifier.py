"""Classification by the CDF of a flow: two classes, or several in an order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from .base import BagEstimator
from .columns import is_frame
from .heads import ClassHead, Head
from .prediction import CHUNK
from .presets import Settings

__all__ = ["CDFFlowClassifier"]


class CDFFlowClassifier(ClassifierMixin, BagEstimator):  # type: ignore[misc]
    """Probabilities of two or more ordered classes, trained by the CRPS (two classes: Brier score).

    Args:
        preset: "default", "fast" or "paper".
        transformer: family of monotone functions; "affine" is a probit network.
        objective: "crps", or "nll" for the likelihood, as ordinary networks are trained.
        order: the labels from lowest to highest; by default numbers and strings are sorted, and
            an ordered pandas categorical keeps its order.
        **common: further arguments, see `BagEstimator`.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(-1, 1, 80).reshape(-1, 1)
        >>> y = np.where(X[:, 0] > 0, "high", "low")
        >>> model = CDFFlowClassifier("fast", steps=60, order=["low", "high"], random_state=0)
        >>> model.fit(X, y).predict([[-0.8], [0.8]])
        array(['low', 'high'], dtype='<U4')
        >>> model.predict_proba(X).shape
        (80, 2)
    """

    def __init__(
        self,
        preset: str = "default",
        *,
        transformer: str = "affine",
        objective: str = "crps",
        order: Sequence[Any] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(preset, **common)
        self.transformer = transformer
        self.objective = objective
        self.order = order

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _make_head(self, settings: Settings) -> Head:
        return ClassHead(len(self.classes_), self.transformer, self.objective)

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        eval_set: tuple[Any, Any] | None = None,
    ) -> CDFFlowClassifier:
        """Learn the probabilities of the labels y given X.

        Args:
            X: (n, p) array or DataFrame; NaN is a missing value.
            y: labels (n,).
            sample_weight: (n,), non-negative.
            eval_set: (X, y) that decides when to stop, instead of rows that the members leave out.
        """
        return self._learn(X, y, sample_weight, None, eval_set, one_pass=False)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> CDFFlowClassifier:
        """Learn from one pass over these rows.

        Args:
            X: (n, p).
            y: labels (n,).
            classes: all labels that will ever appear, needed at the first call only.
            sample_weight: (n,), non-negative.
        """
        return self._learn(X, y, sample_weight, classes, None, one_pass=True)

    def _learn(
        self, X: Any, y: Any, weights: Any, classes: Any, eval_set: Any, one_pass: bool
    ) -> CDFFlowClassifier:
        first = not self._continues(one_pass)
        ordered = getattr(getattr(y, "dtype", None), "categories", None)
        ordered = ordered if getattr(getattr(y, "dtype", None), "ordered", False) else None
        if y is not None:
            y = np.asarray(y)
        X, y, columns = self._check_rows(
            X, y, reset=first, multi_output=False, ensure_min_samples=2 - one_pass
        )
        check_classification_targets(y)
        if first:
            known = next((c for c in (self.order, classes, ordered) if c is not None), None)
            self.classes_ = np.unique(y) if known is None else np.asarray(known)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y holds the single class {self.classes_[0]!r}; a classifier needs two or more "
                "classes."
            )
        if len(set(self.classes_.tolist())) < len(self.classes_):
            raise ValueError(f"the classes {self.classes_.tolist()} name a label twice.")
        weights = self._check_weights(weights, X, least=2 - one_pass)
        held = None
        if eval_set is not None:
            held_X, held_y = self._check_eval_set(eval_set, columns)
            held = held_X, self._codes(held_y)
        self._train(X, self._codes(y), weights, columns, held, one_pass)
        return self

    def _codes(self, y: NDArray[Any]) -> NDArray[np.float64]:
        """The position of every label among the classes."""
        positions = {label: k for k, label in enumerate(self.classes_.tolist())}
        try:
            return np.array([positions[label] for label in y.tolist()], dtype=np.float64)
        except KeyError as unknown:
            raise ValueError(
                f"y holds the label {unknown.args[0]!r}, which is not among the classes "
                f"{self.classes_.tolist()}."
            ) from None

    @torch.no_grad()
    def predict_proba(self, X: Any) -> Any:
        """Probabilities (n, C) in the order of `classes_`; a DataFrame for a DataFrame."""
        check_is_fitted(self)
        rows = self._check_rows(X)[0]
        model = self.fitted_.model
        assert isinstance(model.head, ClassHead)
        standard = model.encoding.standardise(rows).to(model.space.loc)
        parts = []
        for part in torch.split(standard, CHUNK):
            inputs = model.encoding(part)
            h = model.numbers(inputs.expand(model.members, *inputs.shape), inputs)
            parts.append(model.head.probabilities(h).mean(0).cpu())
        values = torch.cat(parts).double().numpy()
        if not is_frame(X):
            return values
        import pandas as pd

        return pd.DataFrame(values, index=X.index, columns=self.classes_)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of every row (n,)."""
        probabilities = np.asarray(self.predict_proba(X))
        labels: NDArray[Any] = self.classes_[probabilities.argmax(1)]
        return labels

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of the probabilities (n, C)."""
        return np.log(self.predict_proba(X))
