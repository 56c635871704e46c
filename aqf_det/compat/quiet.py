"""Warnings about upstream code that nobody but upstream can act on."""

import warnings

_UPSTREAM = r"(mmcv|mmdet|mmengine)\."

# (message, category, module), each as narrow as the warning allows.
_NOISE: tuple[tuple[str, type[Warning], str], ...] = (
    (r".*`torch\.cuda\.amp\.", FutureWarning, _UPSTREAM),
    (r"DeprecationWarning: `num_anchors` is deprecated", UserWarning, r"mmdet\."),
    (r"``MultiScaleDeformableAttention`` has been moved", ImportWarning, r"mmcv\."),
    (r"The arguments `dropout` in MultiheadAttention", DeprecationWarning, r"mmcv\."),
    (r"'pkgutil\.find_loader' is deprecated", DeprecationWarning, _UPSTREAM),
    # Raised inside torch on behalf of mmdet's point and anchor generators.
    (r"torch\.meshgrid: in an upcoming release", UserWarning, r"torch\.functional"),
)


def hide_upstream_warnings() -> bool:
    """Ignore the warnings that mmcv, mmdet and mmengine cause by using deprecated interfaces.

    Fault: upstream calls interfaces of torch and of itself that were deprecated after its release;
    the warnings repeat in every run and no user can act on them.
    https://github.com/open-mmlab/mmengine/pull/1564

    Returns:
        Whether a filter was added (each is added once).
    """
    before = list(warnings.filters)
    for message, category, module in _NOISE:
        warnings.filterwarnings("ignore", message=message, category=category, module=module)
    return list(warnings.filters) != before
