import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uqgan.grid.cells import Cell, config_of, keep_failure, plan_cells
from uqgan.grid.schedule import MOST_LOSSES, Schedule, survey
from uqgan.grid.times import Times, cost
from uqgan.methods import METHODS

GRIDS = st.builds(
    plan_cells,
    st.lists(st.sampled_from(["gaussians", "moons", "digits"]), min_size=1, max_size=2, unique=True),
    st.lists(st.sampled_from(list(METHODS)), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True),
)


@given(cells=GRIDS, order=st.lists(st.tuples(st.booleans(), st.integers(0, 99)), min_size=200, max_size=200))
@settings(max_examples=30)
def test_each_cell_runs_once_and_none_beside_one_that_trains_the_same(
    cells: list[Cell], order: list[tuple[bool, int]]
) -> None:
    schedule, done = Schedule.of(cells), list[Cell]()
    for takes, which in order:
        running = schedule.running
        if takes or not running:
            if taken := schedule.take(done[-1] if done else None):
                assert taken not in done
                assert all(one is taken or not one.work & taken.work for one in schedule.running)
            else:
                assert running or not schedule.waiting, "with nothing running, something can be taken"
        else:
            done.append(running[which % len(running)])
            schedule.finish(done[-1])
    while schedule:
        while schedule.take():
            pass
        done.append(schedule.running[0])
        schedule.finish(done[-1])
    assert sorted(cell.name for cell in done) == sorted(cell.name for cell in cells)


def in_turn(schedule: Schedule, workers: int) -> list[list[Cell]]:
    """What each of some workers of equal speed runs."""
    ran: list[list[Cell]] = [[] for _ in range(workers)]
    while schedule:
        began = [(worker, schedule.take(worker[-1] if worker else None)) for worker in ran]
        for worker, cell in began:
            if cell:
                worker.append(cell)
                schedule.finish(cell)
    return ran


def switches(cells: Sequence[Cell]) -> int:
    """How often the data or the kind of network change along the way."""
    kinds = [(cell.task, METHODS[cell.method].section) for cell in cells]
    return sum(one != other for one, other in pairwise(kinds))


def test_cells_of_the_same_shapes_go_to_the_same_worker_one_after_another() -> None:
    cells = plan_cells(["gaussians", "digits"], ["uqgan", "one-vs-all"], range(4))
    mixed = [cell for seed in range(4) for cell in cells if cell.seed == seed]
    assert sum(map(switches, in_turn(Schedule.of(mixed), 1))) == 3
    two = in_turn(Schedule.of(mixed), 2)
    assert [len(worker) for worker in two] == [8, 8]
    assert sum(map(switches, two)) <= 2 * 3


def test_ensembles_come_after_the_members_that_they_consist_of() -> None:
    cells = Schedule.of(plan_cells(["gaussians"], ["ensemble", "entropy"], range(5))).waiting
    assert [cell.method for cell in cells] == ["entropy"] * 5 + ["ensemble"] * 5


def test_cells_that_would_wait_for_the_same_autoencoder_stand_back() -> None:
    schedule = Schedule.of(plan_cells(["digits"], ["uqgan", "uqgan-mc"], [0, 1]))
    first, second = schedule.take(), schedule.take()
    assert first
    assert second
    assert first.seed != second.seed


def test_a_cell_that_does_not_fit_waits_and_a_smaller_one_goes_first() -> None:
    schedule = Schedule.of(plan_cells(["gaussians"], ["uqgan", "entropy"], [0]))
    taken = schedule.take(fits=lambda cell: cell.method == "entropy")
    assert taken
    assert taken.method == "entropy"
    assert schedule.take(fits=lambda _: False) is None
    assert len(schedule.waiting) == 1


def test_a_cell_may_lose_its_process_a_few_times() -> None:
    schedule = Schedule.of(plan_cells(["gaussians"], ["uqgan", "entropy"], [0]))
    first = schedule.take()
    assert first
    for _ in range(MOST_LOSSES - 1):
        assert schedule.lose(first)
        assert schedule.take() == first, "it comes next"
    assert not schedule.lose(first)
    assert first not in schedule.waiting
    assert not schedule.running


def test_a_survey_sorts_out_what_is_done_what_failed_and_what_is_to_do(tmp_path: Path) -> None:
    done, failed, both, new = plan_cells(["gaussians"], ["uqgan"], range(4))
    for cell in (done, both):
        file = tmp_path / cell.name / cell.result
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"settings": config_of(cell).model_dump()}))
    for cell in (failed, both):
        keep_failure(cell, tmp_path, "why\n")
    found = survey([done, failed, both, new], tmp_path)
    assert (found.done, found.failed, found.to_do) == ([done, both], [failed], [new])
    again = survey([done, failed, both, new], tmp_path, retry_failed=True)
    assert (again.done, again.failed, again.to_do) == ([done, both], [], [failed, new])


def recorded(folder: Path, cell: Cell, seconds: float, device: str = "cpu (x86_64)", **more: object) -> None:
    """A record as a finished cell leaves it."""
    file = folder / cell.name / cell.result
    file.parent.mkdir(parents=True)
    facts = {"task": cell.task, "method": cell.method, "seed": cell.seed, "settings": config_of(cell).model_dump()}
    file.write_text(json.dumps(facts | {"device": device, "seconds": seconds} | more))


def test_expected_times_are_medians_of_recorded_ones_on_the_same_kind_of_device(tmp_path: Path) -> None:
    cells = plan_cells(["gaussians"], ["one-vs-all"], range(4))
    for cell, seconds in zip(cells, (10, 11, 90), strict=False):
        recorded(tmp_path, cell, seconds)
    recorded(tmp_path, cells[3], 2, "cuda (NVIDIA H200)")
    (tmp_path / "seed-9.json").write_text("{")
    times = Times.recorded([tmp_path])
    assert times.expected(cells[0], "cpu") == 11
    assert times.expected(cells[0], "cuda") == 2
    assert times.expected(cells[0], "mps") is None
    assert times.expected(Cell("moons", "uqgan"), "cpu") is None


def test_what_came_from_the_cache_counts_as_if_it_had_been_trained(tmp_path: Path) -> None:
    (cell,) = plan_cells(["digits"], ["uqgan"], [0])
    stages = {"autoencoder": 30.0, "uqgan": 60.0, "members": 500.0}
    recorded(tmp_path, cell, 61, stage_seconds=stages, reused=["autoencoder"])
    assert Times.recorded([tmp_path]).expected(cell, "cpu") == 90


def test_times_of_the_same_settings_are_preferred(tmp_path: Path) -> None:
    short, long = plan_cells(["gaussians"], ["uqgan"], [0], [{"uqgan.iterations": 10}, {"uqgan.iterations": 1000}])
    recorded(tmp_path, short, 1)
    assert Times.recorded([tmp_path]).expected(long, "cpu") == 1, "better than nothing"
    recorded(tmp_path, long, 100)
    times = Times.recorded([tmp_path])
    assert (times.expected(short, "cpu"), times.expected(long, "cpu")) == (1, 100)


def test_work_that_cells_share_is_counted_once() -> None:
    entropy, softmax = plan_cells(["digits"], ["entropy", "max-softmax"], [0])
    members = plan_cells(["digits"], ["entropy"], range(5))
    (ensemble,) = plan_cells(["digits"], ["ensemble"], [0])
    times = Times()
    for cell in (entropy, softmax):
        times.add(cell, "cpu", 10)
    times.add(ensemble, "cpu", 50)
    assert times.left([entropy, softmax], "cpu") == 10
    assert times.left([ensemble, *members], "cpu") == pytest.approx(50)
    assert times.left([ensemble], "cpu") == 50
    assert times.left([*members, ensemble], "cpu") == pytest.approx(50)
    unknown = 10 * cost("uqgan") / cost("entropy")
    assert times.left([entropy, Cell("digits", "uqgan")], "cpu") == pytest.approx(10 + unknown)
    assert times.left([Cell("moons", "uqgan")], "cpu") is None
