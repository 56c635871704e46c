"""The embedded demonstration: a generated data set, a small detector, Gaussian against QFR."""

from .plan import DETECTOR, QFR, VARIANTS, DemoSize, Variant
from .progress import run_steps
from .run import Demo

__all__ = ["DETECTOR", "QFR", "VARIANTS", "Demo", "DemoSize", "Variant", "run_steps"]
