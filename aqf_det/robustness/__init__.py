"""Does a detector become less sure when it sees less? Sweeps over corrupted test images."""

from .growth import Growth, growth_of
from .report import write_report
from .sweep import CLEAN, Condition, Measurement, Sweep

__all__ = ["CLEAN", "Condition", "Growth", "Measurement", "Sweep", "growth_of", "write_report"]
