"""The demo end to end on a miniature, and what it promises: resuming, skipping, one folder."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from aqf_det.demo import VARIANTS, Demo, DemoSize, run_steps
from aqf_det.demo.gallery import write_collage
from aqf_det.demo.plan import DETECTOR, QFR
from aqf_det.evaluation import BoxPairs
from aqf_det.study.progress import LINE_SECONDS, Progress, Step

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
MINIATURE = DemoSize(
    train=120, val=30, test=20, image_size=128, epochs=8, branch_steps=40, gallery=8
)


class Clock:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def step(
    name: str, log: list[str], done: bool = False, run: Callable[[], None] | None = None
) -> Step:
    def work(report: Callable[[float], None]) -> None:
        report(0.5)
        if run is not None:
            run()
        log.append(name)

    return Step(name, 1.0, lambda: done or name in log, work)


def test_finished_steps_are_skipped_and_named() -> None:
    log: list[str] = []
    stream = io.StringIO()
    run_steps([step("one", log, done=True), step("two", log)], stream)
    assert log == ["two"]
    assert "[1/2] one  done before" in stream.getvalue()
    assert "[2/2] two" in stream.getvalue()


def test_an_interrupted_run_goes_on_where_it_stopped() -> None:
    log: list[str] = []

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_steps([step("one", log), step("two", log, run=stop), step("three", log)], io.StringIO())
    assert log == ["one"]
    run_steps([step(name, log) for name in ("one", "two", "three")], io.StringIO())
    assert log == ["one", "two", "three"]


def test_remaining_time_follows_the_speed_seen_so_far() -> None:
    clock = Clock()
    progress = Progress([100.0, 300.0, 100.0], io.StringIO(), clock)
    assert progress.remaining() == pytest.approx(500)
    progress.skip(0, "first")
    assert progress.remaining() == pytest.approx(400)
    clock.now = 300.0
    # Twice as slow as expected: 150 s of work took 300 s; 250 s are left.
    assert progress.remaining(150.0) == pytest.approx(250 * 2, rel=0.05)
    clock.now = 600.0
    progress.finish(1, "second", 600.0)
    assert progress.remaining() == pytest.approx(200, rel=0.05)


def test_a_terminal_gets_one_line_and_a_file_few() -> None:
    for stream, lines in ((Terminal(), 1), (io.StringIO(), 3)):
        clock = Clock()
        progress = Progress([100.0], stream, clock)
        for second in range(100):
            clock.now = float(second) * LINE_SECONDS / 50
            progress.update(0, "train", second / 100)
        progress.finish(0, "train", 100.0)
        text = stream.getvalue()
        assert text.count("\n") == lines and "left" in text
        assert text.rstrip().endswith("[1/1] train  1 min 40 s")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear reader")
    with pytest.raises(FileExistsError, match="--out"):
        Demo(tmp_path, CONFIGS, MINIATURE).steps()
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_other_settings_forget_what_they_change(tmp_path: Path) -> None:
    demo = Demo(tmp_path / "out", CONFIGS, MINIATURE)
    demo.steps()
    for variant in VARIANTS:
        demo.folder(variant).mkdir()
    demo.steps()
    assert all(demo.folder(variant).is_dir() for variant in VARIANTS)
    longer = DemoSize(**{**MINIATURE.__dict__, "branch_steps": 61})
    Demo(demo.out, CONFIGS, longer).steps()
    # The detector is the same; the branches are not.
    assert demo.folder(DETECTOR).is_dir() and not demo.folder(QFR).exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """A miniature demo that was interrupted once, within the training of the detector."""
    demo = Demo(tmp_path_factory.mktemp("demo") / "out", CONFIGS, MINIATURE)
    steps = demo.steps()

    def interrupt(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    steps[0].run(lambda share: None)
    with pytest.raises(KeyboardInterrupt):
        steps[1].run(interrupt)
    run_steps(demo.steps(), io.StringIO())
    return demo


@pytest.mark.slow
def test_the_demo_writes_everything_it_names(finished: Demo) -> None:
    missing = [name for name, path in finished.outputs().items() if not path.exists()]
    assert missing == []
    pictures = sorted((finished.out / "gallery").glob("test_*.png"))
    assert len(pictures) == MINIATURE.gallery
    assert cv2.imread(str(pictures[0])).shape == (1000, 1000, 3)


@pytest.mark.slow
def test_the_interrupted_training_was_resumed(finished: Demo) -> None:
    log = finished.log.read_text()
    assert "resumed epoch" in log
    assert finished.checkpoint(DETECTOR).is_file()


@pytest.mark.slow
def test_all_rows_share_the_same_boxes(finished: Demo) -> None:
    numbers = json.loads((finished.out / "results.json").read_text())
    assert set(numbers["variants"]) == {variant.name for variant in VARIANTS}
    assert len({row["mAP50"] for row in numbers["variants"].values()}) == 1
    tables = [BoxPairs.load(finished.pairs_file(variant)) for variant in VARIANTS]
    for table in tables[1:]:
        np.testing.assert_array_equal(table.box, tables[0].box)
        np.testing.assert_array_equal(table.score, tables[0].score)
    assert not np.array_equal(tables[-1].quantiles, tables[0].quantiles)
    text = (finished.out / "results.md").read_text()
    for variant in VARIANTS:
        assert variant.title in text
    assert numbers["verdict"] in text


@pytest.mark.slow
def test_every_branch_has_learned_something_of_its_own(finished: Demo) -> None:
    numbers = json.loads((finished.out / "results.json").read_text())["variants"]
    crps = {name: row["scores"]["all"]["crps"]["value"] for name, row in numbers.items()}
    # Its detector is too poor for a ranking, which test_cached_branch.py makes on known sides.
    assert all(np.isfinite(value) for value in crps.values())
    assert len(set(crps.values())) == len(crps)


@pytest.mark.slow
def test_a_second_run_only_skips(finished: Demo) -> None:
    stream = io.StringIO()
    before = finished.checkpoint(QFR).stat().st_mtime_ns
    run_steps(finished.steps(), stream)
    assert stream.getvalue().count("done before") == len(finished.steps())
    assert finished.checkpoint(QFR).stat().st_mtime_ns == before


@pytest.mark.slow
def test_the_collage_is_small(finished: Demo, tmp_path: Path) -> None:
    target = tmp_path / "docs" / "collage.png"
    assert write_collage(finished, target) == target.stat().st_size <= 300_000
