"""Makes mmcv and mmdet importable before any test module of this folder imports them."""

import aqf_det  # noqa: F401
