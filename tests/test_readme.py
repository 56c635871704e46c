"""The README: its examples run as they stand, what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
NEEDS_MODEL = "<!-- needs a trained model -->\n"


def examples(with_model: bool) -> list[object]:
    """Python blocks below a "###" heading, named after it."""
    pattern = rf"\n### ([^\n]*)\n\n({NEEDS_MODEL})?```python\n(.*?)```"
    found = re.findall(pattern, README, re.DOTALL)
    return [pytest.param(code, id=name) for name, mark, code in found if bool(mark) == with_model]


@pytest.mark.parametrize("code", examples(with_model=False))
def test_example_runs(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert printed and "nan" not in printed


def untrained_checkpoint(config: str, path: Path) -> None:
    """Save the detector of ``config`` as it is when stage 2 begins."""
    import aqf_det  # noqa: F401 - its patches must precede mmdet

    from mmdet.registry import MODELS  # isort: skip
    from mmengine.config import Config  # isort: skip
    from mmengine.registry import init_default_scope  # isort: skip

    described = Config.fromfile(config)
    init_default_scope("mmdet")
    detector = MODELS.build(described.model)
    detector.set_stage(2)
    torch.save({"state_dict": detector.state_dict(), "meta": {}}, path)


@pytest.mark.slow
@pytest.mark.parametrize("code", examples(with_model=True))
def test_example_runs_with_an_untrained_model(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same lines, but for the checkpoint and the picture, which the test makes."""
    (config,) = re.findall(r"configs/\w+\.py", code)
    (checkpoint,) = re.findall(r"work_dirs/[\w./]+\.pth", code)
    (tmp_path / checkpoint).parent.mkdir(parents=True)
    untrained_checkpoint(str(ROOT / config), tmp_path / checkpoint)
    Image.new("RGB", (640, 480), "grey").save(tmp_path / "street.jpg")
    monkeypatch.chdir(tmp_path)
    exec(compile(code.replace(config, str(ROOT / config)), "README.md", "exec"), {})
    assert "nan" not in capsys.readouterr().out
    assert (tmp_path / "street_quantiles.png").stat().st_size > 0


def test_every_python_block_is_a_short_example() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == len(examples(True)) + len(examples(False))
    for code in blocks:
        lines = [line for line in code.splitlines() if line.strip()]
        assert len([line for line in lines if not line.startswith(("import ", "from "))]) <= 10


def test_links_and_commands_exist() -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
    targets = set(re.findall(r"\bmake (demo|[a-z]+)(?=\s*#|`|\s+PYTHON)", README))
    rules = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= targets <= rules
