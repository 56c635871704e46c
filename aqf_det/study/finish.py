"""The last steps of a study: options of prediction, pictures, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from .gallery import draw_gallery
from .options import OPTIONS, Option, Predictor, calibrations, hold_out, measure
from .progress import Step, output_to
from .report import write_report
from .run import FIRST, Study

GALLERY = "gallery"
Report = Callable[[float], None]


def finishing_steps(study: Study, command: str) -> list[Step]:
    """What follows the runs; the report is always written anew."""
    return [
        Step(
            "measure options of prediction",
            500,
            lambda: all(study.has(_entry(study, option)) for option in _possible(study)),
            partial(_measure, study),
        ),
        Step("draw the gallery", 30, partial(study.has, GALLERY), lambda report: _draw(study)),
        Step("write the report", 60, lambda: False, lambda report: _write(study, command)),
    ]


def _possible(study: Study) -> list[Option]:
    """An ensemble needs two members."""
    return [
        option
        for option in OPTIONS
        if (study.size.seeds > 1 or not option.all_seeds)
        and (study.more or not option.all_detectors)
    ]


def _entry(study: Study, option: Option) -> str:
    marks = [other.digest for other in study.others] if option.all_detectors else []
    return "_".join(["option", option.name, *marks])


def _predictor(study: Study, option: Option) -> Predictor:
    seeds = range(study.size.seeds if option.all_seeds else 1)
    runs = [replace(FIRST, dropout=option.dropout, seed=seed) for seed in seeds]
    found = [study.trained(run) for run in runs]
    if option.all_detectors:
        found += [other.trained(FIRST) for other in study.others]
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
        study.ledger.append(_entry(study, option), {"title": option.title, **result})


def _draw(study: Study) -> None:
    with output_to(study.log):
        pictures = draw_gallery(study, FIRST)
    study.ledger.append(GALLERY, {"pictures": [path.name for path in pictures]})


def _write(study: Study, command: str) -> None:
    entries = study.ledger.entries()
    with output_to(study.log):
        write_report(
            study, [entries[_entry(study, option)] for option in _possible(study)], command
        )
