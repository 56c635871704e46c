"""The embedded demonstration: a generated data set, a small detector, Gaussian against QFR."""

from ..study.progress import run_steps
from ..study.variants import Variant
from .plan import DETECTOR, QFR, VARIANTS, DemoSize
from .run import Demo

__all__ = ["DETECTOR", "QFR", "VARIANTS", "Demo", "DemoSize", "Variant", "run_steps"]
