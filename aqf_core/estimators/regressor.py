"""The interface of a regressor that predicts distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from .base import BagEstimator
from .columns import is_frame

__all__ = ["DistributionRegressor"]


class DistributionRegressor(RegressorMixin, BagEstimator):  # type: ignore[misc]
    """Base class of the regressors; the arguments are those of `BagEstimator`.

    A DataFrame X gives Series and DataFrames with its index, except from `predict`, which gives
    arrays as meta-estimators of scikit-learn expect. With d targets, arrays have one more
    dimension of length d after the rows, and columns have two levels (target, ...).
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        # `score` is minus the CRPS, which is never above 0.5.
        tags.regressor_tags.poor_score = True
        return tags

    # Fitting ------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        eval_set: tuple[Any, Any] | None = None,
    ) -> Any:
        """Learn the distribution of y given X.

        Args:
            X: (n, p) array or DataFrame; NaN is a missing value.
            y: targets (n,), or (n, d) for a joint distribution.
            sample_weight: (n,), non-negative; weight k counts as k copies of a row.
            eval_set: (X, y) that decides when to stop and recalibrates, instead of rows that the
                members leave out; then all rows of X are learned from.

        Returns:
            The estimator.
        """
        return self._learn(X, y, sample_weight, eval_set, one_pass=False)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Learn from one pass over these rows, continuing from what is known already.

        The first call also fixes scales, bins and categories, so it should see typical rows.
        Nothing is held out: there is no early stopping and no recalibration.
        """
        return self._learn(X, y, sample_weight, None, one_pass=True)

    def _learn(
        self, X: Any, y: Any, sample_weight: Any, eval_set: Any, one_pass: bool
    ) -> DistributionRegressor:
        first = not self._continues(one_pass)
        names = _target_names(y)
        _refuse_text(y)
        X, y, columns = self._check_rows(
            X, y, reset=first, multi_output=True, y_numeric=True, ensure_min_samples=2 - one_pass
        )
        y = self._check_y(y, must_vary=first)
        weights = self._check_weights(sample_weight, X, least=2 - one_pass)
        if weights is not None and first:
            self._check_y(y[weights > 0], must_vary=True)
        held = None
        if eval_set is not None:
            held_X, held_y = self._check_eval_set(
                eval_set, columns, multi_output=True, y_numeric=True
            )
            held = held_X, self._check_y(held_y, must_vary=False)
            if held[1].shape[1:] != y.shape[1:]:
                raise ValueError("the y of eval_set has another number of targets than y.")
        self._train(X, y, weights, columns, held, one_pass)
        self.target_names_ = names or list(range(y.shape[1] if y.ndim == 2 else 1))
        return self

    def _check_y(self, y: NDArray[Any], must_vary: bool) -> NDArray[np.float64]:
        y = np.asarray(y, dtype=np.float64)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        constant = np.atleast_1d(np.ptp(y, axis=0) == 0)
        if must_vary and constant.any():
            column = int(constant.argmax())
            which = "y" if y.ndim == 1 else f"column {column} of y"
            raise ValueError(
                f"{which} is constant ({y.reshape(len(y), -1)[0, column]:g} in every row), so "
                "there is no distribution to learn; check the target column."
            )
        return y

    # Predicting ---------------------------------------------------------------------------------

    def predict(self, X: Any, statistic: str = "median") -> NDArray[np.float64]:
        """Point predictions (n,) or (n, d).

        Args:
            X: (n, p).
            statistic: "median" or "mean".
        """
        if statistic not in ("median", "mean"):
            raise ValueError(f"unknown statistic {statistic!r}; choose from mean, median.")
        dist = self.predict_dist(X)
        return dist.median if statistic == "median" else dist.mean

    def predict_quantiles(self, X: Any, levels: Any = (0.05, 0.25, 0.5, 0.75, 0.95)) -> Any:
        """Quantiles (n, K) at the levels (K,), or (n, d, K): non-decreasing in the level."""
        levels = np.atleast_1d(np.asarray(levels, dtype=np.float64))
        return self._framed(X, self.predict_dist(X).quantile(levels), levels.tolist())

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Any:
        """Central intervals (n, 2), or (n, d, 2): with probability `coverage` y lies inside."""
        return self._framed(X, self.predict_dist(X).interval(coverage), ["low", "high"])

    def predict_cdf(self, X: Any, y: Any) -> Any:
        """P(Y <= y | X) at a number y, one value per row, or (n, M) values."""
        return self._framed(X, self.predict_dist(X).cdf(y))

    def predict_pdf(self, X: Any, y: Any) -> Any:
        """Density at y, as for `predict_cdf`; with several targets the joint density (n,)."""
        return self._framed(X, self.predict_dist(X).pdf(y))

    def predict_event(
        self,
        X: Any,
        below: Any = None,
        above: Any = None,
        between: tuple[Any, Any] | None = None,
    ) -> Any:
        """Probability of an event: Y <= `below`, Y > `above`, or low < Y <= high.

        Args:
            X: (n, p).
            below: a number or one per row; with several targets also one per target, and the
                event is that all of them hold.
            above: the same.
            between: (low, high).

        Returns:
            (n,); (n, d) for several independent targets.
        """
        if (below is None) + (above is None) + (between is None) != 2:
            raise ValueError("say which event: exactly one of below, above and between.")
        if between is not None:
            if not isinstance(between, (tuple, list)) or len(between) != 2:
                raise ValueError(f"between must be a pair (low, high), got {between!r}.")
            above, below = between
            if (np.asarray(above) > np.asarray(below)).any():
                raise ValueError(f"between needs low <= high, got {between!r}.")
        return self._framed(X, self.predict_dist(X).event(below, above))

    def sample(self, X: Any, n: int = 1, random_state: Any = None) -> Any:
        """Draw n values per row: (n_rows, n), or joint draws (n_rows, n, d)."""
        return self._framed(X, self.predict_dist(X).sample(n, random_state), draws=True)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Minus the mean CRPS, in the units of y: larger is better, 0 is perfect."""
        dist = self.predict_dist(X)
        y = np.asarray(y, dtype=np.float64)
        targets = self.fitted_.loc.shape
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 and not targets else y
        if y.shape[1:] != targets:
            raise ValueError(
                f"y has {y.shape[1] if y.ndim > 1 else 1} targets, but the model was fitted with "
                f"{targets[0] if targets else 1}."
            )
        crps = dist.crps(y)
        if crps.ndim == 2:
            crps = crps.mean(1)
        return -float(np.average(crps, weights=sample_weight))

    def _framed(
        self, X: Any, values: NDArray[Any], labels: list[Any] | None = None, draws: bool = False
    ) -> Any:
        """Values with the index of X if it is a DataFrame, and columns per target and label."""
        if not is_frame(X):
            return values
        import pandas as pd

        if values.ndim == 1:
            return pd.Series(values, index=X.index, name=self.target_names_[0])
        targets = bool(self.fitted_.loc.shape)
        if draws and targets:
            values = values.swapaxes(1, 2)
        if values.ndim == 2:
            if labels is None:
                labels = self.target_names_ if targets else list(range(values.shape[1]))
            return pd.DataFrame(values, index=X.index, columns=labels)
        labels = list(range(values.shape[2])) if labels is None else labels
        columns = pd.MultiIndex.from_product([self.target_names_, labels])
        return pd.DataFrame(values.reshape(len(values), -1), index=X.index, columns=columns)


def _target_names(y: Any) -> list[Any]:
    if is_frame(y):
        return list(y.columns)
    name = getattr(y, "name", None)
    return [] if name is None else [name]


def _refuse_text(y: Any) -> None:
    values = np.asarray(y)
    if y is None or values.dtype.kind not in "OUS":
        return
    try:
        values.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            "y holds text or other values that are not numbers; convert it, or use "
            "CDFFlowClassifier for labels."
        ) from None
