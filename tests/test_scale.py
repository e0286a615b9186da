"""What docs/scale.md says of the whole paper follows from recorded times and the program's own schedule."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import make_scale
import make_tables
from uqgan import paper
from uqgan.grid.cells import plan_cells

METHODS = ["uqgan", "one-vs-all", "entropy", "max-softmax", "ensemble"]
HOURS = st.fixed_dictionaries({("digits", method): st.floats(0.1, 10) for method in METHODS})


@given(hours=HOURS, methods=st.sets(st.sampled_from(METHODS), min_size=1), seeds=st.integers(1, 3))
@settings(max_examples=40)
def test_a_grid_takes_as_long_as_its_work_allows(
    hours: dict[tuple[str, str], float], methods: set[str], seeds: int
) -> None:
    cells = plan_cells(["digits"], sorted(methods), range(seeds))
    work, single = 0.0, set[str]()
    for cell in sorted(cells, key=lambda cell: METHODS.index(cell.method)):
        work += hours[cell.task, cell.method] * len(cell.work - single) / len(cell.work)
        single |= cell.work
    alone = sum(hours[cell.task, cell.method] for cell in cells)
    for workers in (1, 2, 7):
        took = make_scale.makespan(cells, workers, hours)
        assert took <= alone + 1e-6
        if not methods & {"max-softmax", "ensemble"}:
            assert took >= max(work / workers, *(hours[cell.task, cell.method] for cell in cells)) - 1e-6
            assert took <= work / workers + max(hours.values()) + 1e-6, "no worker rests while a cell waits"


def test_work_that_cells_share_is_done_once() -> None:
    cells = plan_cells(["digits"], ["entropy", "max-softmax", "ensemble"], [0])
    hours = {("digits", "entropy"): 1.0, ("digits", "max-softmax"): 1.0, ("digits", "ensemble"): 5.0}
    assert make_scale.makespan(cells, 1, hours) == pytest.approx(5)


def test_every_training_of_the_paper_has_a_time_and_estimates_are_marked() -> None:
    lines = [line for line in make_scale.model().splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in lines] == list(paper.methods("mnist"))
    for line in lines:
        method = line.split("`")[1]
        shown = [text.strip() for text in line.split("|")[2:-1]]
        for task, text in zip(paper.settings(), shown, strict=True):
            found = make_scale.recorded(task, method)
            assert text == (f"≈ {make_scale.estimated(task, method):.1f}" if found is None else f"{found:.1f}")


def test_a_recorded_time_is_that_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make_tables.RESULTS / "mnist" / "uqgan" / "seed-0.json"
    record = json.loads(file.read_text()) | {"stage_seconds": {}}
    for seed, seconds in enumerate((60, 120, 600)):
        place = tmp_path / "mnist" / "uqgan" / f"seed-{seed}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(record | {"seed": seed, "seconds": seconds}))
    monkeypatch.setattr(make_tables, "RESULTS", tmp_path)
    assert make_scale.recorded("mnist", "uqgan") == 2
    assert make_scale.recorded("mnist", "uqgan-mc") is None


def side(name: str, rate: float) -> dict[str, object]:
    versions = {"torch": "2.0", "python": "3.11"}
    row = {"what": "mnist", "side": name, "device": "cuda (NVIDIA H200)", "cells": 8, "runs_per_hour": rate}
    return row | {"versions": versions, "commit": "0" * 40, "scores": {"a": {"accuracy": 0.99}}, "command": "c"}


def test_runs_per_hour_stand_beside_each_other_once_both_sides_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_tables, "RESULTS", tmp_path)
    (tmp_path / "speed").mkdir()
    for name, rows in {"one": [side("grid", 100)], "both": [side("grid", 100), side("alone", 40)]}.items():
        make_tables.read.cache_clear()
        (tmp_path / "speed" / "grid.json").write_text(json.dumps(rows))
        assert ("| MNIST | 8 and 8 | 40.0 | 100.0 | 2.50 |" in make_scale.gpu()) == (name == "both")
        assert ("MNIST: 8 trainings with evaluation, by one grid, at 100" in make_scale.gpu()) == (name == "one")
    make_tables.read.cache_clear()


def test_ray_data_is_left_out_where_it_was_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_tables, "RESULTS", tmp_path)
    (tmp_path / "speed").mkdir()
    row = side("", 1) | {"what": "predict", "same_bytes": True, "pictures": 9, "here_seconds": 1, "tasks_seconds": 2}
    row |= {"tasks_seconds_scoring": 5}
    for data, words in ({}, "took 5 seconds (`c`"), ({"data_seconds_scoring": 7}, "took 5 seconds, by Ray Data 7 (`c`"):
        make_tables.read.cache_clear()
        (tmp_path / "speed" / "cluster.json").write_text(json.dumps([row | data]))
        assert words in make_scale.cluster()
    make_tables.read.cache_clear()


def test_sections_begin_with_what_they_are_about_and_empty_ones_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headings = ["## What it costs\n\nWhat several workers gain", "## What a kill changes\n\nA grid was killed"]
    assert all(each in make_scale.machine() and each in make_scale.PAGE.read_text() for each in headings)
    kept = json.loads((make_tables.RESULTS / "speed" / "crash.json").read_text())
    monkeypatch.setattr(make_tables, "RESULTS", tmp_path)
    assert make_scale.machine().strip() == make_scale.cluster() == ""
    (tmp_path / "speed").mkdir()
    (tmp_path / "speed" / "crash.json").write_text(json.dumps([row | {"finished_untouched": False} for row in kept]))
    assert "scores the same, files of finished cells NOT untouched" in make_scale.machine()
    assert make_scale.machine().startswith(headings[1])
    page = "<!-- cluster:begin --><!-- cluster:end -->"
    monkeypatch.setattr(make_scale, "BLOCKS", {"cluster": make_scale.cluster})
    assert make_scale.scale(page) == make_scale.scale(make_scale.scale(page)) == page.replace("--><", "-->\n\n<")


def test_making_the_page_anew_changes_nothing() -> None:
    text = make_scale.PAGE.read_text()
    assert make_scale.scale(text) == text, "run `make results`"
    assert make_scale.scale(re.sub(r"\| 10 \|.*", "| 10 | 0.1 |", text)) == text
