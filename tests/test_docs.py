"""The pages of docs/: their Python blocks run in order, what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import aqf_core
from aqf_core.objectives import OBJECTIVES

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize(
    "page",
    ["core.md", "experiments.md", "forecasting.md", "generative.md", "metrics.md", "tabular.md"],
)
def test_blocks_run_in_one_session(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert blocks
    session: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page}, block {number + 1}", "exec"), session)
    assert "nan" not in capsys.readouterr().out


def test_every_choice_is_explained_in_the_guide() -> None:
    page = (DOCS / "core.md").read_text()
    names = [*aqf_core.TRANSFORMERS, *aqf_core.CONDITIONERS, *aqf_core.RECALIBRATIONS]
    assert [name for name in names if f"| `{name}`" not in page] == []
    choices = [*OBJECTIVES, "energy", *aqf_core.LEVELS]
    assert [name for name in choices if f'`"{name}"`' not in page] == []
    errors = [name for name in aqf_core.__all__ if name.endswith("Error")]
    assert [name for name in errors if f"`{name}`" not in page] == []


def test_links_exist() -> None:
    for page in DOCS.glob("*.md"):
        links = re.findall(r"\]\((?!https?://|#)([^)#]+)\)", page.read_text())
        assert [link for link in links if not (DOCS / link).exists()] == [], page.name
