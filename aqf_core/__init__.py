"""Autoregressive quantile flows: exact, fast conditional distributions for PyTorch."""

from .conditioners import (
    CONDITIONERS,
    Conditioner,
    Independent,
    MaskedMLP,
    PixelCNN,
    Recurrent,
    make_conditioner,
)
from .flow_distribution import FlowDistribution
from .flows import AutoregressiveQuantileFlow
from .quantile_function import QuantileDistribution, QuantileFunction

__version__ = "0.1.0"

__all__ = [
    "CONDITIONERS",
    "AutoregressiveQuantileFlow",
    "Conditioner",
    "FlowDistribution",
    "Independent",
    "MaskedMLP",
    "PixelCNN",
    "QuantileDistribution",
    "QuantileFunction",
    "Recurrent",
    "__version__",
    "make_conditioner",
]
