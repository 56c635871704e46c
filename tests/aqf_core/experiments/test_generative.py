"""Generative experiments: equal models, resumable training, scores, the command end to end."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from aqf_core.datasets import Samples, load_digit_images
from aqf_core.errors import AQFError
from aqf_core.experiments.generative.figures import image_grid
from aqf_core.experiments.generative.jobs import choose_methods
from aqf_core.experiments.generative.models import (
    Architecture,
    FlowModel,
    build_model,
    parameter_count,
)
from aqf_core.experiments.generative.scoring import marginal_crps, sample_energy, score_samples
from aqf_core.experiments.generative.training import Schedule, Training, train
from aqf_core.losses import energy_score, sample_crps

ROOT = Path(__file__).resolve().parents[3]


def tool(name: str) -> Callable[[list[str]], int]:
    main: Callable[[list[str]], int] = runpy.run_path(str(ROOT / "tools" / f"{name}.py"))["main"]
    return main


def table(rows: int = 400, name: str = "ring") -> Samples:
    """A noisy ring: no Gaussian conditional fits it."""
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, 2 * np.pi, rows)
    points = np.column_stack([np.cos(angle), np.sin(angle)]) + 0.05 * rng.normal(size=(rows, 2))
    points = points.astype(np.float32)
    held = rows // 4
    return Samples(name, points[: 2 * held], points[2 * held : -held], points[-held:], (2,))


@pytest.mark.parametrize(
    ("conditioner", "hidden"),
    [("masked_mlp", (64, 64)), ("recurrent", (32,)), ("pixelcnn", (24, 24))],
)
def test_methods_have_equal_numbers_of_parameters(
    conditioner: str, hidden: tuple[int, ...]
) -> None:
    digits = load_digit_images()
    for by_class in (False, True):
        architecture = Architecture(conditioner, hidden, by_class=by_class)
        counts = [
            parameter_count(build_model(method, digits, architecture))
            for method in ("naqf", "maf-ll", "maf-ql")
        ]
        assert counts[1] == counts[2]
        assert counts[1] == pytest.approx(counts[0], rel=0.03)


def test_the_peer_has_as_many_parameters_and_scores(tmp_path: Path) -> None:
    pytest.importorskip("zuko")
    data, architecture = table(), Architecture(hidden=(64, 64))
    ours, theirs = (build_model(m, data, architecture) for m in ("naqf", "zuko-nsf"))
    assert parameter_count(theirs) == pytest.approx(parameter_count(ours), rel=0.05)
    rows = torch.from_numpy(data.test)
    grid = torch.cartesian_prod(*[torch.linspace(-6, 6, 121)] * 2)
    mass = float(theirs.log_prob(grid).exp().sum()) * 0.01
    assert mass == pytest.approx(1.0, abs=0.02)  # the scaling is part of the density
    assert theirs.sample(5).shape == (5, 2) and bool(theirs.crps(rows).isnan().all())


@pytest.mark.parametrize("method", ["naqf", "zuko-nsf"])
def test_linear_prediction_is_a_part_of_the_density_and_the_samples(method: str) -> None:
    if method == "zuko-nsf":
        pytest.importorskip("zuko")
    torch.manual_seed(0)
    mix = torch.tensor([[2.0, -1.0], [0.0, 0.05]])
    train_rows, test = (torch.randn(n, 2) @ mix + 3.0 for n in (2000, 4000))
    data = Samples("line", train_rows.numpy(), test.numpy(), test.numpy(), (2,))
    exact = torch.distributions.MultivariateNormal(torch.full((2,), 3.0), mix.T @ mix)
    # The untrained flow is near the Gaussian that fits best: here the truth.
    model = build_model(method, data, Architecture(hidden=(16,), linear=True))
    if method == "naqf":
        assert float(model.log_prob(test).mean()) > float(exact.log_prob(test).mean()) - 0.2
        assert float(model.crps(test)[:, 1].mean()) == pytest.approx(0.05 * 0.5642, rel=0.1)
        plain = build_model(method, data, Architecture(hidden=(16,)))
        assert float(plain.crps(test)[:, 1].mean()) > 0.3
    grid = torch.cartesian_prod(torch.linspace(-11, 17, 141), torch.linspace(-5, 11, 1601))
    assert float(model.log_prob(grid).exp().sum()) * 0.2 * 0.01 == pytest.approx(1.0, abs=0.03)
    drawn = model.sample(4000)
    # x_2 = -x_1 / 2 + 4.5 but for noise of .05.
    left = drawn @ torch.tensor([0.5, 1.0]) - 4.5
    assert float(left.std()) < 0.15
    with pytest.raises(AQFError, match="leave that to tables"):
        build_model("naqf", load_digit_images(), Architecture(hidden=(8,), linear=True))


def test_grey_levels_come_back_as_grey_levels() -> None:
    digits = load_digit_images()
    model = build_model("naqf", digits, Architecture(hidden=(32,), by_class=True))
    assert isinstance(model, FlowModel)
    rows = torch.from_numpy(digits.test)
    noisy = model.prepared(rows)
    assert torch.equal(noisy.floor(), rows) and float((noisy - rows).mean()) > 0.4
    samples = model.sample(50)
    assert torch.equal(samples, samples.round())
    assert 0 <= float(samples.min()) and float(samples.max()) <= 16
    # All pixels have one scale, the border's that hardly vary too.
    assert len(model.flow.space.unit.unique()) == 1
    with pytest.raises(AQFError, match="has no classes"):
        build_model("naqf", replace(digits, labels=None), Architecture(by_class=True))


@pytest.mark.parametrize("method", ["naqf", "maf-ll"])
def test_an_interrupted_training_ends_like_an_uninterrupted_one(
    method: str, tmp_path: Path
) -> None:
    data, schedule = table(), Schedule(steps=30, evaluations=3, batch_size=32)
    architecture = Architecture(hidden=(16,))

    def fresh() -> torch.nn.Module:
        return build_model(method, data, architecture, seed=1)

    whole, history = train(fresh(), data, schedule, seed=2)

    class Stop(Exception):
        pass

    def stop_at_20(state: Training) -> None:
        if state.steps == 20:
            raise Stop

    file = tmp_path / "model.pt"
    with pytest.raises(Stop):
        train(fresh(), data, schedule, seed=2, checkpoint=file, report=stop_at_20)
    resumed, second = train(fresh(), data, schedule, seed=2, checkpoint=file)
    assert [p["step"] for p in second.curve] == [10, 20, 30]
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert [p["crps"] for p in second.curve] == [p["crps"] for p in history.curve]
    # Another schedule starts anew.
    _, other = train(fresh(), data, replace(schedule, steps=6), seed=2, checkpoint=file)
    assert other.steps == 6


def test_training_by_cpu_time_stops_in_time() -> None:
    data = table()
    model = build_model("maf-ql", data, Architecture(hidden=(16,)))
    _, history = train(model, data, Schedule(cpu_seconds=0.5, evaluations=4, batch_size=32))
    assert 0.5 <= history.cpu_seconds < 1.0
    assert len(history.curve) >= 2 and history.steps > 10


@pytest.mark.slow
def test_a_neural_transformer_fits_what_an_affine_one_cannot() -> None:
    data = table(2000)
    schedule = Schedule(steps=500, evaluations=5, learning_rate=5e-3)
    scores = {}
    for method in ("naqf", "maf-ql", "maf-ll"):
        model = build_model(method, data, Architecture(hidden=(32, 32)))
        model, _ = train(model, data, schedule)
        rows = torch.from_numpy(data.test)
        samples = model.sample(2000)
        scores[method] = (float(model.crps(rows).mean()), sample_energy(samples, rows))
    assert scores["naqf"][0] < 0.95 * scores["maf-ql"][0]
    assert scores["naqf"][1] < scores["maf-ql"][1]
    assert scores["maf-ql"][0] < scores["maf-ll"][0]


def test_scores_of_shared_samples_equal_the_general_ones() -> None:
    samples, x = torch.randn(50, 4), torch.randn(30, 4).round()
    shared = samples[:, None].expand(-1, 30, -1)
    assert sample_energy(samples, x) == pytest.approx(float(energy_score(shared, x)) / 2, abs=1e-5)
    assert marginal_crps(samples, x) == pytest.approx(float(sample_crps(shared, x)), abs=1e-5)
    # Grey levels have ties.
    assert marginal_crps(x, x) == pytest.approx(
        float(sample_crps(x[:, None].expand(-1, 30, -1), x)), abs=1e-5
    )


def test_samples_that_broke_are_counted_and_left_out() -> None:
    data = table()
    samples = torch.from_numpy(data.validation).clone()
    samples[:10] = float("nan")
    scores = score_samples(samples, data)
    assert scores["broken"] == pytest.approx(0.1)
    assert scores["d_loss"] == pytest.approx(0.5, abs=0.12)
    assert all(np.isfinite(value) for value in scores.values())


def test_methods_are_chosen_by_name_and_group() -> None:
    assert choose_methods(["all"], images=True)[0] == ["maf-ll", "maf-ql", "naqf", "data"]
    assert "zuko-nsf" in choose_methods(["all"], images=False)[0]
    with pytest.raises(AQFError, match="unknown method 'gan'"):
        choose_methods(["gan"], images=True)


def test_grid_shows_every_image_once() -> None:
    images = np.zeros((3, 2, 2))
    images[1] = 5
    page = image_grid(images, columns=2, scale=1)
    assert page.shape == (7, 7)
    assert (page == 0).sum() == 4 and (page[1:3, 4:6] == 0).all()


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_digits_run_resumes_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tool("run_generative")
    output = tmp_path / "runs/g.jsonl"
    assert run(["--report-only", "--output", str(output)]) == 2
    assert "has none of these results" in capsys.readouterr().err
    command = ["--hidden", "16", "--steps", "12", "--evaluations", "2", "--output", str(output)]
    assert run([*command, "--methods", "naqf", "data"]) == 0
    first = records(output)
    assert run([*command, "--methods", "paper", "data"]) == 0
    rows = records(output)
    assert rows[:2] == first
    assert [r["method"] for r in rows] == ["naqf", "data", "maf-ll", "maf-ql"]
    assert "2 of 4 results are known" in capsys.readouterr().err
    text = (tmp_path / "runs/g.md").read_text()
    assert run([*command, "--methods", "paper", "data", "--seeds", "9", "--report-only"]) == 0
    again = (tmp_path / "runs/g.md").read_text()
    assert text.split("```")[2] == again.split("```")[2] and records(output) == rows
    assert "| MAF-LL |" in text and "| training rows |" in text
    assert "D-Loss, published" in text and ".723" in text
    for name in ("digits_naqf", "digits_maf-ll", "curves"):
        assert (tmp_path / f"runs/g_{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"(g_{name}.png)" in text
    assert list((tmp_path / "runs/g_samples").glob("*.pt")) == []
    reference = next(r for r in rows if r["method"] == "data")
    assert reference["copies"] == 1.0 and 0.4 < reference["d_loss"] < 0.6


def test_own_table_gets_pictures_of_pairs_and_samples_in_its_units(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, 200))
    rows = [f"{1000 + 10 * a:.3f},{a**2 + 0.1 * b:.3f}" for a, b in zip(x, noise, strict=True)]
    file = tmp_path / "own.csv"
    file.write_text("\n".join(["weight,size", *rows]))
    output = tmp_path / "g.jsonl"
    command = ["--csv", str(file), "--methods", "naqf", "data", "--hidden", "16", "--steps", "60"]
    assert tool("run_generative")([*command, "--output", str(output)]) == 0
    record, reference = records(output)
    assert (
        reference["method"] == "data"
        and record["dataset"] == "own"
        and 0 <= record["two_sample_p"] <= 1
    )
    with np.load(tmp_path / "g_samples/own_naqf_0.npz", allow_pickle=False) as stored:
        assert 900 < np.median(stored["samples"][:, 0]) < 1100
    pictures = re.findall(r"\]\((.*?png)\)", (tmp_path / "g.md").read_text())
    assert pictures == ["g_own_naqf.png", "g_curves.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    samples = (tmp_path / "g_samples/own_naqf_0.csv").read_text().splitlines()
    assert samples[0] == "weight,size" and len(samples) == 1001


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--csv", "x.csv", "--dataset", "power"], "exclude each other"),
        (["--dataset", "csv"], "needs --csv FILE"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--cpu-seconds", "0"], "--cpu-seconds must be positive"),
        (["--hidden", "0"], "--hidden sizes must be at least 1"),
    ],
)
def test_contradictions_are_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        tool("run_generative")(options)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gas", "mnist"])
def test_missing_data_end_before_anything_is_written(name: str, tmp_path: Path) -> None:
    output = tmp_path / "g.jsonl"
    with pytest.raises(AQFError, match="which does not exist"):
        tool("run_generative")(
            ["--dataset", name, "--data-root", str(tmp_path), "--output", str(output)]
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_speed_is_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zuko")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    page, numbers = tmp_path / "docs/speed.md", tmp_path / "speed.json"
    command = ["--points", "20", "--naf-points", "2", "--images", "2", "--hidden", "32"]
    command += ["--side", "6", "--repeats", "1", "--threads", "1"]
    written = ["--markdown", str(page), "--json", str(numbers)]
    assert tool("benchmark_generative")([*command, *written]) == 0
    sys.modules.pop("benchmark_core")
    report = json.loads(numbers.read_text())
    assert [row["method"].split(",")[0] for row in report["digits"]] == [*["AQF"] * 3, "zuko NAF"]
    assert "| zuko NAF, scaled |" in page.read_text()
    assert report["images"]["passes"] == pytest.approx(36 * report["images"]["pass"])
