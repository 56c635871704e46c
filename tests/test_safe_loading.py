"""No line of the project loads a pickle that may run code, and none offers to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOADERS = {"load", "loads", "Unpickler", "read_pickle", "load_state_dict_from_url", "load_url"}
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "pandas", "pd"}
FORCED = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


def is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def unsafe_lines(source: str) -> Iterator[int]:
    """Lines that unpickle, load without asking for weights only, or could be told to."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value == FORCED:
            yield node.lineno
        if not isinstance(node, ast.Call):
            continue
        options = {keyword.arg: keyword.value for keyword in node.keywords}
        if "weights_only" in options and not is_true(options["weights_only"]):
            yield node.lineno
        if is_true(options.get("allow_pickle")):
            yield node.lineno
        name = ast.unparse(node.func).split(".")
        if name[-1] in LOADERS and name[0] in PICKLES:
            yield node.lineno
        if name[0] == "torch" and name[-1] in LOADERS and "weights_only" not in options:
            yield node.lineno


@pytest.mark.parametrize("folder", ["aqf_core", "aqf_det", "tools", "configs"])
def test_nothing_is_loaded_that_may_run_code(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = {str(file): list(unsafe_lines(file.read_text())) for file in files}
    assert {file: lines for file, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=not trusted)",
        "torch.hub.load_state_dict_from_url(url)",
        "load_checkpoint(path, weights_only=None)",
        "pickle.load(stream)",
        "pickle.Unpickler(stream).load()",
        "joblib.load(path)",
        "pd.read_pickle(path)",
        "np.load(path, allow_pickle=True)",
        f"os.environ['{FORCED}'] = '1'",
    ],
)
def test_the_check_sees_every_way(source: str) -> None:
    assert list(unsafe_lines(source))


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(path, map_location='cpu', weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "json.load(stream)",
        "pickle.dumps(flow)",
        "model.load_state_dict(state)",
    ],
)
def test_the_check_accepts_what_is_safe(source: str) -> None:
    assert not list(unsafe_lines(source))
