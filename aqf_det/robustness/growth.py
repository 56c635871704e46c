"""Do predicted intervals widen with the severity of a corruption?

Objects that a detector loses are the hard ones, so a mean over what it still finds may fall
although every prediction became less certain. Widths are therefore compared on the same ground
truths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..evaluation import BoxPairs, Estimate, PairedDifference, paired_bootstrap

WIDTH, ERROR = "mpiw_90", "crps"


@dataclass(frozen=True)
class Growth:
    """Widths of the 90 % intervals along one kind of corruption.

    Attributes:
        severities: Rising, without 0.
        from_clean: Per severity, width and CRPS against those of the same objects on clean images;
            None where no object is found under both.
        steps: Per severity, the width against that at the severity before (the first: clean).
    """

    severities: tuple[int, ...]
    from_clean: tuple[dict[str, PairedDifference] | None, ...]
    steps: tuple[PairedDifference | None, ...]

    @property
    def verdict(self) -> str:
        """``"grows"``, ``"grows, not at every step"`` or ``"does not grow"``.

        Widths grow when those at the highest severity exceed those on clean images and the 95 %
        interval of the difference excludes 0; at every step when every step's difference is
        positive.
        """
        last = self.from_clean[-1]
        if last is None or not last[WIDTH].low > 0:
            return "does not grow"
        every = all(step is not None and step.difference > 0 for step in self.steps)
        return "grows" if every else "grows, not at every step"

    def ratios(self, metric: str) -> list[Estimate]:
        """Value at each severity relative to clean images, on the same objects."""
        return [
            Estimate(float("nan")) if entry is None else _ratio(entry[metric])
            for entry in self.from_clean
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "verdict": self.verdict,
            "severities": list(self.severities),
            "from_clean": [
                entry and {name: item.to_dict() for name, item in entry.items()}
                for entry in self.from_clean
            ],
            "width_steps": [step and step.to_dict() for step in self.steps],
        }


def _ratio(difference: PairedDifference) -> Estimate:
    base = difference.second
    return Estimate(difference.first / base, 1 + difference.low / base, 1 + difference.high / base)


def growth_of(
    clean: BoxPairs,
    corrupted: Sequence[tuple[int, BoxPairs]],
    replicates: int = 1000,
    seed: int = 0,
) -> Growth:
    """Compare tables of pairs of one kind of corruption with each other.

    Args:
        clean: Pairs on clean images.
        corrupted: Severities in rising order, with their pairs.
        replicates: Bootstrap replicates over images.
        seed: Seed of the bootstrap.
    """
    from_clean, steps = [], []
    before = clean
    for _, pairs in corrupted:
        from_clean.append(_compare(pairs, clean, (WIDTH, ERROR), replicates, seed))
        step = _compare(pairs, before, (WIDTH,), replicates, seed)
        steps.append(None if step is None else step[WIDTH])
        before = pairs
    return Growth(tuple(s for s, _ in corrupted), tuple(from_clean), tuple(steps))


def _compare(
    first: BoxPairs, second: BoxPairs, metrics: Sequence[str], replicates: int, seed: int
) -> dict[str, PairedDifference] | None:
    """``first - second`` on common objects, or None without any."""

    def objects(pairs: BoxPairs) -> set[tuple[str, int]]:
        rows = zip(pairs.image[pairs.strict], pairs.truth_index[pairs.strict], strict=True)
        return {(pairs.image_ids[image], int(truth)) for image, truth in rows}

    if not objects(first) & objects(second):
        return None
    return paired_bootstrap(first, second, metrics, replicates=replicates, seed=seed)
