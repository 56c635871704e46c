"""The module that stands in for mmcv's compiled one."""

import ast
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

import mmcv
import mmdet
import pytest
import torch
from mmengine.utils.dl_utils import collect_env, mmcv_full_available

from aqf_det.compat import DetectionStackError, MissingOpError
from aqf_det.compat.python_ops import EXTENSION, PythonOpsFinder, provide_python_ops


def names_mmdet_imports() -> list[tuple[str, str]]:
    """(module, name) of every import from mmcv.ops anywhere in mmdet."""
    found = set()
    for file in Path(mmdet.__file__).parent.rglob("*.py"):
        code = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(code)) if "mmcv.ops" in code else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mmcv.ops"):
                found |= {(node.module, alias.name) for alias in node.names}
    return sorted(found)


def test_every_name_that_mmdet_imports_from_mmcv_ops_exists():
    names = names_mmdet_imports()
    assert len(names) > 15
    for module, name in names:
        assert callable(getattr(importlib.import_module(module), name))


def test_every_public_name_of_mmcv_ops_exists():
    import mmcv.ops

    for name in mmcv.ops.__all__:
        assert hasattr(mmcv.ops, name)


def test_the_module_has_a_real_spec():
    module = importlib.import_module(EXTENSION)
    assert module.__spec__.name == EXTENSION
    assert module.__spec__.loader is module.__loader__ is not None
    assert Path(module.__spec__.origin).name == "__init__.py"
    assert importlib.util.find_spec(EXTENSION) is module.__spec__
    assert pkgutil.resolve_name(EXTENSION) is module
    assert importlib.reload(module) is module


def test_environment_reports_work():
    from mmcv.utils import collect_env as mmcv_environment
    from mmcv.utils.ext_loader import check_ops_exist

    assert check_ops_exist() and mmcv_full_available()
    assert collect_env()["PyTorch"] == torch.__version__
    assert "aqf_det" in mmcv_environment()["MMCV Compiler"]


def test_any_other_op_names_itself_and_the_way_to_get_it():
    from mmcv.ops import carafe, knn

    with pytest.raises(MissingOpError, match=r"'carafe_forward'.*README.*'Compiled operators'"):
        carafe(torch.rand(1, 4, 4, 4), torch.rand(1, 9, 8, 8), 3, 1, 2)
    with pytest.raises(NotImplementedError, match="knn"):
        importlib.import_module(EXTENSION).knn_forward(1, 2)
    assert callable(knn)
    readme = Path(__file__).parents[3] / "README.md"
    assert "## Compiled operators\n" in readme.read_text()
    with pytest.raises(AttributeError, match="__wrapped__"):
        importlib.import_module(EXTENSION).__wrapped__  # noqa: B018


@pytest.fixture
def compiled_mmcv(monkeypatch, tmp_path) -> Iterator[Path]:
    """A folder of mmcv in which a test may put a compiled module; undone afterwards."""
    importlib.import_module(EXTENSION)
    monkeypatch.delitem(sys.modules, EXTENSION)
    monkeypatch.setattr(mmcv, "_ext", mmcv._ext)
    monkeypatch.setattr(mmcv, "__path__", [*mmcv.__path__, str(tmp_path)])
    yield tmp_path / "_ext.py"
    sys.modules.pop(EXTENSION, None)
    sys.path_importer_cache.pop(str(tmp_path), None)


def forget_the_python_ops(monkeypatch) -> None:
    others = [finder for finder in sys.meta_path if not isinstance(finder, PythonOpsFinder)]
    monkeypatch.setattr(sys, "meta_path", others)


def test_a_compiled_module_is_left_in_place(compiled_mmcv, monkeypatch):
    compiled_mmcv.write_text("compiled = True")
    forget_the_python_ops(monkeypatch)
    assert provide_python_ops() is False
    assert not any(isinstance(finder, PythonOpsFinder) for finder in sys.meta_path)
    assert importlib.import_module(EXTENSION).compiled


def test_a_compiled_module_wins_even_after_the_python_ops_were_offered(compiled_mmcv):
    compiled_mmcv.write_text("compiled = True")
    assert any(isinstance(finder, PythonOpsFinder) for finder in sys.meta_path)
    assert importlib.import_module(EXTENSION).compiled


def test_a_compiled_module_that_does_not_load_is_named(compiled_mmcv, monkeypatch):
    compiled_mmcv.write_text("raise ImportError('undefined symbol: _ZN2at')")
    forget_the_python_ops(monkeypatch)
    with pytest.raises(DetectionStackError, match=r"undefined symbol.*pip uninstall -y mmcv"):
        provide_python_ops()


def test_without_a_compiled_module_the_python_ops_are_offered(compiled_mmcv, monkeypatch):
    forget_the_python_ops(monkeypatch)
    assert provide_python_ops() is True
    assert provide_python_ops() is True
    assert [type(finder) for finder in sys.meta_path].count(PythonOpsFinder) == 1
    assert importlib.import_module(EXTENSION).__spec__.loader is not None
