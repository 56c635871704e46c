"""What every estimator shares: its arguments, checking input, fitting a bag."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_is_fitted,
    check_X_y,
    validate_data,
)

from ..spaces import Support
from .columns import Columns, is_frame
from .fitting import Recipe, fit_bag
from .heads import Head
from .persistence import ModelFileError, pack_model, plain, read, unpack_model, write
from .prediction import Fitted, Prediction
from .preparation import choose_support
from .presets import Settings, check_continues, resolve

__all__ = ["BagEstimator"]

Array = NDArray[Any]


class BagEstimator(BaseEstimator):  # type: ignore[misc]
    """A bag of networks with a head, as a scikit-learn estimator.

    Arguments that are None are taken from the preset, see `Settings`.

    Args:
        preset: "default" (a bag of ten), "fast" (one network) or "paper".
        members: networks in the bag.
        folds: every member leaves out one of this many parts of the data.
        hidden: sizes of the hidden layers.
        activation: "silu", "relu" or "elu".
        dropout: share of units dropped after each hidden layer.
        bins: bins of the piecewise-linear encoding of each numerical column; the default is 8 up
            to 1,500 rows and grows with their number.
        unbinned: share of the members that see numbers without their bins.
        steps: optimiser steps.
        batch_size: rows per member and step.
        learning_rate: highest rate of the cycle.
        weight_decay: of AdamW.
        patience: share of the steps without improvement after which training stops.
        recalibrate: "spline", "isotonic", "conformal" or "none".
        categorical_features: names or positions of columns that hold categories, besides those
            of pandas' dtype `category`.
        warm_start: continue from the present weights when `fit` is called again.
        random_state: seed; the same seed and data give bit-identical models on one machine.
        device: "auto" (a GPU if there is one), "cpu", "cuda", ...
        verbose: 1 shows a progress bar.
    """

    def __init__(
        self,
        preset: str = "default",
        *,
        members: int | None = None,
        folds: int | None = None,
        hidden: Sequence[int] | None = None,
        activation: str | None = None,
        dropout: Sequence[float] | None = None,
        bins: int | None = None,
        unbinned: float | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        patience: float | None = None,
        recalibrate: str | None = None,
        categorical_features: Sequence[Any] | None = None,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: int = 0,
    ) -> None:
        self.preset = preset
        self.members = members
        self.folds = folds
        self.hidden = hidden
        self.activation = activation
        self.dropout = dropout
        self.bins = bins
        self.unbinned = unbinned
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.patience = patience
        self.recalibrate = recalibrate
        self.categorical_features = categorical_features
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show all arguments: a subclass writes `**common` for those of its parent."""
        super().__init_subclass__(**kwargs)
        init: Any = cls.__init__
        own = inspect.signature(init).parameters
        if "common" in own:
            # Mixins of scikit-learn have no constructor of their own.
            parent: Any = next(c for c in cls.__mro__[1:] if "__init__" in vars(c))
            merged = {n: p for n, p in own.items() if n != "common"}
            inherited = inspect.signature(parent.__init__).parameters
            merged |= {n: p for n, p in inherited.items() if n not in merged}
            init.__signature__ = inspect.Signature(sorted(merged.values(), key=lambda p: p.kind))

    fitted_: Fitted
    columns_: Columns
    settings_: Settings

    # What a subclass says -----------------------------------------------------------------------

    def _make_head(self, settings: Settings) -> Head:
        """The object in which estimators differ."""
        raise NotImplementedError

    def _settings(self, table: tuple[int, int]) -> Settings:
        """The preset for so many rows and numerical columns, with what was given replaced."""
        return resolve(table=table, **self.get_params(deep=False))

    # How several targets depend on each other: "independent", "flow" or "gaussian".
    _dependence = "independent"

    def _bounds(self) -> Support | str | None:
        """Bounds of the targets; "auto": as they suggest."""
        return None

    # Fitting ------------------------------------------------------------------------------------

    def _train(
        self,
        X: Array,
        y: Array,
        weights: Array | None,
        columns: Columns,
        eval_set: tuple[Array, Array] | None = None,
        one_pass: bool = False,
    ) -> None:
        """Fit or continue the bag and set the fitted attributes."""
        numbers = sum(known is None for known in columns.categories)
        settings = self._settings((len(X), numbers))
        previous = None
        if self._continues(one_pass):
            previous = self.fitted_
            if self.bins is None:  # as many as the first rows had
                settings = replace(settings, bins=self.settings_.bins)
            check_continues(self.settings_, settings)
        recipe = self._recipe(settings, columns, self._support_of(y, eval_set, one_pass))
        if previous is not None and previous.loc.shape != y.shape[1:]:
            before, now = (shape[0] if shape else 1 for shape in (previous.loc.shape, y.shape[1:]))
            raise ValueError(
                f"y has {now} targets, but the model was fitted with {before}; fit a new model."
            )
        self.fitted_, self.history_ = fit_bag(recipe, X, y, weights, eval_set, previous, one_pass)
        self.columns_, self.settings_ = columns, settings
        self.n_iter_ = max([1, *self.history_.steps])

    def _continues(self, one_pass: bool) -> bool:
        """Whether a fit goes on from the present weights, and so keeps columns and classes."""
        return (self.warm_start or one_pass) and hasattr(self, "fitted_")

    def _check_weights(self, weights: Any, X: Array, least: int) -> Array | None:
        """Weights (n,) of which at least `least` are positive, or None."""
        if weights is None:
            return None
        checked: Array = _check_sample_weight(weights, X, ensure_non_negative=True)
        positive = int((checked > 0).sum())
        if positive < least:
            raise ValueError(
                f"sample_weight is positive in {positive} of {len(checked)} rows, but learning "
                f"needs at least {least} such rows."
            )
        return checked

    def _check_eval_set(self, eval_set: Any, columns: Columns, **options: Any) -> tuple[Array, Any]:
        """Rows and targets of a validation set, which has the columns of the training rows."""
        if not isinstance(eval_set, (tuple, list)) or len(eval_set) != 2:
            raise ValueError("eval_set must be a pair (X, y).")
        self.columns_ = columns
        X, y, _ = self._check_rows(*eval_set, **options)
        return X, y

    def _support_of(self, y: Array, eval_set: Any, one_pass: bool) -> Support | None:
        bounds = self._bounds()
        if not isinstance(bounds, str):
            return bounds
        if bounds != "auto":
            raise ValueError(f"support must be a pair, None or 'auto', got {bounds!r}.")
        if one_pass or self.warm_start:
            return None  # rows that come later may lie beyond a bound that these suggest
        return choose_support(y if eval_set is None else np.concatenate([y, eval_set[1]]))

    def _recipe(self, settings: Settings, columns: Columns, support: Support | None) -> Recipe:
        return Recipe(
            settings=settings,
            head=lambda: self._make_head(settings),
            dependence=self._dependence,
            support=support,
            categories=[None if known is None else len(known) for known in columns.categories],
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            device=self._torch_device(),
            verbose=self.verbose,
        )

    def _torch_device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, TypeError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ValueError(
                f"device {self.device!r} cannot be used here ({reason}); choose 'auto' or 'cpu'."
            ) from None
        return device

    # Checking -----------------------------------------------------------------------------------

    def _check_rows(
        self, X: Any, y: Any = "no_validation", reset: bool = False, **options: Any
    ) -> tuple[Array, Any, Columns]:
        """X as float64 (n, p) with NaN where missing, y, and the columns; names are set or checked.

        Args:
            X: array or DataFrame.
            y: targets, or "no_validation".
            reset: whether these rows define the columns.
            **options: of `check_X_y`.
        """
        common: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        table = is_frame(X) or (self.categorical_features is not None and np.ndim(X) == 2)
        with_y = not (isinstance(y, str) and y == "no_validation")
        columns = Columns(self.categorical_features) if reset else self.columns_
        try:
            if not table:
                options = options if with_y else {}
                checked = validate_data(self, X, y, reset=reset, **common, **options)
                X, y = checked if with_y else (checked, None)
                if reset:
                    columns.categories = [None] * X.shape[1]
                return X, y, columns
            validate_data(self, X, y, reset=reset, skip_check_array=True)
            X = X if is_frame(X) else np.asarray(X)
            X = (columns.fit(X) if reset else columns).transform(X)
            if with_y:
                X, y = check_X_y(X, y, estimator=self, **common, **options)
            else:
                X, y = check_array(X, estimator=self, **common), None
            return X, y, columns
        except ValueError as error:
            if "could not convert string to float" not in str(error):
                raise
            raise ValueError(
                f"X holds text ({str(error).partition(': ')[2]}); convert it to numbers or declare "
                "its column categorical (pandas dtype 'category' or categorical_features)."
            ) from None

    def predict_dist(self, X: Any) -> Prediction:
        """The predictive distributions of all rows, as one lazy object.

        Args:
            X: (n, p).

        Returns:
            An object with `quantile`, `interval`, `cdf`, `pdf`, `log_pdf`, `event`, `sample`,
            `crps`, `mean`, `median` and `std`, which answer in NumPy arrays.
        """
        check_is_fitted(self)
        rows = self._check_rows(X)[0]
        return self.fitted_.predict(self.fitted_.model.encoding.standardise(rows))

    # Saving -------------------------------------------------------------------------------------

    # Fitted attributes of simple types that a saved model keeps, as far as there are any.
    _kept = ("n_features_in_", "feature_names_in_", "target_names_", "classes_", "n_iter_")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file: safetensors with a JSON header, no pickle."""
        check_is_fitted(self)
        model, tensors = pack_model(self.fitted_)
        header = {
            "class": type(self).__name__,
            "params": {name: plain(v) for name, v in self.get_params(deep=False).items()},
            "settings": asdict(self.settings_),
            "categories": self.columns_.categories,
            "kept": {
                name: plain(getattr(self, name)) for name in self._kept if hasattr(self, name)
            },
            "model": model,
        }
        write(path, header, tensors)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Any:
        """Read a model written by `save`; a changed or foreign file is refused."""
        header, tensors = read(path)
        kinds = {kind.__name__: kind for kind in _descendants(BagEstimator)}
        kind = kinds.get(header["class"])
        if kind is None or not issubclass(kind, cls):
            raise ModelFileError(
                f"{os.fspath(path)!r} holds a {header['class']}, not a {cls.__name__}."
            )
        model = kind(**header["params"])
        for name, value in header["kept"].items():
            listed = name in ("feature_names_in_", "classes_")
            dtype = object if name == "feature_names_in_" else None
            setattr(model, name, np.array(value, dtype=dtype) if listed else value)
        model.columns_ = Columns(model.categorical_features)
        model.columns_.categories = header["categories"]
        settings: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in header["settings"].items()
        }
        model.settings_ = Settings(**settings)
        recipe = model._recipe(model.settings_, model.columns_, header["model"]["support"])
        model.fitted_ = unpack_model(recipe, header["model"], tensors)
        return model


def _descendants(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    children: list[type[Any]] = kind.__subclasses__()
    for child in children:
        yield from _descendants(child)
