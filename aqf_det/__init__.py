"""MMDetection 3 extension: box heads whose output is a flow per coordinate.

Importing this package first makes the installed MMDetection stack run on current PyTorch
(see :mod:`aqf_det.compat`), then registers everything the package adds.
"""

from aqf_core import __version__
from aqf_det import compat

compat.apply()

# Registers its parts with mmdet, so it must come after the patches.
from aqf_det import datasets, engine, evaluation, models, visualization  # noqa: E402
from aqf_det.inference import QuantileInferencer  # noqa: E402

__all__ = [
    "QuantileInferencer",
    "__version__",
    "compat",
    "datasets",
    "engine",
    "evaluation",
    "models",
    "visualization",
]
