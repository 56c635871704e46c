"""The last steps of a study: options of prediction, pictures, report."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .gallery import draw_gallery
from .options import OPTIONS, Option, Predictor, calibrations, hold_out, measure
from .plan import Run
from .progress import Step, output_to
from .report import write_report
from .run import Study
from .variants import QFR

GALLERY = "gallery"
Report = Callable[[float], None]


def finishing_steps(study: Study, command: str) -> list[Step]:
    """What follows the runs; the report is always written anew."""
    return [
        Step(
            "measure options of prediction",
            500,
            lambda: all(study.has(_entry(option)) for option in _possible(study)),
            partial(_measure, study),
        ),
        Step("draw the gallery", 30, partial(study.has, GALLERY), lambda report: _draw(study)),
        Step("write the report", 60, lambda: False, lambda report: _write(study, command)),
    ]


def _possible(study: Study) -> list[Option]:
    """An ensemble needs two members."""
    return [option for option in OPTIONS if study.size.seeds > 1 or not option.all_seeds]


def _entry(option: Option) -> str:
    return f"option_{option.name}"


def _predictor(study: Study, option: Option) -> Predictor:
    seeds = range(study.size.seeds if option.all_seeds else 1)
    found = [study.trained(Run(QFR, option.dropout, "unseen", seed)) for seed in seeds]
    wholes, members = zip(*found, strict=True)
    return Predictor(option, wholes, list(zip(*members, strict=True)))


def _measure(study: Study, report: Report) -> None:
    options = _possible(study)
    with output_to(study.log):
        predictors = [_predictor(study, option) for option in options]
        judge = study.judge(study.size.replicates)
        held = hold_out(
            predictors, study.loader("held_out"), judge, lambda share: report(0.4 * share)
        )
        repairs = calibrations(predictors, held, study.size.sizes)
        results = measure(
            predictors,
            repairs,
            study.loader("test"),
            judge,
            lambda share: report(0.4 + 0.6 * share),
        )
    for option, result in zip(options, results, strict=True):
        study.ledger.append(_entry(option), {"title": option.title, **result})


def _draw(study: Study) -> None:
    with output_to(study.log):
        pictures = draw_gallery(study, Run(QFR, False, "unseen", 0))
    study.ledger.append(GALLERY, {"pictures": [path.name for path in pictures]})


def _write(study: Study, command: str) -> None:
    entries = study.ledger.entries()
    with output_to(study.log):
        write_report(study, [entries[_entry(option)] for option in _possible(study)], command)
