"""The two commands, end to end on small data."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aqf_core.datasets import load_bundled
from aqf_core.estimators.presets import PRESETS, Settings

ROOT = Path(__file__).resolve().parents[3]


def tool(name: str) -> Callable[[list[str]], int]:
    """The main function of a script of tools/."""
    main: Callable[[list[str]], int] = runpy.run_path(str(ROOT / "tools" / f"{name}.py"))["main"]
    return main


@pytest.fixture(autouse=True)
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("default", "fast"):
        small = Settings(members=2, folds=2, hidden=(8,), steps=15, recalibrate="none")
        monkeypatch.setitem(PRESETS, name, small)


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def houses(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    size = rng.uniform(1, 5, 60)
    price = 10 * size + size * rng.exponential(size=60)
    lines = [
        f"{a:.3f},{rng.choice(['Ulm', 'Bonn'])},{b:.3f},{b / a:.3f},{'yes' if b > 30 else 'no'}"
        for a, b in zip(size, price, strict=True)
    ]
    path = tmp_path / "houses.csv"
    path.write_text("\n".join(["size,town,price,rate,dear", *lines]))
    return path


def test_own_table_is_run_once_and_reported(
    houses: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tool("run_tabular")
    output = tmp_path / "runs/r.jsonl"
    command = ["--csv", str(houses), "--target", "price", "--methods", "qfr", "qro", "gp"]
    command += ["--seeds", "2", "--first-seed", "5", "--output", str(output)]
    assert run(command) == 0
    rows = records(output)
    assert {(r["method"], r["seed"]) for r in rows} == {
        (m, s) for m in ("qfr", "qro", "gp") for s in (5, 6)
    }
    page = (tmp_path / "runs/r.md").read_text()
    assert "Random splits 5-6" in page
    assert "| Gaussian process |" in page and "CRPS - QFR" in page
    assert "--first-seed 5" in page
    for kind in ("crps", "calibration"):
        assert (tmp_path / f"runs/r_{kind}.png").read_bytes().startswith(b"\x89PNG")
        assert f"(r_{kind}.png)" in page
    capsys.readouterr()
    assert run(command) == 0
    assert records(output) == rows
    assert "6 of 6 results are known" in capsys.readouterr().err
    assert run([*command, "--seeds", "9", "--report-only"]) == 0
    assert records(output) == rows and "Random splits 5-6" in (tmp_path / "runs/r.md").read_text()
    assert run([*command, "--first-seed", "90", "--report-only"]) == 2


def test_two_classes_and_joint_targets(houses: Path, tmp_path: Path) -> None:
    run = tool("run_tabular")
    common = ["--seeds", "1", "--output", str(tmp_path / "r.jsonl")]
    classes = ["--csv", str(houses), "--target", "dear", "--methods", "cdfr", "logistic"]
    assert run([*classes, *common]) == 0
    page = (tmp_path / "r.md").read_text()
    assert "| logistic regression |" in page and "AUC - CDFR" in page
    assert (tmp_path / "r_roc.png").exists()
    joint = ["--csv", str(houses), "--target", "price", "rate"]
    assert run([*joint, "--methods", "qfr", "gaussian", *common]) == 0
    page = (tmp_path / "r.md").read_text()
    assert "| Gaussian, independent |" in page and "joint (energy)" in page
    rows = records(tmp_path / "r.jsonl")
    assert [r["task"] for r in rows] == ["classification"] * 2 + ["joint"] * 2
    assert len(rows[-1]["crps_targets"]) == 2


def test_published_figures_stand_beside_ours(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "uci").mkdir()
    X = rng.normal(size=(308, 6))
    table = np.column_stack([X, X[:, 0] + rng.normal(size=308)])
    np.savetxt(tmp_path / "uci/yacht.txt", table)
    page = tmp_path / "docs/tabular.md"
    command = ["--datasets", "yacht", "--data-root", str(tmp_path), "--methods", "qfr", "gaussian"]
    command += ["--seeds", "1", "--output", str(tmp_path / "r.jsonl"), "--markdown", str(page)]
    assert tool("run_tabular")(command) == 0
    text = page.read_text()
    assert "| yacht | published | .225 | .202 | .174 | .171 | - |" in text
    assert "published CRPS column is not comparable" in text
    assert "77 to test" in text and "calibration MAE of 0.036" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--csv", "x.csv"], "go together"),
        (["--target", "y"], "go together"),
        (["--csv", "x.csv", "--target", "y", "--datasets", "yacht"], "exclude each other"),
        (["--seeds", "0"], "--seeds must be at least 1"),
    ],
)
def test_contradictions_are_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        tool("run_tabular")(options)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_methods_of_another_task_do_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "r.jsonl"
    command = ["--datasets", "cancer", "--methods", "qro", "--output", str(output)]
    assert tool("run_tabular")(command) == 2
    assert "None of the chosen methods fits" in capsys.readouterr().err
    assert not output.exists()


def test_bundled_tables_run_without_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AQF_DATA", str(tmp_path))
    command = ["--datasets", "yacht", "--methods", "qfr", "--seeds", "1"]
    assert tool("run_tabular")([*command, "--output", str(tmp_path / "r.jsonl")]) == 0
    assert "progression stand in for yacht" in capsys.readouterr().err
    (row,) = records(tmp_path / "r.jsonl")
    assert (row["dataset"], row["test_rows"]) == ("progression", 111)
    assert len(load_bundled("progression")) == 442


@pytest.mark.slow
def test_synthetic_run_resumes_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tool("run_synthetic")
    output, page = tmp_path / "s.jsonl", tmp_path / "docs/synthetic.md"
    command = ["--seeds", "1", "--train", "60", "--test", "50", "--chain-train", "60"]
    command += ["--chain-test", "40", "--samples", "40", "--chains", "3"]
    command += ["--output", str(output), "--markdown", str(page)]
    assert run([*command, "--problems", "beta"]) == 0
    first = records(output)
    assert run([*command, "--problems", "beta", "poisson"]) == 0
    rows = records(output)
    assert rows[: len(first)] == first
    assert [r["method"] for r in rows if r["dataset"] == "poisson"] == [
        "aqf",
        "gaussian",
        "mdn",
        "qro",
        "poisson",
        "truth",
    ]
    assert {r["dataset"] for r in rows} == {"beta", "poisson", "3-D"}
    text = page.read_text()
    assert "### poisson: Poisson(f(x') + 2.75)" in text
    assert "| Gaussian MRF |" in text
    assert text.count("Nearest to the truth") == 3
    assert (tmp_path / "docs/synthetic_intervals.png").exists()
    assert "(synthetic_intervals.png)" in text


def test_synthetic_refuses_too_little(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tool("run_synthetic")(["--train", "3"])
    assert "--train must be at least 20" in capsys.readouterr().err
