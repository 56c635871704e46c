"""MMDetection 3 extension: box heads whose output is a flow per coordinate.

Importing this package first makes the installed MMDetection stack run on current PyTorch
(see :mod:`aqf_det.compat`), then registers everything the package adds.
"""

from aqf_core import __version__
from aqf_det import compat

compat.apply()

__all__ = ["__version__", "compat"]
