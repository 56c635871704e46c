"""How well each transformer recovers known conditional distributions in a fixed time.

    python tools/benchmark_recovery.py --out runs/recovery.jsonl --markdown docs/results/recovery.md

Every family is trained on the same stream of data, with the same small network, for the same CPU
time on one thread. Its figure is the excess CRPS over the oracle, exactly and without test noise:

    E CRPS(F) - E CRPS(F*) = integral (F - F*)^2 dt,     E CRPS(F*) = integral F* (1 - F*) dt.

Results are appended to a file of JSON lines, one per run; runs already in it are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special, stats

from aqf_core.quantile_function import QuantileFunction
from aqf_core.transformers import TRANSFORMERS

Array = NDArray[np.float64]

CONTEXT = 2
GOALS = {"bimodal": 0.5, "heavy_tailed": 1.0}
FAMILIES = sorted(TRANSFORMERS)
EXPRESSIVE = [name for name in FAMILIES if name != "affine"]


@dataclass(frozen=True)
class Problem:
    """A conditional distribution of y given a context c of shape (n, CONTEXT), c ~ U(-1, 1).

    Attributes:
        draw: (rng, c) -> y of shape (n,).
        cdf: (t, c) -> F(t | c) for t (g,) and c (n, CONTEXT), shape (n, g).
        grid: the points (g + 1,) between which the CRPS integrals are evaluated.
        support: support of y for the model.
    """

    draw: Callable[[np.random.Generator, Array], Array]
    cdf: Callable[[Array, Array], Array]
    grid: Array
    support: tuple[float | None, float | None] | None = None


def _bimodal() -> Problem:
    def parts(c: Array) -> tuple[Array, Array, Array, Array]:
        weight = special.expit(c[:, 0])
        centre = np.sin(2.0 * c[:, 1])
        gap = 2.0 + 0.5 * c[:, 0]
        return weight, centre - gap, centre + gap, 0.25 + 0.1 * c[:, 1]

    def draw(rng: np.random.Generator, c: Array) -> Array:
        weight, low, high, scale = parts(c)
        return np.where(rng.random(len(c)) < weight, low, high) + scale * rng.standard_normal(
            len(c)
        )

    def cdf(t: Array, c: Array) -> Array:
        weight, low, high, scale = (p[:, None] for p in parts(c))
        return weight * special.ndtr((t - low) / scale) + (1 - weight) * special.ndtr(
            (t - high) / scale
        )

    return Problem(draw, cdf, np.linspace(-7.0, 7.0, 1401))


def _skewed() -> Problem:
    def parts(c: Array) -> tuple[Array, Array, Array]:
        return np.sin(2.0 * c[:, 1]), np.exp(0.5 * c[:, 1]), 0.6 + 0.3 * c[:, 0]

    def draw(rng: np.random.Generator, c: Array) -> Array:
        shift, scale, sigma = parts(c)
        return shift + scale * np.exp(sigma * rng.standard_normal(len(c)))

    def cdf(t: Array, c: Array) -> Array:
        shift, scale, sigma = (p[:, None] for p in parts(c))
        ratio = np.maximum((t - shift) / scale, 1e-300)
        return special.ndtr(np.log(ratio) / sigma)

    return Problem(draw, cdf, _wide_grid(1.0, 300.0))


def _heavy_tailed() -> Problem:
    freedom = 2.5

    def parts(c: Array) -> tuple[Array, Array]:
        return np.sin(2.0 * c[:, 0]), np.exp(0.5 * c[:, 1])

    def draw(rng: np.random.Generator, c: Array) -> Array:
        loc, scale = parts(c)
        return loc + scale * rng.standard_t(freedom, len(c))

    def cdf(t: Array, c: Array) -> Array:
        loc, scale = (p[:, None] for p in parts(c))
        return stats.t.cdf((t - loc) / scale, freedom)

    return Problem(draw, cdf, _wide_grid(0.0, 1e5))


def _bounded() -> Problem:
    def parts(c: Array) -> tuple[Array, Array]:
        return np.exp(0.7 + c[:, 0]), np.exp(0.3 + c[:, 1])

    def draw(rng: np.random.Generator, c: Array) -> Array:
        a, b = parts(c)
        return rng.beta(a, b)

    def cdf(t: Array, c: Array) -> Array:
        a, b = (p[:, None] for p in parts(c))
        return special.betainc(a, b, np.clip(t, 0.0, 1.0))

    return Problem(draw, cdf, np.linspace(0.0, 1.0, 1001), support=(0.0, 1.0))


def _discrete() -> Problem:
    labels = 5

    def cumulative(c: Array) -> Array:
        k = np.arange(1, labels)
        return special.expit(1.5 * (k - labels / 2) + 1.5 * np.sin(2.0 * c[:, :1]) + c[:, 1:])

    def draw(rng: np.random.Generator, c: Array) -> Array:
        return (rng.random((len(c), 1)) > cumulative(c)).sum(1).astype(np.float64)

    def cdf(t: Array, c: Array) -> Array:
        steps = np.concatenate([np.zeros((len(c), 1)), cumulative(c), np.ones((len(c), 1))], 1)
        return steps[:, np.clip(np.floor(t).astype(int) + 1, 0, labels)]

    return Problem(draw, cdf, np.linspace(-0.5, labels - 0.5, 2001), support=(-0.5, labels - 0.5))


def _wide_grid(centre: float, reach: float) -> Array:
    """Points dense around the centre and ever wider apart towards centre +- reach."""
    end = math.asinh(reach / 0.5)
    return centre + 0.5 * np.sinh(np.linspace(-end, end, 2001))


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "bimodal": _bimodal,
    "skewed": _skewed,
    "heavy_tailed": _heavy_tailed,
    "bounded": _bounded,
    "discrete": _discrete,
}


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; the same for every family.

    Attributes:
        seconds: CPU time of the training.
        steps: when given, how many steps to train instead, for tests that must not depend on the
            speed of the machine.
    """

    seconds: float = 5.0
    steps: int | None = None
    batch: int = 512
    learning_rate: float = 1e-2
    hidden: tuple[int, ...] = (64, 64)
    levels: int = 8
    pool: int = 2**18


@dataclass(frozen=True)
class Result:
    """One line of the results file; `excess` is in percent of the oracle's CRPS."""

    problem: str
    family: str
    direction: str
    seed: int
    seconds: float
    excess: float
    oracle: float
    steps: int


def train(model: QuantileFunction, problem: Problem, recipe: Recipe, seed: int) -> int:
    """Train in place as long as the recipe says and return the number of steps."""
    rng = np.random.default_rng(seed)
    c = rng.uniform(-1.0, 1.0, (recipe.pool, CONTEXT))
    y = torch.from_numpy(problem.draw(rng, c)).float()
    context = torch.from_numpy(c).float()
    model.fit_scaling(y)
    optimiser = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate, fused=True)
    start, steps = time.process_time(), 0

    def progress() -> float:
        if recipe.steps is not None:
            return steps / recipe.steps
        return (time.process_time() - start) / recipe.seconds

    while (done := progress()) < 1.0:
        warm, cool = min(1.0, done / 0.05), 0.5 + 0.5 * math.cos(math.pi * done)
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate * warm * cool
        first = (steps * recipe.batch) % (recipe.pool - recipe.batch + 1)
        rows = slice(first, first + recipe.batch)
        loss = model.loss(y[rows], context[rows], levels=recipe.levels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        steps += 1
    return steps


@torch.no_grad()
def predicted_cdf(model: QuantileFunction, c: Array, t: Array) -> Array:
    """F(t | c) of the model for t (g,) and c (n, CONTEXT), shape (n, g)."""
    dist = model(torch.from_numpy(c).float())
    if "cdf" in model.transformer.closed_form:
        return dist.cdf(torch.from_numpy(t).float()[:, None]).T.double().numpy()
    # Interpolating a dense table of quantiles is as good as inverting Q, and much faster.
    u = special.expit(np.linspace(-16.0, 16.0, 4001))
    q = dist.icdf(torch.from_numpy(u).float()[:, None]).T.double().numpy()
    return np.stack([np.interp(t, row, u, left=0.0, right=1.0) for row in q])


@torch.no_grad()
def excess_crps(
    model: QuantileFunction, problem: Problem, contexts: int = 128
) -> tuple[float, float]:
    """(excess over the oracle in percent, the oracle's CRPS), averaged over contexts."""
    rng = np.random.default_rng(12345)
    c = rng.uniform(-1.0, 1.0, (contexts, CONTEXT))
    middle = 0.5 * (problem.grid[1:] + problem.grid[:-1])
    width = np.diff(problem.grid)
    truth = problem.cdf(middle, c)
    predicted = predicted_cdf(model, c, middle)
    oracle = float((truth * (1.0 - truth) @ width).mean())
    return 100.0 * float(((predicted - truth) ** 2 @ width).mean()) / oracle, oracle


def run_one(
    problem_name: str, family: str, direction: str, seed: int, recipe: Recipe, contexts: int = 128
) -> Result:
    """Train one family on one problem and measure it."""
    problem = PROBLEMS[problem_name]()
    torch.manual_seed(seed)
    model = QuantileFunction(
        family,
        context=CONTEXT,
        hidden=recipe.hidden,
        direction=direction,  # type: ignore[arg-type]
        support=problem.support,
    )
    steps = train(model, problem, recipe, seed)
    excess, oracle = excess_crps(model, problem, contexts)
    return Result(problem_name, family, direction, seed, recipe.seconds, excess, oracle, steps)


def table(results: Sequence[Result]) -> str:
    """Mean and range over seeds of the excess in percent, a row per family."""
    rows = sorted({(r.direction, r.family) for r in results}, reverse=True)
    problems = [name for name in PROBLEMS if any(r.problem == name for r in results)]
    lines = [
        "| family | direction | "
        + " | ".join(name.replace("_", " ") for name in problems)
        + " | steps |",
        "|---|---|" + "---|" * (len(problems) + 1),
    ]
    for direction, family in rows:
        cells = []
        for name in problems:
            values = [
                r.excess
                for r in results
                if (r.direction, r.family, r.problem) == (direction, family, name)
            ]
            cells.append(
                f"{mean(values):.2f} ({min(values):.2f}-{max(values):.2f})" if values else "-"
            )
        steps = mean(r.steps for r in results if (r.direction, r.family) == (direction, family))
        lines.append(f"| {family} | {direction} | " + " | ".join(cells) + f" | {steps:.0f} |")
    return "\n".join(lines)


def missed_goals(results: Iterable[Result]) -> list[str]:
    """The expressive families whose mean excess is above a goal, in words."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for r in results:
        if r.problem in GOALS and r.family in EXPRESSIVE:
            found.setdefault((r.family, r.direction, r.problem), []).append(r.excess)
    return [
        f"{family} ({direction}) on {problem}: {mean(values):.2f} % > {GOALS[problem]} %"
        for (family, direction, problem), values in sorted(found.items())
        if mean(values) > GOALS[problem]
    ]


def report(results: Sequence[Result], seconds: float) -> str:
    """The page that `--markdown` writes."""
    missed = missed_goals(results)
    goals = ", ".join(f"{limit} % ({name.replace('_', ' ')})" for name, limit in GOALS.items())
    verdict = (
        "Every expressive family is within them."
        if not missed
        else "Missed: " + "; ".join(missed) + "."
    )
    seeds = len({r.seed for r in results})
    return f"""# Recovering known conditional distributions

Excess CRPS over the true distribution in percent, mean (smallest-largest) of {seeds} seeds, after
{seconds:g} s of one CPU thread: the same data, network (two hidden layers of 64), optimiser and
schedule for every family. Goals: at most {goals}. {verdict}

{table(results)}

The excess is exact, not estimated on a test set: it is the integral of the squared distance between
the learned and the true CDF. Problems: a mixture of two separate Gaussians, a skewed law, Student's
t with 2.5 degrees of freedom, a law on an interval, and labels on the integers; location, scale and
shape depend on two inputs. `affine` (a Gaussian) is the baseline; `steps` is how many batches of
512 a family saw in its time. Direction "quantile" models Q and integrates the quantile loss over 8
levels, "cdf" models F and integrates the CRPS over 32 points; `piecewise_linear` and `affine` use
their closed forms in both.

```bash
python tools/benchmark_recovery.py --markdown docs/results/recovery.md
```
"""


def read_results(path: Path) -> list[Result]:
    """The runs already in the file of JSON lines."""
    if not path.is_file():
        return []
    return [Result(**json.loads(line)) for line in path.read_text().splitlines() if line.strip()]


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument(
        "--directions", nargs="+", choices=["quantile", "cdf"], default=["quantile", "cdf"]
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU time per training")
    parser.add_argument("--out", type=Path, default=Path("runs/recovery.jsonl"))
    parser.add_argument("--markdown", type=Path, help="write the page with the table here")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, then print (and write) the table."""
    args = parse_args(argv)
    torch.set_num_threads(1)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    results = [r for r in read_results(args.out) if r.seconds == args.seconds]
    known = {(r.problem, r.family, r.direction, r.seed) for r in results}
    todo = [
        run
        for seed in range(args.seeds)
        for problem in args.problems
        for direction in args.directions
        for family in args.families
        if (run := (problem, family, direction, seed)) not in known
    ]
    for i, (problem, family, direction, seed) in enumerate(todo, 1):
        result = run_one(problem, family, direction, seed, Recipe(seconds=args.seconds))
        with args.out.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        results.append(result)
        print(
            f"[{i}/{len(todo)}] {problem} {family} {direction} seed {seed}: {result.excess:.3f} %",
            flush=True,
        )
    print(table(results))
    if args.markdown is not None:
        args.markdown.parent.mkdir(parents=True, exist_ok=True)
        args.markdown.write_text(report(results, args.seconds))


if __name__ == "__main__":
    main()
