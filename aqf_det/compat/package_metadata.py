"""mmengine's package look-up without ``pkg_resources``."""

import importlib.util
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from aqf_det.compat.rebind import rebind


def replace_pkg_resources() -> bool:
    """Give mmengine's package look-up functions a version based on ``importlib.metadata``.

    Fault: ``mmengine.utils.package_utils`` imports ``pkg_resources`` inside ``is_installed``,
    ``get_installed_path`` and ``package2module``; setuptools 82 removed that module, so inheriting
    ``mmdet::...`` configs, ``mmengine.hub`` and ``is_installed`` raise ModuleNotFoundError.
    https://github.com/open-mmlab/mmengine/pull/1676

    Returns:
        Whether the functions were replaced: not where ``pkg_resources`` exists or is not asked for.
    """
    from mmengine.utils import package_utils

    asked_for = "pkg_resources" in package_utils.is_installed.__code__.co_names
    if not asked_for or importlib.util.find_spec("pkg_resources") is not None:
        return False
    for replacement in (is_installed, get_installed_path, package2module):
        rebind("mmengine", getattr(package_utils, replacement.__name__), replacement)
    return True


def is_installed(package: str) -> bool:
    """Whether a distribution or an importable module of that name exists."""
    try:
        distribution(package)
        return True
    except PackageNotFoundError:
        spec = importlib.util.find_spec(package)
        return spec is not None and spec.origin is not None


def get_installed_path(package: str) -> str:
    """Folder of an installed package, given its distribution or its module name.

    Raises:
        PackageNotFoundError: Nothing of that name is installed.
        RuntimeError: The name belongs to a namespace package, which has no single folder.
    """
    try:
        module = package2module(package)
    except PackageNotFoundError:
        module = package
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise PackageNotFoundError(package)
    if spec.origin is None:
        raise RuntimeError(f"{package} is a namespace package, which has no single folder.")
    return str(Path(spec.origin).parent)


def package2module(package: str) -> str:
    """Name of the module that a distribution installs, e.g. ``mmcv`` for ``mmcv-lite``.

    Raises:
        PackageNotFoundError: No distribution of that name is installed.
        ValueError: The distribution does not say which modules it installs.
    """
    modules = (distribution(package).read_text("top_level.txt") or "").split()
    if package in modules or (not modules and importlib.util.find_spec(package) is not None):
        return package
    if not modules:
        raise ValueError(f"can not infer the module name of {package}")
    return modules[0]
