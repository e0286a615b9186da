import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grids import LONG, cells_of, contents, tiny
from uqgan.config import load_config
from uqgan.data.tasks import TASKS, Task, load_task
from uqgan.errors import Interrupted, UsageError
from uqgan.grid import cells
from uqgan.grid.cells import (
    FAILED,
    Cell,
    config_of,
    has_failed,
    is_done,
    keep_failure,
    plan_cells,
    result_digests,
    run_cell,
    title_of,
)
from uqgan.methods import METHODS
from uqgan.progress import Pace
from uqgan.runs import holds_run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def loaded(task: str) -> Task:
    return load_task(task)


def test_cells_are_tasks_times_methods_times_seeds_times_variants() -> None:
    variants = [{"uqgan.lambda_real": value} for value in ("0.1", "0.3", "0.5")]
    found = plan_cells(["gaussians", "moons"], ["uqgan", "uqgan-mc"], [0, 1], variants)
    assert len(found) == len(set(found)) == len({cell.name for cell in found}) == 2 * 2 * 2 * 3
    assert found[0].name == "gaussians/uqgan/uqgan.lambda_real=0.1/seed-0"


def test_settings_that_a_method_does_not_read_make_no_further_cell_of_it() -> None:
    variants = [{"uqgan.lambda_real": value} for value in ("0.1", "0.3")]
    names = [cell.name for cell in plan_cells(["gaussians"], ["uqgan", "entropy"], [0], variants)]
    assert names == [
        "gaussians/uqgan/uqgan.lambda_real=0.1/seed-0",
        "gaussians/uqgan/uqgan.lambda_real=0.3/seed-0",
        "gaussians/entropy/seed-0",
    ]


def test_a_tasks_own_value_is_no_change() -> None:
    own = load_config("mnist").uqgan.lambda_reg
    (cell,) = plan_cells(["mnist"], ["uqgan"], [0], [{"uqgan.lambda_reg": f"{own}"}])
    assert cell.name == "mnist/uqgan/seed-0"


@settings(max_examples=20)
@given(
    values=st.lists(
        st.tuples(st.floats(0, 1), st.integers(1, 10**6), st.floats(1e-6, 1)), min_size=1, max_size=4, unique=True
    ),
    seeds=st.lists(st.integers(0, 100), min_size=1, max_size=3, unique=True),
)
def test_different_cells_have_different_names_and_equal_ones_the_same(values: list[Any], seeds: list[int]) -> None:
    names = ("uqgan.lambda_real", "uqgan.iterations", "uqgan.gan_lr")
    variants = [dict(zip(names, each, strict=True)) for each in values]
    once = plan_cells(["gaussians"], ["uqgan"], seeds, variants)
    again = plan_cells(["gaussians"], ["uqgan"], seeds[::-1], [dict(reversed(each.items())) for each in variants])
    assert len({cell.name for cell in once}) == len(set(once))
    assert {cell.name for cell in once} == {cell.name for cell in again}


def test_long_names_stay_short_and_apart() -> None:
    long = {f"uqgan.{name}": 0.123456789 for name in ("lambda_real", "gan_lr", "end_lr", "lambda_cl", "lr")}
    long |= {"autoencoder.lr": 0.123456789}
    first, second = plan_cells(["gaussians"], ["uqgan"], [0], [long, long | {"uqgan.lr": 0.123456788}])
    assert first.name != second.name
    assert max(map(len, first.name.split("/"))) <= cells.LONGEST_NAME


def test_a_cells_settings_and_command_give_its_run() -> None:
    (cell,) = plan_cells(["gaussians"], ["uqgan"], [3], [{"uqgan.lambda_real": "0.3", "classifier": "mlp"}], True)
    assert config_of(cell).uqgan.lambda_real == 0.3
    assert cell.command("cpu") == (
        "uqgan train gaussians --method uqgan --seed 3 --device cpu --uqgan.lambda-real 0.3 --untested"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"methods": []}, "grid: has no cells"),
        ({"seeds": []}, "grid: has no cells"),
        ({"methods": ["entropy"], "variants": [{"uqgan.lambda_real": 1}]}, "uqgan.lambda_real: has no effect"),
        ({"variants": [{"uqgan.lambda_real": "x"}]}, "uqgan.lambda_real = 'x': must be"),
        ({"variants": [{"uqgan.lambda_real": 2}]}, "uqgan.lambda_real = 2: must be at most 1"),
        ({"variants": [{"uqgan.lambda": 2}]}, "uqgan.lambda"),
        ({"tasks": ["moonz"]}, "task = moonz: no such task, folder or .npz file"),
    ],
)
def test_what_makes_no_sense_is_refused(words: dict[str, Any], sentence: str) -> None:
    usual = {"tasks": ["gaussians"], "methods": ["uqgan"], "seeds": [0]}
    with pytest.raises(UsageError, match=sentence):
        plan_cells(**usual | words)


def test_own_pictures_are_named_by_their_folder_and_two_of_one_name_refused(tmp_path: Path) -> None:
    places = [str(tmp_path / name / "pictures") for name in "ab"]
    for place in places:
        Path(place).mkdir(parents=True)
    assert title_of(places[0]) == "pictures"
    with pytest.raises(UsageError, match="would share a folder"):
        plan_cells(places, ["uqgan"], [0])


@pytest.mark.parametrize("other", [name for name in METHODS if name != "max-softmax"])
def test_methods_that_train_the_same_classifier_share_its_work(other: str) -> None:
    """Those whose cached weights have the same key."""
    config = load_config("digits")
    shared = METHODS[other]._key(load_task("digits"), METHODS[other].recipe_config(config), 0)
    own = METHODS["max-softmax"]._key(load_task("digits"), config, 0)
    seeds = {seed for seed in range(6) if Cell("digits", other, seed).work & Cell("digits", "max-softmax", 0).work}
    assert seeds == ({0} if shared == own and not METHODS[other].sees_ood else set())


def test_an_ensemble_shares_the_work_of_its_members() -> None:
    ensemble = Cell("digits", "ensemble", 1)
    assert [seed for seed in range(12) if ensemble.work & Cell("digits", "entropy", seed).work] == [5, 6, 7, 8, 9]


def test_a_cell_is_done_once_its_result_is_there(task: str, loaded: Task, tmp_path: Path) -> None:
    (cell,) = cells_of(task, ["one-vs-all"], fresh=True)
    heard: list[Pace] = []
    assert not is_done(cell, tmp_path)
    assert run_cell(cell, tmp_path, loaded, CPU, progress=heard.append) is None
    assert is_done(cell, tmp_path)
    assert {pace.name for pace in heard} >= {"one_vs_all", "scoring"}
    record = json.loads((tmp_path / cell.name / cell.result).read_bytes())
    assert record["command"] == cell.command("cpu")
    assert record["samples"] == "test"
    assert record["raw_sha256"]
    assert not (tmp_path / cell.name / ".lock").exists()
    before = contents(tmp_path)
    assert run_cell(cell, tmp_path, loaded, CPU) is None
    assert contents(tmp_path) == before, "a finished cell is not touched"


def test_validation_scores_leave_the_test_set_alone(task: str, loaded: Task, tmp_path: Path) -> None:
    (cell,) = plan_cells([task], ["one-vs-all"], [0], [{"one_vs_all.epochs": 1}], validation=True)
    run_cell(cell, tmp_path, loaded, CPU)
    files = {file.name for file in (tmp_path / cell.name).iterdir()}
    assert "validation_scores.json" in files
    assert not {"scores.json", "raw_scores.npz"} & files
    assert json.loads((tmp_path / cell.name / cell.result).read_bytes())["samples"] == "validation"


def test_a_trained_cell_without_scores_is_scored_and_not_trained_again(
    task: str, loaded: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cell,) = cells_of(task, ["one-vs-all"])
    run_cell(cell, tmp_path, loaded, CPU)
    first = result_digests([cell], tmp_path)
    (tmp_path / cell.name / cell.result).unlink()
    assert not is_done(cell, tmp_path)
    monkeypatch.setattr("uqgan.api.train", lambda *_: pytest.fail("it was trained again"))
    run_cell(cell, tmp_path, loaded, CPU)
    assert result_digests([cell], tmp_path) == first


def test_a_stopped_cell_goes_on_where_it_was_to_the_same_scores(task: str, loaded: Task, tmp_path: Path) -> None:
    (cell,) = plan_cells([task], ["one-vs-all"], [0], [{"one_vs_all.epochs": 30, "fresh": True}])
    told: list[str] = []
    why = run_cell(cell, tmp_path / "a", loaded, CPU, minutes=1e-9)
    assert why
    assert "--resume" not in why, "that is for runs alone"
    assert holds_run(tmp_path / "a" / cell.name)
    assert not is_done(cell, tmp_path / "a")
    assert run_cell(cell, tmp_path / "a", loaded, CPU, say=told.append) is None
    assert any(sentence.startswith("going on at step 1 of ") for sentence in told), told
    assert run_cell(cell, tmp_path / "b", loaded, CPU) is None
    one, other = (json.loads((tmp_path / x / cell.name / cell.result).read_bytes()) for x in "ab")
    assert one["scores"] == other["scores"]
    assert one["raw_sha256"] == other["raw_sha256"]


def test_a_run_of_other_settings_under_the_same_name_is_refused(tmp_path: Path) -> None:
    (cell,) = plan_cells(["gaussians"], ["uqgan"], [0])
    file = tmp_path / cell.name / cell.result
    file.parent.mkdir(parents=True)
    settings = config_of(cell).model_dump()
    file.write_text(json.dumps({"settings": settings}))
    assert is_done(cell, tmp_path)
    settings["uqgan"]["lambda_real"] = 0.123
    file.write_text(json.dumps({"settings": settings}))
    with pytest.raises(UsageError, match="holds a run with other settings of uqgan"):
        is_done(cell, tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null"])
def test_a_damaged_result_is_told_and_not_taken_for_one(text: str, tmp_path: Path) -> None:
    (cell,) = plan_cells(["gaussians"], ["uqgan"], [0])
    file = tmp_path / cell.name / cell.result
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(UsageError, match=r"scores\.json: damaged \(delete it, and it is made anew\)"):
        is_done(cell, tmp_path)


def test_a_failure_is_kept_until_the_cell_is_tried_again(task: str, loaded: Task, tmp_path: Path) -> None:
    (cell,) = cells_of(task, ["one-vs-all"])
    assert keep_failure(cell, tmp_path, "why\n") == tmp_path / cell.name / FAILED
    assert has_failed(cell, tmp_path)
    run_cell(cell, tmp_path, loaded, CPU)
    assert is_done(cell, tmp_path)
    assert not has_failed(cell, tmp_path)


def test_a_second_process_waits_for_the_first_and_finds_the_cell_done(task: str, loaded: Task, tmp_path: Path) -> None:
    (cell,) = cells_of(task, ["one-vs-all"], fresh=True)
    trained: list[str] = []
    both = [
        threading.Thread(
            target=run_cell,
            args=(cell, tmp_path, loaded, CPU),
            kwargs={"progress": lambda pace, k=k: trained.append(k) if pace.name == "one_vs_all" else None},
        )
        for k in "ab"
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert is_done(cell, tmp_path)
    assert len(set(trained)) == 1, "one of them trained"


def test_a_signal_stops_a_cell_which_keeps_its_state(task: str, loaded: Task, tmp_path: Path) -> None:
    (cell,) = plan_cells([task], ["one-vs-all"], [0], [LONG])

    def stop(pace: Pace) -> None:
        if pace.name == "one_vs_all":
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match=r"stopped by SIGTERM at step \d+ of \d+"):
        run_cell(cell, tmp_path, loaded, CPU, progress=stop)
    assert list((tmp_path / cell.name / "resume").glob("*.safetensors"))


def test_a_killed_cell_goes_on_and_its_result_is_that_of_an_undisturbed_run(
    task: str, loaded: Task, tmp_path: Path
) -> None:
    """Killed by SIGKILL while it trains, with a state saved at every step."""
    (cell,) = plan_cells([task], ["one-vs-all"], [0], [{"one_vs_all.epochs": 60, "fresh": True}])
    words = (
        "import sys, torch\nfrom pathlib import Path\nfrom uqgan import training\nfrom uqgan.grid.cells import *\n"
        "training.SAVE_SECONDS = 0.0\n"
        "(cell,) = plan_cells([sys.argv[1]], ['one-vs-all'], [0], [{'one_vs_all.epochs': 60, 'fresh': True}])\n"
        "run_cell(cell, Path(sys.argv[2]), load_task(sys.argv[1]), torch.device('cpu'))\n"
    ).replace("import *", "import *\nfrom uqgan.data.tasks import load_task")
    child = subprocess.Popen([sys.executable, "-c", words, task, str(tmp_path / "a")])
    state = tmp_path / "a" / cell.name / "resume" / "one_vs_all.safetensors"
    end = time.monotonic() + 60
    while not state.exists() and time.monotonic() < end and child.poll() is None:
        time.sleep(0.01)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert state.exists()
    assert not is_done(cell, tmp_path / "a")
    told: list[str] = []
    run_cell(cell, tmp_path / "a", loaded, CPU, say=told.append)
    assert any("going on at step" in sentence for sentence in told)
    run_cell(cell, tmp_path / "b", loaded, CPU)
    one, other = (json.loads((tmp_path / x / cell.name / cell.result).read_bytes()) for x in "ab")
    assert (one["scores"], one["raw_sha256"]) == (other["scores"], other["raw_sha256"])


def test_every_named_task_has_a_folder_of_its_own() -> None:
    assert len({title_of(name) for name in TASKS}) == len(TASKS)
