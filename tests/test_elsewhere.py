"""A run is tested on its own data as they are now, wherever they are, and on other pictures."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import uqgan
from pictures import Cli, picture, write_folder
from uqgan.data.seen import Seen, samples_of
from uqgan.data.tasks import Task, load_task
from uqgan.errors import UsageError
from uqgan.evaluation import Outputs
from uqgan.report.page import Chapter, render
from uqgan.run import Run
from uqgan.tiles import tile

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 16, "quiet": True}
CLASSES = ("bird", "cat", "dog")


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures, and a run that was trained on it."""
    place = tmp_path_factory.mktemp("elsewhere")
    write_folder(place / "photos", CLASSES, n=15)
    write_folder(place / "photos" / "ood", ("sea",), n=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UQGAN_CACHE", str(place / "cache"))
        uqgan.fit("mc-dropout", place / "photos", folder=place / "run", device="cpu", **QUICK)
    return place


@pytest.fixture
def place(master: Path, tmp_path: Path) -> Path:
    """The same folder and run, to be changed: the run is told that its data are here."""
    shutil.copytree(master, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(master.resolve()), str(tmp_path.resolve())))
    return tmp_path


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


def loaded(place: Path) -> Run:
    return uqgan.load(place / "run", device="cpu")


def trained_on(place: Path) -> Task:
    """The task as it was when the run was trained."""
    return load_task(place / "photos")


def rows(x: torch.Tensor) -> set[bytes]:
    return {each.numpy().tobytes() for each in x}


def same(a: Outputs, b: Outputs) -> bool:
    pairs = zip((a.test, *a.ood.values()), (b.test, *b.ood.values()), strict=True)
    return torch.equal(a.y, b.y) and all(
        torch.equal(x.probs, y.probs) and torch.equal(x.epistemic, y.epistemic) for x, y in pairs
    )


def write_pictures(root: Path, x: torch.Tensor, y: torch.Tensor, names: Sequence[str]) -> Path:
    for k, (image, label) in enumerate(zip(x, y.tolist(), strict=True)):
        (root / names[label]).mkdir(parents=True, exist_ok=True)
        (root / names[label] / f"{k}.png").write_bytes(tile([image[None]]))
    return root


# What a run keeps


def test_a_run_keeps_fingerprints_of_what_it_saw_and_comes_back_with_them(master: Path) -> None:
    seen, task = Seen.read(master / "run" / "seen.npz"), trained_on(master)
    assert {part: len(prints) for part, prints in seen.parts.items()} == {
        k: len(x) for k, x in samples_of(task).items()
    }
    assert seen.agrees(task)
    assert len(np.unique(seen.everything)) == 55
    assert len(seen.kept) == 55 - len(task.test) - len(task.ood["sea"])


def test_overwriting_a_run_removes_what_it_saw(place: Path) -> None:
    from uqgan.runs import remove_run

    remove_run(place / "run")
    assert not (place / "run").exists()


def test_damaged_fingerprints_are_one_sentence(place: Path) -> None:
    (place / "run" / "seen.npz").write_bytes(b"text")
    with pytest.raises(
        UsageError, match=r"seen\.npz: damaged, or no record of what a run has seen \(train the run again\)"
    ):
        loaded(place).evaluate()


def test_fingerprints_that_cannot_be_read_are_not_called_damaged(place: Path) -> None:
    (place / "run" / "seen.npz").unlink()
    (place / "run" / "seen.npz").mkdir()
    with pytest.raises(UsageError, match=r"seen\.npz: cannot be read \(is a directory\)$"):
        loaded(place).evaluate()


# Its own data as they are now


def test_data_that_did_not_change_give_bit_equal_scores(place: Path, cli: Cli) -> None:
    task, run = trained_on(place), loaded(place)
    assert torch.equal(run.task.test.x, task.test.x)
    fresh = uqgan.fit("mc-dropout", task, device="cpu", **QUICK).evaluate()
    found = run.evaluate()
    assert found["raw_sha256"] == fresh["raw_sha256"]
    assert found["scores"] == fresh["scores"]
    assert "test_set" not in found
    status, _, err = cli("evaluate", place / "run")
    assert (status, err) == (0, "")
    assert json.loads((place / "run" / "scores.json").read_text())["raw_sha256"] == found["raw_sha256"]


def test_one_more_picture_is_tested_and_no_picture_of_the_training_is(place: Path, cli: Cli) -> None:
    before = trained_on(place)
    for k, name in enumerate(CLASSES):
        picture(k, 20, 3).save(place / "photos" / name / "0new.png")
    (place / "photos" / "cat" / "3.png").unlink()
    (place / "photos" / "dog" / "3.png").unlink()
    assert rows(load_task(place / "photos").test.x) & rows(before.train.x), "the drawn test set moves"
    run = loaded(place)
    task = run.task
    used = set().union(*(rows(part.x) for part in (before.train, before.validation, before.calibration)))
    assert not rows(task.test.x) & used
    assert len(rows(task.test.x) - rows(before.test.x)) == 3
    assert rows(task.train.x) <= rows(before.train.x)
    assert sum(len(part) for part in (task.train, task.validation, task.calibration, task.test)) == 46
    assert torch.equal(task.ood["sea"], before.ood["sea"])
    still = [each.numpy().tobytes() in rows(task.test.x) for each in before.test.x]
    assert torch.equal(task.test.x[:-3], before.test.x[still])
    assert torch.equal(task.test.y, torch.cat([before.test.y[still], torch.arange(3)]))
    status, _, err = cli("evaluate", place / "run")
    assert status == 0
    assert "photos: changed since the run was trained: pictures new: 3, gone: 2\n" in err
    assert "-o FILE.json keeps these" in err
    assert not (place / "run" / "scores.json").exists()


@pytest.mark.parametrize("target", ["cat/renamed.png", "dog/really a dog.png"])
def test_a_renamed_picture_and_one_of_another_class_are_no_new_pictures(target: str, place: Path, cli: Cli) -> None:
    (place / "photos" / "cat" / "3.png").rename(place / "photos" / target)
    status, _, err = cli("evaluate", place / "run")
    assert status == 0
    same = "the same pictures, with other file names or in other folders"
    assert f"photos: changed since the run was trained: {same}\n" in err
    assert "left out" not in err


def test_pictures_new_for_training_are_not_tested_where_the_test_set_is_given(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos" / "train", n=12)
    write_folder(tmp_path / "photos" / "test", n=4)
    uqgan.fit("max-softmax", tmp_path / "photos", folder=tmp_path / "run", device="cpu", **QUICK)
    before = loaded(tmp_path).task
    picture(1, 20, 3).save(tmp_path / "photos" / "train" / "cat" / "new.png")
    shutil.copy(tmp_path / "photos" / "train" / "cat" / "1.png", tmp_path / "photos" / "test" / "cat" / "seen.png")
    picture(2, 20, 3).save(tmp_path / "photos" / "test" / "cat" / "new.png")
    run = loaded(tmp_path)
    assert len(run.task.test) == len(before.test) + 1
    assert torch.equal(run.task.test.x[:-1], before.test.x)
    assert run.task.files["test"][-1] == "test/cat/new.png"


def test_a_split_by_another_seed_is_found_again(place: Path) -> None:
    task = load_task(place / "photos", seed=5)
    first = uqgan.fit("mc-dropout", task, folder=place / "other", device="cpu", **QUICK)
    again = uqgan.load(place / "other", device="cpu")
    assert torch.equal(again.task.test.x, task.test.x)
    assert same(again.outputs(), first.outputs())
    assert "test_set" not in again.evaluate(resamples=0)


def test_a_class_with_few_pictures_left_can_be_tested_still(place: Path, cli: Cli) -> None:
    for file in sorted((place / "photos" / "cat").iterdir())[2:]:
        file.unlink()
    shutil.rmtree(place / "photos" / "bird")
    picture(0, 20, 3).save(place / "photos" / "dog" / "new.png")
    status, out, err = cli("evaluate", place / "run")
    assert status == 0, err
    assert "photos: changed since the run was trained" in err
    assert "no test pictures of bird" in err
    assert "dog" in out


def test_a_new_class_folder_is_refused_by_name(place: Path, cli: Cli) -> None:
    write_folder(place / "photos2", ("fish",), n=6)
    shutil.move(place / "photos2" / "fish", place / "photos" / "fish")
    status, _, err = cli("evaluate", place / "run")
    assert status == 2
    assert "photos: fish is not a class of the run, which knows bird, cat, dog (foreign pictures go to ood/fish/" in err


def test_an_older_run_refuses_changed_data_in_a_sentence(place: Path) -> None:
    (place / "run" / "seen.npz").unlink()
    loaded(place).evaluate(resamples=0)
    picture(0, 20, 3).save(place / "photos" / "cat" / "new.png")
    with pytest.raises(
        UsageError, match=r"its pictures changed since .* does not say which ones it saw \(train it again"
    ):
        loaded(place).evaluate()


def nothing(_: Path) -> None:
    pass


REMAINS = pytest.mark.parametrize("remain", [nothing, Path.mkdir, Path.touch])
"""What is left of data that are gone: nothing, an empty folder such as that of a disk, a file."""


@REMAINS
def test_a_folder_that_is_gone_is_said_with_what_to_do(remain: Callable[[Path], None], place: Path, cli: Cli) -> None:
    shutil.rmtree(place / "photos")
    remain(place / "photos")
    write_folder(place / "sky", ("a",), n=3)
    foreign = ("--ood", f"sky={place / 'sky'}")
    gone = "photos: is not there any more (test the run on other pictures: --test FOLDER"
    for words in (("evaluate", "--validation"), ("evaluate",), ("evaluate", *foreign), ("report",)):
        status, _, err = cli(words[0], place / "run", *words[1:])
        assert (status, gone in err, err.count("\n")) == (2, True, 1)


@REMAINS
def test_a_run_whose_data_are_gone_is_scored_by_the_predictions_that_it_kept(
    remain: Callable[[Path], None], place: Path, cli: Cli
) -> None:
    write_folder(place / "sky", ("a",), n=3)
    foreign = ("--ood", f"sky={place / 'sky'}")
    whole, beside_foreign = (json.loads(cli("evaluate", place / "run", "--json", *more)[1]) for more in ((), foreign))
    kept = (place / "run" / "scores.json").read_bytes()
    shutil.rmtree(place / "photos")
    remain(place / "photos")
    status, out, err = cli("evaluate", place / "run", "--json")
    assert (status, "its pictures are as the run last scored them" in err) == (0, True)
    status, second, _ = cli("evaluate", place / "run", "--json", *foreign)
    assert status == 0
    for before, now in ((whole, json.loads(out)), (beside_foreign, json.loads(second))):
        assert now | {"test_set": None} == before | {"test_set": None}
    assert (place / "run" / "scores.json").read_bytes() == kept
    status, _, err = cli("report", place / "run", *foreign, "-o", place / "r.html")
    assert (status, "its test pictures, which a report shows, are not there any more" in err) == (2, True)


# Other pictures


def test_a_folder_that_moved_gives_the_very_scores_that_it_gave(place: Path, cli: Cli) -> None:
    before = loaded(place).outputs()
    (place / "photos").rename(place / "moved")
    run = loaded(place).on(test=place / "moved")
    assert same(run.outputs(), before)
    status, _, err = cli("evaluate", place / "run", "--test", place / "moved")
    assert status == 0
    assert "test: pictures left out because training, validation, calibration or studies used them: 36" in err
    assert "ood sea: pictures left out because training, validation, calibration or studies used them: 5" in err


def test_other_pictures_need_no_training_data_and_leave_the_runs_scores_alone(place: Path, cli: Cli) -> None:
    assert cli("evaluate", place / "run")[0] == 0
    before = {name: (place / "run" / name).read_bytes() for name in ("scores.json", "raw_scores.npz")}
    shutil.rmtree(place / "photos")
    write_folder(place / "new", ("cat", "dog"), n=3)
    write_folder(place / "sky", ("a", "b"), n=2)
    picture(0, 30, 3).save(place / "sky" / "loose.png")
    words = ("evaluate", place / "run", "--test", place / "new", "--ood", f"sky={place / 'sky'}")
    status, out, err = cli(*words, "--ood", f"again={place / 'sky' / 'a'}", "--json", "-o", place / "new.json")
    assert status == 0, err
    assert "no test pictures of bird" in err
    found = json.loads(out)
    assert [row["n"] for row in found["scores"]["per_class"]] == [0, 3, 3]
    assert set(found["scores"]["sets"]) == {"all", "sky", "again"}
    assert found["test_set"]["test"] == str((place / "new").resolve())
    kept = json.loads((place / "new.json").read_text())
    assert kept["scores"] == found["scores"]
    assert {"settings", "versions", "test_set", "intervals"} <= set(kept)
    assert cli(*words, "-o", place / "new.npz")[0] == 0
    assert len(Outputs.read(place / "new.npz").ood["sky"].probs) == 5
    assert {name: (place / "run" / name).read_bytes() for name in before} == before


def test_one_picture_is_enough(place: Path, cli: Cli) -> None:
    new = write_folder(place / "new", ("cat",), n=1)
    status, _, err = cli("evaluate", "--ood", f"sea={new}", place / "run", "--test", new, "-o", place / "new.json")
    assert status == 0, err
    scores = json.loads((place / "new.json").read_text())["scores"]
    assert scores["per_class"][1]["n"] == 1
    assert scores["sets"]["sea"]["auroc"] in (0, 0.5, 1)


def test_pictures_trained_on_are_left_out_of_ood_sets_too(place: Path) -> None:
    used = trained_on(place)
    run = loaded(place).on(ood={"cats": place / "photos" / "cat"})
    assert rows(run.task.ood["cats"]) == rows(used.test.x[used.test.y == 1])
    assert all(name in {f"{k}.png" for k in range(15)} for name in run.task.files["ood/cats"])


def test_an_older_run_says_that_it_does_not_know_what_it_saw(place: Path, cli: Cli) -> None:
    (place / "run" / "seen.npz").unlink()
    status, _, err = cli("evaluate", place / "run", "--test", place / "photos")
    assert status == 0
    assert "test: the run does not say which pictures it was trained on, so none is left out" in err


def test_ood_sets_alone_stand_against_the_runs_own_test_set(place: Path) -> None:
    write_folder(place / "sky", ("a",), n=3)
    run = loaded(place)
    found = run.evaluate(ood={"sky": place / "sky"}, resamples=0)
    assert set(found["scores"]["sets"]) == {"sky"}
    own = run.evaluate(resamples=0)
    assert {k: found["scores"][k] for k in ("accuracy", "ece")} == {k: own["scores"][k] for k in ("accuracy", "ece")}
    assert set(own["scores"]["sets"]) == {"sea"}


def test_arrays_do_as_well_with_names_or_numbers(place: Path) -> None:
    run = loaded(place)
    x, y = run.task.test.x, run.task.test.y
    by_number = run.evaluate(test=(x.numpy(), y.numpy()), ood={"sea": run.task.ood["sea"]}, resamples=0)
    by_name = run.evaluate(test=(x, [CLASSES[k] for k in y]), ood={"sea": run.task.ood["sea"]}, resamples=0)
    own = run.evaluate(resamples=0)
    assert by_number["scores"] == by_name["scores"] == own["scores"]
    moons = load_task("moons")
    few = replace(moons, train=moons.train[torch.arange(100)], validation=moons.validation[torch.arange(50)])
    points = uqgan.fit("max-softmax", few, device="cpu", **QUICK)
    test = points.task.test
    again = points.evaluate(test=(test.x.numpy(), test.y.numpy()), ood=points.task.ood, resamples=0)
    assert again["raw_sha256"] == points.evaluate(resamples=0)["raw_sha256"]


def test_a_run_of_digits_is_tested_on_a_folder_seen_as_its_task_sees_pictures(tmp_path: Path) -> None:
    run = uqgan.fit("max-softmax", "digits", folder=tmp_path / "run", device="cpu", **QUICK)
    task = run.task
    root = write_pictures(tmp_path / "pictures", task.test.x, task.test.y, task.class_names)
    write_pictures(root, task.train.x[:50], task.train.y[:50], [f"{name}/train" for name in task.class_names])
    found = loaded(tmp_path).evaluate(test=root, resamples=0)
    own = run.evaluate(resamples=0)
    assert found["scores"]["confusion"] == own["scores"]["confusion"]
    assert found["test_set"]["notes"] == [
        "test: pictures left out because training, validation, calibration or studies used them: 50"
    ]
    colour = tmp_path / "colour" / "3"
    colour.mkdir(parents=True)
    Image.new("RGB", (60, 40), "red").save(colour / "large.jpg")
    assert loaded(tmp_path).on(test=tmp_path / "colour").task.test.x.shape == (1, 1, 32, 32)
    (tmp_path / "colour" / "7").mkdir()
    with pytest.raises(
        UsageError, match=r"7: not a class of the run, which knows 0, 1, 2, 3, 4 \(foreign pictures go to"
    ):
        loaded(tmp_path).on(test=tmp_path / "colour")


def test_broken_and_loose_pictures_are_told_and_left_out(place: Path, cli: Cli) -> None:
    write_folder(place / "new", ("cat", "dog"), n=3)
    (place / "new" / "cat" / "1.png").write_bytes(b"text")
    picture(0).save(place / "new" / "loose.png")
    status, out, err = cli("evaluate", place / "run", "--test", place / "new", "--json")
    assert status == 0
    assert [row["n"] for row in json.loads(out)["scores"]["per_class"]] == [0, 2, 3]
    assert "broken: cat/1.png: not a png, jpg, webp or bmp picture" in err
    assert f"1 picture passed over: lies right in {place / 'new'}/ (put pictures under CLASS/)" in err


def test_what_training_tells_of_a_folder_is_told_of_test_pictures(place: Path, cli: Cli) -> None:
    new = place / "new"
    write_folder(new / "Test", ("cat", "dog"), n=4)
    write_folder(new / "ood", ("sky",), n=3)
    write_folder(place / "far", ("a",), n=3)
    shutil.copy(new / "Test" / "cat" / "3.png", new / "Test" / "dog" / "also a dog.png")
    for folder, name in (("Test/cat", "0.png"), ("ood/sky", "1.png")):
        shutil.copy(new / folder / name, new / folder / "twice.png")
        (new / folder / "notes.txt").write_text("text")
    for folder in (new, new / "ood", new / "Test" / "dog"):
        (folder / "up").symlink_to(new, target_is_directory=True)
        picture(len(folder.parts)).save(folder / f"loose-{folder.name}.png")
    (place / "far" / "a" / "more.heic").write_bytes(b"")
    words = ("--test", new, "--ood", f"far={place / 'far'}", "--json")
    status, out, err = cli("evaluate", place / "run", *words)
    assert status == 0, err
    assert [row["n"] for row in json.loads(out)["scores"]["per_class"]] == [0, 3, 5]
    for note in (
        "Test/ is taken as test/",
        f"1 picture passed over: lies right in {new}/ (put pictures under CLASS/)",
        f"1 picture passed over: lies right in {new / 'ood'}/ (put pictures under NAME/)",
        "Test/cat/3.png and Test/dog/also a dog.png are the same picture in different classes: all left out",
        "test: pictures left out because they equal another one, pixel for pixel: 1",
        "ood sky: pictures left out because they equal another one, pixel for pixel: 1",
        *(f"{name}: a link that leads back up, not followed" for name in ("new/Test: up", "ood/up", "Test/dog/up")),
        f"test = {new / 'Test'}: 1 .txt file passed over",
        f"ood sky = {new / 'ood' / 'sky'}: 1 .txt file passed over",
        f"ood far = {place / 'far'}: 1 .heic file passed over",
    ):
        assert err.count(note) == 1, note


def test_pictures_that_are_all_in_two_classes_are_refused(place: Path) -> None:
    write_folder(place / "new", ("cat",), n=2)
    shutil.copytree(place / "new" / "cat", place / "new" / "dog")
    with pytest.raises(UsageError, match=r"^test: every picture is in several classes \(give others\)$"):
        loaded(place).on(test=place / "new")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--test", "nowhere"], "test = nowhere: no such folder"),
        (["--test", "text/cat/a.png"], "test = text/cat/a.png: is a file: must be a folder of pictures"),
        (["--ood", "a=text/cat/a.png"], "ood a = text/cat/a.png: is a file: must be a folder of pictures"),
        (
            ["--test", "empty"],
            "test = empty: has no folders of the run's classes (must look like empty/bird/picture.png)",
        ),
        (["--test", "hollow"], "test = hollow: has no pictures (png, jpg, webp or bmp)"),
        (
            ["--test", "strange"],
            "strange/fish: not a class of the run, which knows bird, cat, dog (foreign pictures go",
        ),
        (["--test", "used"], "test: training, validation, calibration or studies used every picture (give others)"),
        (["--test", "text"], "test = text: every picture is broken (cat/a.png: not a png"),
        (["--ood", "strange"], "--ood = strange: must be NAME=FOLDER"),
        (["--ood", "a=strange", "--ood", "a=text"], "--ood = a=text: a is given twice (choose another name)"),
        (["--ood", "all=strange"], "ood = all: that is what all sets together are called"),
        (["--ood", "a=nowhere"], "ood a = nowhere: no such folder"),
        (["--ood", "a=empty"], "ood a = empty: has no pictures"),
        (["--validation", "--test", "strange"], "--validation: scores samples of the run's own data"),
        (["-o", "scores.csv"], "-o = scores.csv: must end in .json (scores) or .npz"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, place: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    (place / "empty").mkdir()
    (place / "hollow" / "cat").mkdir(parents=True)
    write_folder(place / "strange", ("fish",), n=2)
    used = trained_on(place).train
    write_pictures(place / "used", used.x, used.y, CLASSES)
    (place / "text" / "cat").mkdir(parents=True)
    (place / "text" / "cat" / "a.png").write_text("text")
    before = sorted(os.listdir(place / "run"))  # noqa: PTH208
    status, _, err = cli("evaluate", "run", *words)
    assert (status, err.count("\n")) == (2, 1), err
    assert sentence in err
    assert sorted(os.listdir(place / "run")) == before  # noqa: PTH208


@pytest.mark.parametrize(
    ("test", "sentence"),
    [
        (3, "test = int: must be a folder of class folders, or"),
        ((torch.zeros(2, 3, 32, 32, dtype=torch.uint8), [0]), "y of test: has shape"),
        ((torch.zeros(1, 3, 32, 32, dtype=torch.uint8), ["fish"]), "y of test: fish is not a class of the run"),
        ((torch.zeros(1, 3, 32, 32, dtype=torch.uint8), [3]), "y of test: 3 is not a class of the run"),
    ],
)
def test_a_mistake_in_python_is_one_sentence(test: Any, sentence: str, place: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        loaded(place).evaluate(test=test)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"ood": "drawings"}, "ood = drawings: must be a dict of folders or arrays by name"),
        ({"ood": ["drawings"]}, "ood = .*: must be a dict"),
        ({"resamples": "many"}, "resamples = many: must be a whole number"),
        ({"resamples": 2.5}, "resamples = 2.5: must be a whole number"),
        ({"resamples": -1}, "resamples = -1: must be within 0"),
        ({"outputs": 3}, "outputs = 3: must be what run.outputs"),
    ],
)
def test_wrong_types_are_told_before_anything_is_tested(words: dict[str, Any], sentence: str, place: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        loaded(place).evaluate(**words)


# Names of files


def test_file_names_stay_with_their_pictures(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", n=12)
    write_folder(photos / "ood", ("sea",), n=6)
    write_folder(photos / "test", n=3)
    shutil.copy(photos / "test" / "cat" / "0.png", photos / "cat" / "a copy: of it.png")
    (photos / "cat" / "10: broken.png").write_bytes(b"text")
    for _ in ("decoded", "from the cache"):
        task = load_task(photos, skip_broken=True)
        parts = samples_of(task)
        assert set(task.files) == set(parts)
        for part, x in parts.items():
            for name, pixels in zip(task.files[part], x, strict=True):
                with Image.open(photos / name) as image:
                    whole = image.convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)
                assert np.array_equal(np.asarray(whole).transpose(2, 0, 1), pixels.numpy()), (part, name)
        assert all(name.startswith("test/") for name in task.files["test"])
        assert all(name.startswith("ood/sea/") for name in task.files["outliers/sea"])


def test_galleries_show_the_names_of_files(place: Path) -> None:
    run = loaded(place)
    outputs = run.outputs()
    page = render([Chapter(run.record, run.task, outputs, run.evaluate(outputs=outputs))], "page")
    shown = set(run.task.files["test"]) | set(run.task.files["ood/sea"])
    assert sum(f"<code>{name}</code>" in page for name in shown) == len(shown)
    write_folder(place / "new", ("cat",), n=2)
    other = run.on(test=place / "new", ood={"sky": place / "photos" / "ood"})
    page = render([Chapter(other.record, other.task, other.outputs(), other.evaluate(resamples=0))], "page")
    for name in ("cat/0.png", "cat/1.png", "sea/"):
        assert f"<code>{name}" in page
    digits = uqgan.fit("max-softmax", "digits", device="cpu", **QUICK)
    assert digits.task.files == {}


def test_a_report_is_written_about_other_pictures(place: Path, cli: Cli) -> None:
    shutil.rmtree(place / "photos")
    write_folder(place / "new", ("cat", "dog"), n=3)
    status, _, err = cli("report", place / "run", "--test", place / "new", "-o", place / "page.html")
    assert status == 0, err
    assert "no test pictures of bird" in err
    assert "<code>cat/0.png</code>" in (place / "page.html").read_text()


# What is shown


def test_classes_and_their_confusion_are_shown(place: Path, cli: Cli) -> None:
    status, out, _ = cli("evaluate", place / "run")
    assert status == 0
    scores = json.loads((place / "run" / "scores.json").read_text())["scores"]
    for k, (row, counts) in enumerate(zip(scores["per_class"], scores["confusion"], strict=True)):
        cells = [str(n or "·") for n in counts]
        line = next(line for line in out.splitlines() if line.split()[:2] == [str(k), row["class"]])
        assert line.split()[2:] == [str(row["n"]), f"{100 * row['accuracy']:.1f}", *cells]


def test_the_page_shows_classes_and_their_confusion(place: Path) -> None:
    run = loaded(place)
    outputs = run.outputs()
    found = run.evaluate(outputs=outputs, resamples=0)
    page = render([Chapter(run.record, run.task, outputs, found)], "page")
    for row, counts in zip(found["scores"]["per_class"], found["scores"]["confusion"], strict=True):
        cells = [str(row["n"]), f"{100 * row['accuracy']:.1f}", *(str(n or "·") for n in counts)]
        assert f'<th scope="row">{row["class"]}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) in page
    assert "Accuracy per class and confusion matrix" in page
    many = {"per_class": found["scores"]["per_class"] * 7, "confusion": [[0] * 21] * 21}
    page = render([Chapter(run.record, run.task, outputs, found | {"scores": found["scores"] | many})], "page")
    assert "Accuracy per class</summary>" in page


def test_of_many_classes_the_worst_are_shown() -> None:
    from uqgan.cli.scores import class_lines

    rows = [{"class": f"c{k}", "accuracy": k / 30 if k else None, "n": 9 * bool(k)} for k in range(30)]
    (line,) = class_lines({"per_class": rows, "confusion": [[0] * 30] * 30})
    assert line.startswith("lowest accuracy of 30 classes, in %: c1 3.3 (n 9), c2 6.7 (n 9)")
    assert class_lines({}) == []


def test_rates_of_decisions_stand_beside_the_papers_columns(place: Path, cli: Cli) -> None:
    run = loaded(place)
    refused = run.evaluate(resamples=0)
    assert "decisions" not in refused
    assert "calibration" in refused["no_decisions"]
    status, out, _ = cli("evaluate", place / "run")
    assert (status, f"no decisions: {refused['no_decisions']}"[:60] in out) == (0, True)
    run.calibrate(false_alarm=0.5, coverage=0.5)
    outputs = run.outputs()
    found = loaded(place).evaluate(resamples=0)
    assert found["scores"] == refused["scores"]
    made, other = run.decide(outputs.test), run.decide(outputs.ood["sea"])
    assert found["decisions"]["known"]["flagged"] == pytest.approx(made.flagged.double().mean())
    assert found["decisions"]["sets"]["sea"]["set_size"] == pytest.approx(other.sets.sum(1).double().mean())
    status, out, _ = cli("evaluate", place / "run")
    assert (status, "decisions" in out, "no decisions" in out, "flagged" in out) == (0, True, False, True)


def test_a_run_decides_elsewhere_by_its_own_calibration(place: Path) -> None:
    write_folder(place / "new", ("cat",), n=3)
    run = loaded(place)
    run.calibrate(false_alarm=0.5, coverage=0.5)
    expected = run.evaluate(test=place / "new", resamples=0)["decisions"]
    for kept in (True, False):
        if not kept:
            (place / "run" / "calibration.npz").unlink()
        assert loaded(place).evaluate(test=place / "new", resamples=0)["decisions"] == expected
    shutil.rmtree(place / "photos")
    assert "is not there any more" in loaded(place).evaluate(test=place / "new", resamples=0)["no_decisions"]


def test_a_class_called_like_a_level_is_tested_as_a_class(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (30, 32, 32), dtype=np.uint8)
    run = uqgan.fit("max-softmax", load_task((x, ["test", "train"] * 15)), device="cpu", **QUICK)
    write_folder(tmp_path / "new", ("test", "train"), n=2)
    assert [row["n"] for row in run.evaluate(test=tmp_path / "new", resamples=0)["scores"]["per_class"]] == [2, 2]
