"""What mmcv reports about its compiler when nothing was compiled."""


def get_compiler_version() -> str:
    """Shown as "MMCV Compiler" in environment reports."""
    return "none (pure-Python ops of aqf_det)"


def get_compiling_cuda_version() -> str:
    """Shown as "MMCV CUDA Compiler" in environment reports."""
    return "not available"
