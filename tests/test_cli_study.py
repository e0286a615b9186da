"""`uqgan study` and `uqgan sweep`, from the command to their files."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from uqgan.cli import main
from uqgan.files import write_json
from uqgan.grid.cells import Cell, config_of
from uqgan.paper import TITLES

SHORT = ["--uqgan.iterations", "2", "--uqgan.validate-every", "1", "--autoencoder.epochs", "1"]


def uqgan(patch: pytest.MonkeyPatch, *words: str) -> int:
    """Run a command in this process; gives its exit status."""
    patch.setattr(sys, "argv", ["uqgan", *words])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def score(cell: Cell) -> float:
    """Made-up AUROC, best at λ_real = 0.7 and λ_cl = 4; on test samples lower by 0.2."""
    config = config_of(cell).uqgan
    return 0.9 - abs(config.lambda_real - 0.7) - 0.01 * abs(config.lambda_cl - 4) - 0.2 * (not cell.validation)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """Cells that were run, of which only made-up results are written: those with seed 13 stay unfinished."""
    cells: list[Cell] = []

    def run_cells(given: Iterable[Cell], place: Any, *_: Any) -> None:
        for cell in given:
            file = place.output / cell.name / cell.result
            if cell.seed != 13 and not file.exists():
                cells.append(cell)
                write_json(file, record(cell))

    for module in ("study", "sweep"):
        monkeypatch.setattr(f"uqgan.cli.{module}.run_cells", run_cells)
    return cells


def record(cell: Cell) -> dict[str, Any]:
    row = {"auroc": score(cell), "aupr_in": 0.5, "aupr_out": 0.5, "fpr95_id_positive": 1 - score(cell)}
    return {
        "samples": "validation" if cell.validation else "test",
        "scores": {"accuracy": 0.9, "auroc_sf": None, "ece": 0.1, "sets": {"a": row}},
        **({"balanced": row | {"sizes": {"known": 9, "a": 4}}} if cell.validation else {}),
        "settings": config_of(cell).model_dump(),
        "seconds": 60.0,
        "device": "cpu",
        "commit": "f" * 40,
        "versions": {"torch": "2"},
        "raw_sha256": "0" * 64,
    }


def sweep_of(root: Path, name: str) -> dict[str, Any]:
    """Results of the latest sweep over these settings."""
    files = (root / "sweeps").glob(f"digits-uqgan-{name}-????????.json")
    found: dict[str, Any] = json.loads(max(files, key=lambda file: file.stat().st_mtime_ns).read_text())
    return found


def test_a_study_trains_through_the_grid_and_ends_in_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["study", "regulariser", "--task", "digits", "--values", "angle,l2", "--workers", "1", *SHORT]
    assert uqgan(monkeypatch, *words, "--device", "cpu", "-o", str(tmp_path)) == 0
    out = capfd.readouterr().out
    assert "validation samples: known" in out
    assert "paper: the log-angle loss performs best" in out
    folder = tmp_path / "studies"
    assert {file.name for file in folder.iterdir()} == {f"digits-regulariser.{end}" for end in ("json", "svg", "png")}
    curve = json.loads((folder / "digits-regulariser.json").read_text())
    assert [point["value"] for point in curve["points"]] == ["angle", "l2"]
    assert curve["points"][0]["scores"] != curve["points"][1]["scores"]
    assert set(curve["points"][0]["sizes"]) == {"known", "other-digits", "photo-patches", "noise"}
    assert curve["facts"]["command"].startswith("uqgan study regulariser --task digits --values angle,l2")
    assert str(tmp_path) not in json.dumps(curve)
    assert not list(tmp_path.rglob("scores.json")), "test sets are left alone"
    before = {file: file.read_bytes() for file in tmp_path.rglob("validation_scores.json")}
    assert len(before) == 2
    assert uqgan(monkeypatch, *words, "--device", "cpu", "-o", str(tmp_path), "--json") == 0
    assert json.loads(capfd.readouterr().out)["points"] == curve["points"]
    assert {file: file.read_bytes() for file in before} == before


def test_a_study_of_several_methods_on_the_first_classes(
    ran: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert uqgan(monkeypatch, "study", "n-classes", "--task", "cifar100", "-o", str(tmp_path), "-q") == 0
    lines = capfd.readouterr().out.splitlines()
    methods = list(dict.fromkeys(cell.method for cell in ran))
    assert [line.split()[1] for line in lines[1:26]] == [method for method in methods for _ in range(5)]
    assert {cell.task for cell in ran} == {"cifar100", *(f"cifar100+0-{n}" for n in (9, 19, 29, 39))}
    assert len(ran) == 25
    assert (tmp_path / "studies" / "cifar100-n-classes.svg").exists()


def test_an_unfinished_study_shows_what_there_is_with_status_3(
    ran: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["study", "lambda-real", "--task", "digits", "--values", "0.1,0.5", "--seeds", "0,13", "-o", str(tmp_path)]
    assert uqgan(monkeypatch, *words) == 3
    assert "2 of 4 cells unfinished (the same command goes on)" in capfd.readouterr().err
    curve = json.loads((tmp_path / "studies" / "digits-lambda-real.json").read_text())
    assert [(point["value"], point["seed"]) for point in curve["points"]] == [(0.1, 0), (0.5, 0)]


def test_a_dry_run_names_the_cells_and_runs_none(
    ran: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert uqgan(monkeypatch, "study", "lambda-real", "--task", "mnist", "--dry-run", "-o", str(tmp_path / "runs")) == 0
    assert "11 cells to do, no times" in capfd.readouterr().out
    assert ran == []
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_tries_all_combinations_and_chooses_by_validation(
    ran: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    varied = ["--uqgan.lambda-real", "0.3,0.7,1", "--uqgan.lambda-cl", "2,4"]
    assert uqgan(monkeypatch, "sweep", "--task", "digits", *varied, "--seeds", "0-1", "-o", str(tmp_path)) == 0
    assert len(ran) == 12
    assert all(cell.validation for cell in ran)
    out = capfd.readouterr().out
    assert all(title in out.splitlines()[0] for title in ("lambda_real", *TITLES.values())), "no word is broken"
    words = " ".join(out.split())
    assert "chosen by AUROC 90.00 on validation samples: --uqgan.lambda-cl 4 --uqgan.lambda-real 0.7" in words
    found = sweep_of(tmp_path, "lambda_cl+lambda_real")
    assert found["chosen"] == {"uqgan.lambda_cl": "4", "uqgan.lambda_real": "0.7"}
    assert len(found["tried"]) == 6
    assert found["tested"] == []
    facts = {"device": ["cpu"], "commit": ["f" * 40], "seconds": 12 * 60.0, "versions": {"torch": "2"}}
    command = "uqgan sweep --task digits --method uqgan --seeds 0-1 --by auroc"
    assert found["facts"] == facts | {"command": f"{command} --uqgan.lambda-cl 2,4 --uqgan.lambda-real 0.3,0.7,1"}


@pytest.mark.parametrize(
    "other",
    [
        {"--uqgan.lambda-cl": "3"},
        {"--uqgan.lambda-real": "0.3,0.6"},
        {"--seeds": "1"},
        {"--by": "accuracy"},
        {"--trials": "2"},
    ],
)
def test_another_sweep_leaves_the_file_of_the_first_alone(
    other: dict[str, str], ran: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"--task": "digits", "--uqgan.lambda-cl": "2", "--uqgan.lambda-real": "0.3,0.7", "-o": str(tmp_path)}
    for given in (options, options, options | other):
        assert uqgan(monkeypatch, "sweep", "-q", *(word for pair in given.items() for word in pair)) == 0
    first, second = sorted((tmp_path / "sweeps").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    assert first.name.startswith("digits-uqgan-lambda_real-"), "of the settings those that vary"
    assert options["--uqgan.lambda-cl"] in json.loads(first.read_text())["tried"][0]["settings"].values()
    assert json.loads(first.read_text())["facts"]["command"] != json.loads(second.read_text())["facts"]["command"]


def test_what_is_reported_was_trained_with_seeds_that_the_choice_has_not_seen(
    ran: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "--task", "digits", "--uqgan.lambda-real", "0.3,0.7", "--seeds", "0,2", "--report", "--json"]
    assert uqgan(monkeypatch, *words, "-o", str(tmp_path), "-q") == 0
    tested = [cell for cell in ran if not cell.validation]
    assert [(cell.seed, config_of(cell).uqgan.lambda_real) for cell in tested] == [(3, 0.7), (4, 0.7)]
    assert ran[-2:] == tested, "only after the choice"
    found = json.loads(capfd.readouterr().out)
    assert {row["samples"] for row in found["tested"]} == {"test"}


def test_the_metric_to_choose_by_can_be_one_of_which_less_is_better(
    ran: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["sweep", "--task", "digits", "--uqgan.lambda-real", "0.3,0.6,0.9", "--by", "fpr95_id_positive"]
    assert uqgan(monkeypatch, *words, "-o", str(tmp_path), "-q") == 0
    found = sweep_of(tmp_path, "lambda_real")
    assert found["chosen"] == {"uqgan.lambda_real": "0.6"}


def test_trials_find_better_settings_than_they_began_with_and_go_on_after_a_stop(
    ran: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = ["--uqgan.lambda-real", "0:1", "--uqgan.lambda-cl", "0.5:64:log"]
    words = ["sweep", "--task", "digits", *ranges, "-o", str(tmp_path), "-q"]
    assert uqgan(monkeypatch, *words, "--trials", "12") == 0
    first = list(ran)
    assert uqgan(monkeypatch, *words, "--trials", "40") == 0
    assert len(set(ran)) == len(ran) <= 40
    assert ran[:12] == first, "the trials before are not run again"
    assert max(map(score, ran[20:])) > max(map(score, ran[:10]))
    found = sweep_of(tmp_path, "lambda_cl+lambda_real")
    assert abs(found["chosen"]["uqgan.lambda_real"] - 0.7) < 0.1


@pytest.mark.parametrize("extra", [["--report"], ["--report", "--trials", "9", "--workers", "2"]])
def test_an_unfinished_sweep_tests_nothing_and_asks_for_no_more_trials(
    extra: list[str], ran: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["sweep", "--task", "digits", "--uqgan.lambda-real", "0.3,0.7", "--seeds", "0,13", "-o", str(tmp_path)]
    assert uqgan(monkeypatch, *words, *extra) == 3
    assert all(cell.validation for cell in ran)
    assert len(ran) <= 2
    found = sweep_of(tmp_path, "lambda_real")
    assert (found["chosen"], found["tested"]) == (None, [])


def test_without_optuna_trials_say_how_to_get_it(
    ran: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    words = ["sweep", "--task", "digits", "--uqgan.lambda-real", "0:1", "--trials", "3", "-o", str(tmp_path)]
    assert uqgan(monkeypatch, *words) == 2
    assert capfd.readouterr().err == "uqgan: --trials: needs optuna (pip install 'uqgan[sweep]'), or leave it out\n"
    assert ran == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sweep", "--task", "digits"], "sweep: no settings to vary"),
        (["sweep", "--task", "digits", "--uqgan.lambda-real", "0:1"], "uqgan.lambda_real: a range needs --trials N"),
        (["sweep", "--task", "digits", "--uqgan.lambda-real", "0.3,1.5"], "uqgan.lambda_real = '1.5': must be at most"),
        (["sweep", "--task", "digits", "--uqgan.lambda-real", "0.8:0.2", "--trials", "2"], "the smaller number first"),
        (["sweep", "--task", "digits", "--uqgan.lambda-cl", "0:2:log", "--trials", "2"], "must begin above 0"),
        (["sweep", "--task", "digits", "--uqgan.regulariser", "l1:l2", "--trials", "2"], "must look like 0.1:0.9"),
        (["sweep", "--task", "digits", "--bayes.lr", "0.1,0.2"], "bayes.lr: has no effect"),
        (["sweep", "--task", "digits", "--method", "uqgam", "--uqgan.lr", "1"], "no such method; did you mean uqgan"),
        (["sweep", "--task", "digits", "--uqgan.lr", "1", "--by", "aurok"], "--by = aurok: no such metric; did you"),
        (["study", "lambda-rael", "--task", "digits"], "study = lambda-rael: no such study; did you mean lambda-real?"),
        (["study", "lambda-cl", "--task", "digitz"], "task = digitz"),
    ],
)
def test_a_mistake_is_one_sentence_with_status_2(
    words: Sequence[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert uqgan(monkeypatch, *words) == 2
    err = capfd.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
