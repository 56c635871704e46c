"""Records, resuming, and comparing paired results."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from aqf_core.datasets import DataError
from aqf_core.experiments.comparison import hand_written, number, paired
from aqf_core.experiments.records import RecordFile
from aqf_core.experiments.runner import Job, run_jobs, run_tool


def job(seed: int, calls: list[int], fail: bool = False) -> Job:
    def work() -> dict[str, float]:
        calls.append(seed)
        if fail:
            raise RuntimeError("no luck")
        return {"crps": float(seed)}

    return Job({"dataset": "d", "method": "m", "seed": seed}, work)


def test_a_second_run_does_what_is_missing(tmp_path: Path) -> None:
    file, calls = RecordFile(tmp_path / "new/r.jsonl"), list[int]()
    run_jobs([job(0, calls), job(1, calls)], file, io.StringIO())
    before = file.path.read_text()
    shown = io.StringIO()
    results, failures = run_jobs([job(s, calls) for s in (1, 2, 0)], file, shown)
    assert calls == [0, 1, 2]
    assert [r["crps"] for r in results] == [1, 2, 0]
    assert failures == []
    assert file.path.read_text().startswith(before)
    assert "2 of 3 results are known" in shown.getvalue()
    assert "[1/1] d, m, seed 2: crps 2.0000" in shown.getvalue()


def test_a_line_cut_off_by_a_crash_harms_nothing(tmp_path: Path) -> None:
    file, calls = RecordFile(tmp_path / "r.jsonl"), list[int]()
    run_jobs([job(0, calls)], file, io.StringIO())
    with file.path.open("a") as handle:
        handle.write('{"dataset": "d", "meth')
    run_jobs([job(0, calls), job(1, calls)], file, io.StringIO())
    assert calls == [0, 1]
    assert [r["seed"] for r in file.read()] == [0, 1]
    assert json.loads(file.path.read_text().splitlines()[-1])["seed"] == 1


def test_one_failure_stops_no_other_and_is_tried_again(tmp_path: Path) -> None:
    file, calls = RecordFile(tmp_path / "r.jsonl"), list[int]()
    jobs = [job(0, calls, fail=True), job(1, calls)]
    results, failures = run_jobs(jobs, file, io.StringIO())
    assert [r["seed"] for r in results] == [1]
    assert failures == ["d, m, seed 0: RuntimeError: no luck"]
    run_jobs([job(0, calls)], file, io.StringIO())
    assert calls == [0, 1, 0]


def test_an_interruption_keeps_what_is_done(tmp_path: Path) -> None:
    file, calls = RecordFile(tmp_path / "r.jsonl"), list[int]()

    def stop() -> dict[str, float]:
        raise KeyboardInterrupt

    jobs = [job(0, calls), Job({"dataset": "d", "method": "m", "seed": 9}, stop), job(1, calls)]
    assert run_tool(lambda: run_jobs(jobs, file, io.StringIO())) == 130
    assert [r["seed"] for r in file.read()] == [0]


def test_bad_input_ends_with_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise DataError("the table is round.")

    assert run_tool(main) == 2
    assert capsys.readouterr().err == "the table is round.\n"
    assert run_tool(lambda: 1) == 1
    assert run_tool(lambda: None) == 0


def test_paired_differences_use_common_seeds_only() -> None:
    ours = [{"seed": s, "crps": 1.0 + s} for s in (0, 1, 2)]
    theirs = [{"seed": s, "crps": 1.5 + s + 0.1 * (-1) ** s} for s in (2, 1, 7)]
    difference = paired(theirs, ours, "crps")
    assert difference.pairs == 2
    assert difference.mean == pytest.approx(0.5)
    assert difference.error == pytest.approx(0.1)
    assert np.isnan(paired(ours, [{"seed": 9, "crps": 0.0}], "crps").mean)
    assert str(paired(ours[:1], ours[:1], "crps")) == "+.000"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.1234, ".123"), (-0.04, "-.040"), (10.5, "10.500"), (0.0, ".000")]
)
def test_numbers_lose_their_leading_zero_only(value: float, shown: str) -> None:
    assert number(value) == shown


def test_notes_below_a_report_are_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert hand_written(page) == ""
    page.write_text("# Tables\n\n| old |\n")
    assert hand_written(page) == ""
    written = "\n## What to keep in mind\n\n- Few images.\n"
    page.write_text("# Tables\n\n| old |\n" + written)
    assert hand_written(page) == written
