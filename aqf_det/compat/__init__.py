"""Makes mmdet 3.3, mmengine 0.10 and mmcv-lite 2.1 run on current PyTorch, nothing compiled.

One file per upstream fault. Each patch states the fault, does nothing where it is absent, and
returns whether it was needed.
"""


def apply() -> None:
    """Check the installed stack, then apply every patch that it needs."""
    from aqf_det.compat.checkpoints import allow_log_history, load_weights_only
    from aqf_det.compat.package_metadata import replace_pkg_resources
    from aqf_det.compat.python_ops import provide_python_ops

    provide_python_ops()
    replace_pkg_resources()
    allow_log_history()
    load_weights_only()
