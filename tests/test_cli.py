import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
import yaml
from PIL import Image

from pictures import untrained_run, write_folder
from uqgan import __version__
from uqgan.cli import main
from uqgan.config import Config, load_config
from uqgan.errors import RunFailed
from uqgan.picture_settings import settings_for_pictures

QUICK = ["--uqgan.iterations", "2", "--uqgan.batch-size", "8", "--uqgan.validate-every", "1", "-q"]


def uqgan(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run a command in this process; gives its exit status."""
    monkeypatch.setattr(sys, "argv", ["uqgan", *words])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    with pytest.MonkeyPatch.context() as patch:
        assert uqgan(patch, "train", "moons", "-o", str(folder), *QUICK) == 0
    return folder


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "moonz"], "task = moonz: no such task, folder or .npz file (did you mean moons?)"),
        (["train", "moons", "--method", "uqgam"], "method = uqgam: no such method; did you mean uqgan?"),
        (["train", "moons", "--uqgan.batch-size=-3"], "uqgan.batch_size = '-3': must be at least 2"),
        (["train", "moons", "--uqgan.lambda-real", "1.4"], "uqgan.lambda_real = '1.4': must be at most 1.0"),
        (["train", "moons", "--uqgan.lamda-real", "1"], "Did you mean --uqgan.lambda-real?"),
        (["train", "moons", "--config", "none.yaml"], "--config = none.yaml: no such file"),
        (["train", "moons", "--device", "tpu"], "device = tpu: must be auto, cpu, cuda or mps"),
        (["train", "moons", "--max-minutes", "0"], "max-minutes"),
        (["train", "moons", "--seed", "x"], "seed"),
        (["train", "digits+7-3"], "classes = 7-3: must be within 0-9, the smaller number first"),
        (["evaluate", "nowhere"], "run = nowhere: no such folder"),
        (["report", "nowhere"], "run = nowhere: no such folder"),
        (["generate", "nowhere", "--class", "1"], "run = nowhere: no such folder"),
        (["report", "nowhere", "-o", "report.pdf"], "--output = report.pdf: must end in .html"),
        (["methods", "all"], "all: one word too many"),
        (["trian"], 'Did you mean "train"?'),
    ],
)
def test_a_mistake_is_one_sentence_on_stderr_with_status_2(
    words: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert uqgan(monkeypatch, *words) == 2
    out, err = capfd.readouterr()
    assert sentence in err
    assert err.count("\n") == 1
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == [], "nothing may be left behind"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--method", "uqgam"], "method = uqgam: no such method; did you mean uqgan?"),
        (["--seed", "-1"], "seed = -1: must be within 0 to 2147483647"),
        (["--device", "tpu"], "device = tpu: must be auto, cpu, cuda or mps"),
        (["--config", "none.yaml"], "--config = none.yaml: no such file"),
    ],
)
@pytest.mark.parametrize("task", ["moons", "."])
def test_mistakes_are_found_before_the_data_are_loaded(
    words: list[str], sentence: str, task: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("uqgan.api.load_task", lambda *_, **__: pytest.fail("the data were loaded"))
    assert uqgan(monkeypatch, "train", task, *words) == 2
    assert sentence in capfd.readouterr().err


def test_a_runs_own_config_gives_its_settings_and_that_is_said(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    own, there = trained / "config.yaml", tmp_path / "run"
    words = ["train", "gaussians", "--seed", "3", "--config", str(own), "--untested", "-o", str(there)]
    assert uqgan(monkeypatch, *words) == 0
    sentence = f"--config = {own}: that of a run; its settings are taken, not its task, method and seed\n"
    assert capfd.readouterr().err.startswith(sentence)
    plan, before = (yaml.safe_load((folder / "config.yaml").read_text()) for folder in (there, trained))
    assert (plan["task"], plan["seed"], plan["settings"]) == ("gaussians", 3, before["settings"])


def test_a_damaged_log_is_told_and_the_run_is_evaluated(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "log.jsonl").write_text('{"half')
    assert uqgan(monkeypatch, "evaluate", str(run)) == 0
    assert f"{run / 'log.jsonl'}: damaged; the run is read without its log" in capfd.readouterr().err


def test_training_prints_scores_and_saves_them(trained: Path) -> None:
    scores = json.loads((trained / "scores.json").read_text())
    assert scores["task"] == "moons"
    assert set(scores["scores"]["sets"]) == {"uniform"}
    assert {"settings", "versions", "device", "seconds", "intervals"} <= set(scores)


def test_evaluate_gives_json_and_the_same_scores_again(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = json.loads((trained / "scores.json").read_text())["scores"]
    assert uqgan(monkeypatch, "evaluate", str(trained), "--json") == 0
    assert json.loads(capfd.readouterr().out)["scores"] == before


def test_an_untested_run_has_no_scores_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert uqgan(monkeypatch, "train", "moons", "-o", str(tmp_path / "run"), "--untested", *QUICK) == 0
    assert (tmp_path / "run" / "about.json").exists()
    assert not (tmp_path / "run" / "scores.json").exists()


def test_validation_scores_are_others_and_leave_those_of_the_test_alone(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "scores.json").read_bytes()
    assert uqgan(monkeypatch, "evaluate", str(trained), "--json", "--validation") == 0
    assert json.loads(capfd.readouterr().out)["scores"] != json.loads(before)["scores"]
    assert (trained / "scores.json").read_bytes() == before


def test_a_run_is_not_overwritten_unless_told(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert uqgan(monkeypatch, "train", "moons", "-o", str(trained), *QUICK) == 2
    assert "holds a run already (--resume to go on with it, --overwrite to replace it)" in capfd.readouterr().err
    assert uqgan(monkeypatch, "train", "moons", "-o", str(trained), "--overwrite", *QUICK) == 0
    assert uqgan(monkeypatch, "train", "moons", "-o", str(trained), "--resume", *QUICK) == 0


def test_overwrite_with_a_mistake_in_the_settings_loses_nothing(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (trained / "weights.safetensors").read_bytes()
    for mistake in (["--uqgan.batch-size", "0"], ["--method", "nope"], ["--device", "tpu"]):
        assert uqgan(monkeypatch, "train", "moons", "-o", str(trained), "--overwrite", *mistake) == 2
    assert (trained / "weights.safetensors").read_bytes() == before


def test_scores_are_shown_even_where_they_cannot_be_saved(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise RunFailed("scores.json: could not be written, no space left on device (free some space)")

    monkeypatch.setattr("uqgan.run.save_scores", full)
    assert uqgan(monkeypatch, "evaluate", str(trained)) == 0
    out, err = capfd.readouterr()
    assert "AUROC" in out
    assert "the scores are shown only" in err


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_the_output_is_one_sentence(unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = tasks_written_to(full, unbuffered)
    assert done.returncode == 1
    assert done.stderr == b"uqgan: output: no space left on device\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_whoever_reads_the_output_may_stop_reading(unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = tasks_written_to(pipe, unbuffered)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("words", ["tasks --json", "tasks"])
def test_output_may_be_closed_from_the_start(words: str) -> None:
    command = f"exec {sys.executable} -m uqgan {words} >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def tasks_written_to(file: IO[str], unbuffered: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "uqgan", "tasks", "--json"]
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    return subprocess.run(command, stdout=file, stderr=subprocess.PIPE, env=env, check=False)


def test_report_writes_a_page(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    assert uqgan(monkeypatch, "report", str(trained), "-o", str(page), "-q") == 0
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")


def test_generate_writes_points_of_a_class(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "points.csv"
    assert uqgan(monkeypatch, "generate", str(trained), "--class", "1", "-n", "5", "-o", str(file), "-q") == 0
    lines = file.read_text().splitlines()
    assert lines[0] == "x,y"
    assert len(lines) == 6
    assert uqgan(monkeypatch, "generate", str(trained), "--class", "7") == 2


def test_a_config_may_hold_sections_of_other_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.yaml").write_text("one_vs_all: {epochs: 3}\nuqgan: {iterations: 1, batch_size: 8}\n")
    words = ("train", "moons", "-o", str(tmp_path / "run"), "--untested", "-q", "--config", str(tmp_path / "c.yaml"))
    assert uqgan(monkeypatch, *words) == 0
    assert uqgan(monkeypatch, *words, "--overwrite", "--one-vs-all.epochs", "2") == 2
    assert uqgan(monkeypatch, *words, "--overwrite", "--uqgan.noise", "7", "--precision", "fp32") == 0


@pytest.mark.parametrize(("ending", "kind"), [("png", "PNG"), ("jpg", "JPEG"), ("JPEG", "JPEG"), ("webp", "WEBP")])
def test_generate_writes_what_the_files_name_says(
    ending: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = untrained_run("digits").save(tmp_path / "run")
    file = tmp_path / f"sheet.{ending}"
    assert uqgan(monkeypatch, "generate", str(run), "--class", "1", "-n", "9", "-o", str(file), "-q") == 0
    with Image.open(file) as sheet:
        assert sheet.format == kind
        assert sheet.size == (2 * (5 * 33 - 1), 2 * (2 * 33 - 1))


@pytest.mark.parametrize("name", ["sheet.gif", "sheet", "sheet.csv", "sheet.png.txt"])
def test_generate_refuses_other_endings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = untrained_run("digits").save(tmp_path / "run")
    assert uqgan(monkeypatch, "generate", str(run), "--class", "1", "-o", str(tmp_path / name)) == 2
    assert f"{name}: must end in .png or .jpg or .jpeg or .webp" in capfd.readouterr().err
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("command", ["methods", "tasks", "doctor"])
def test_lists_are_tables_or_json(
    command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert uqgan(monkeypatch, command) == 0
    table = capfd.readouterr().out
    assert uqgan(monkeypatch, command, "--json") == 0
    rows = json.loads(capfd.readouterr().out)
    assert all(str(next(iter(row.values()))) in table for row in rows)


def test_the_version_is_printed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert uqgan(monkeypatch, "--version") == 0
    assert capfd.readouterr().out.strip() == __version__


def test_an_unwritable_place_is_one_sentence_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert uqgan(monkeypatch, "train", "moons", "-o", str(tmp_path / "file" / "run"), *QUICK) == 1
    assert "could not be written" in capfd.readouterr().err


HELP = """
import sys, time
sys.argv = ["uqgan", "--help"]
from uqgan.cli import main
from uqgan.errors import RunFailed
from uqgan.picture_settings import settings_for_pictures
main()
assert "torch" not in sys.modules
assert time.process_time() < 1.0
"""


def test_help_does_not_import_torch_and_is_quick() -> None:
    environment = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    assert b"\x1b[" not in done.stdout


def test_help_about_training_a_task_shows_the_settings_that_it_gets(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pages = {}
    for words in (["train"], ["train", "--seed", "0", "-o", "digits", "cifar10+0-2"]):
        assert uqgan(monkeypatch, *words, "--help") == 0
        pages[words[-1]] = " ".join(capfd.readouterr().out.split())
    for name, page in pages.items():
        config = load_config(name) if name != "train" else Config()
        assert page.startswith("Usage: uqgan train [OPTIONS] TASK")
        for option, default in (
            ("--uqgan.iterations", config.uqgan.iterations),
            ("--one-vs-all.epochs", config.one_vs_all.epochs),
            ("--oracle.epochs", config.oracle.epochs),
            ("--classifier", config.classifier),
        ):
            assert re.search(rf"{option} (?:(?!--).)*\[default: {default}\]", page), (name, option)
    assert "Settings (those of cifar10+0-2)" in pages["cifar10+0-2"]
    assert Config().uqgan.iterations == 10_000, "the class keeps its defaults"


def test_help_about_training_on_own_pictures_shows_what_they_would_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path / "photos", n=20)
    monkeypatch.chdir(tmp_path)
    expected = settings_for_pictures((3, 64, 64), 30)
    assert uqgan(monkeypatch, "train", "photos", "--image-size", "64", "--help") == 0
    page = " ".join(capfd.readouterr().out.replace("│", " ").split())
    assert "Settings (those of photos)" in page
    for option, default in (("classifier", "resnet"), ("uqgan.iterations", expected["uqgan"]["iterations"])):
        assert re.search(rf"--{option} (?:(?!--).)*\[default: {default}\]", page), option
    (tmp_path / "empty").mkdir()
    for other in ("empty", "nowhere"):
        assert uqgan(monkeypatch, "train", other, "--help") == 0
        assert "a task may have others" in capfd.readouterr().out


def test_every_command_says_what_it_does(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "evaluate", "report", "generate", "demo", "methods", "tasks", "doctor"):
        assert uqgan(monkeypatch, command, "--help") == 0
        assert f"Usage: uqgan {command}" in capfd.readouterr().out
