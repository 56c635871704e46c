"""Autoregressive quantile flows: exact, fast conditional distributions for PyTorch."""

__version__ = "0.1.0"

__all__ = [
    "__version__",
]
