"""Named errors: every wrong input is reported early, in one sentence, by one of these.

All of them are `ValueError`s as well, so callers may catch either.
"""

from __future__ import annotations

__all__ = [
    "AQFError",
    "ContextError",
    "DomainError",
    "LevelError",
    "NonFiniteError",
    "ShapeError",
    "UnknownNameError",
]


class AQFError(Exception):
    """Base class of every error raised on purpose by this library."""


class ShapeError(AQFError, ValueError):
    """A tensor has the wrong number of features or does not broadcast."""


class NonFiniteError(AQFError, ValueError):
    """A tensor contains NaN or infinite values."""


class DomainError(AQFError, ValueError):
    """A value lies outside the support of a distribution or the domain of a map."""


class LevelError(AQFError, ValueError):
    """A quantile level or a coverage is not a probability."""


class ContextError(AQFError, ValueError):
    """A context was given to an unconditional model or is missing for a conditional one."""


class UnknownNameError(AQFError, ValueError):
    """A name is not in the table it was looked up in; the message lists the known names."""
