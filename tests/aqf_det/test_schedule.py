"""Learning rates of runs in two stages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aqf_det.engine.schedule import RestartedCosineLR, RestartedMultiStepLR

STEPPED = {"milestones": [2, 5], "restarts": [4]}
COSINE = {"starts": [0, 4], "total": 8, "peaks": [1.0, 0.5], "warmup": 1, "final": 0.1}


def schedule(kind: type, options: dict[str, Any]) -> tuple[Any, torch.optim.Optimizer]:
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    return kind(optimiser, by_epoch=True, **options), optimiser


def rates(scheduler: Any, optimiser: torch.optim.Optimizer, epochs: int) -> list[float]:
    found = []
    for _ in range(epochs):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return found


def test_steps_start_again() -> None:
    found = rates(*schedule(RestartedMultiStepLR, STEPPED), epochs=7)
    assert found == pytest.approx([2.0, 2.0, 0.2, 0.2, 2.0, 0.2, 0.2])


def test_each_stage_rises_and_falls_along_a_cosine() -> None:
    found = rates(*schedule(RestartedCosineLR, COSINE), epochs=8)
    first, second = found[:4], found[4:]
    assert second == pytest.approx([0.5 * rate for rate in first])
    assert first[0] < first[1] == 2.0 > first[2] > first[3] > 0.2


@pytest.mark.parametrize(
    ("kind", "options", "longer"),
    [
        (RestartedMultiStepLR, STEPPED, {"milestones": [4], "restarts": []}),
        (RestartedCosineLR, COSINE, COSINE | {"total": 16}),
    ],
)
def test_a_resumed_run_follows_the_present_config(
    kind: type, options: dict[str, Any], longer: dict[str, Any]
) -> None:
    begun, optimiser = schedule(kind, options)
    rates(begun, optimiser, epochs=3)
    same, resumed = schedule(kind, options), schedule(kind, longer)
    for scheduler, its_optimiser in (same, resumed):
        scheduler.load_state_dict(begun.state_dict())
        its_optimiser.load_state_dict(optimiser.state_dict())
    assert rates(*same, epochs=5) == rates(begun, optimiser, epochs=5)
    # The rate of the first resumed epoch was set before the interruption.
    assert rates(*resumed, epochs=5)[1:] == rates(*schedule(kind, longer), epochs=8)[4:]


def test_stages_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="starts must ascend from 0 to total"):
        schedule(RestartedCosineLR, COSINE | {"starts": [0, 9]})
    with pytest.raises(ValueError, match="2 stages need as many peaks"):
        schedule(RestartedCosineLR, COSINE | {"peaks": [1.0]})
