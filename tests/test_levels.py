"""What a folder's names mean, what is passed over, and pictures with two labels: never silently."""

import os
import shutil
from pathlib import Path

import pytest
import torch

import uqgan
from pictures import picture, write_folder
from uqgan.data.folder import read_layout
from uqgan.data.preprocessing import PixelFormat, pixels
from uqgan.data.tasks import Task, load_task
from uqgan.errors import UsageError, count


def parts_of(task: Task) -> list[int]:
    return [len(part) for part in (task.train, task.validation, task.calibration, task.test)]


def write_levels(root: Path, train: str, val: str, test: str, ood: str) -> Path:
    for level, n in ((train, 12), (val, 4), (test, 6)):
        write_folder(root / level, n=n)
    write_folder(root / ood, ("sea",), n=8)
    return root


@pytest.mark.parametrize(
    "names",
    [
        ("Train", "Val", "Test", "OOD"),
        ("training", "validation", "testing", "Ood"),
        ("TRAINING", "VAL", "TESTING", "OoD"),
        ("train_set", "Valid", "test set", "ood"),
        ("training_set", "valid-set", "TestSet", "ood_sets"),
    ],
)
def test_levels_are_known_by_other_names_in_any_case(names: tuple[str, str, str, str], tmp_path: Path) -> None:
    task = load_task(write_levels(tmp_path / "photos", *names))
    assert task.class_names == ("cat", "dog")
    assert parts_of(task) == [24, 4, 4, 12]
    assert len(task.ood["sea"]) == 4
    for name, level in zip(names, ("train", "val", "test", "ood"), strict=True):
        assert (f"{name}/ is taken as {level}/" in task.notes) == (name != level)


@pytest.mark.parametrize("level", ["Test", "validation", "VAL", "testing", "valid", "OOD"])
def test_a_level_beside_the_classes_is_no_class(level: str, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos")
    write_folder(photos / level, n=6)
    assert read_layout(photos).train.class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("first", "second"), [("val", "valid"), ("Train", "train"), ("testing", "TEST"), ("OOD", "ood")]
)
def test_two_names_of_one_level_are_refused_by_name(first: str, second: str, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos")
    for level in (first, second):
        write_folder(photos / level, n=6)
    with pytest.raises(UsageError, match="which mean the same: must be one") as refusal:
        load_task(photos)
    assert f"{first}/" in str(refusal.value)
    assert f"{second}/" in str(refusal.value)


def test_a_level_within_train_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos" / "train")
    write_folder(tmp_path / "photos" / "train" / "Test")
    with pytest.raises(UsageError, match="train/Test: is called like a level, which cannot be a class"):
        load_task(tmp_path / "photos")


def test_words_that_only_begin_like_a_level_are_classes(tmp_path: Path) -> None:
    names = ("testudo", "trainer", "valley", "wood")
    assert read_layout(write_folder(tmp_path / "photos", names)).train.class_names == names


# Links that lead back up


@pytest.mark.parametrize("place", ["cat/up", "cat/deeper/up", "loop", "test/loop", "test/cat/up"])
@pytest.mark.parametrize("target", ["photos", "photos/..", "the folder of the link"])
def test_a_link_that_leads_back_up_is_told_and_not_followed(place: str, target: str, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos")
    write_folder(photos / "test", n=6)
    before = load_task(photos)
    link = photos / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(link.parent if target == "the folder of the link" else tmp_path / target, target_is_directory=True)
    after = load_task(photos)
    assert parts_of(after) == parts_of(before)
    assert torch.equal(after.train.x, before.train.x)
    assert f"{place}: a link that leads back up, not followed" in after.notes


def test_a_class_elsewhere_is_followed_but_not_back_to_where_it_is(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos")
    elsewhere = write_folder(tmp_path / "elsewhere", ("bird",))
    (photos / "bird").symlink_to(elsewhere / "bird", target_is_directory=True)
    (elsewhere / "bird" / "round").symlink_to(elsewhere, target_is_directory=True)
    (elsewhere / "bird" / "home").symlink_to(photos, target_is_directory=True)
    task = load_task(photos)
    assert task.class_names == ("bird", "cat", "dog")
    assert sum(parts_of(task)) == 30
    assert sum("leads back up" in note for note in task.notes) == 2


# The same picture in two classes


def test_a_picture_in_two_classes_is_told_with_both_paths_and_is_in_no_part(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos")
    shutil.copy(photos / "cat" / "3.png", photos / "dog" / "also a dog.png")
    shutil.copy(photos / "cat" / "5.png", photos / "cat" / "twice.png")
    (photos / "cat" / "0.png").write_bytes(b"text")
    task = load_task(photos, skip_broken=True)
    warning = "cat/3.png and dog/also a dog.png are the same picture in different classes: all left out"
    assert f"warning: label conflict: {warning}" in task.notes
    assert "pictures for training left out: 1 equal another one, pixel for pixel" in task.notes
    left = {"cat": (1, 2, 4, 5, 6, 7, 8, 9), "dog": range(10)}
    files = [(y, photos / name / f"{k}.png") for y, (name, numbers) in enumerate(left.items()) for k in numbers]
    parts = (task.train, task.validation, task.calibration, task.test)
    samples = [(int(y), x.numpy().tobytes()) for part in parts for x, y in zip(part.x, part.y, strict=True)]
    assert sorted(samples) == sorted((y, pixels(file.read_bytes(), PixelFormat(32, 3)).tobytes()) for y, file in files)


def test_a_conflict_with_a_test_picture_leaves_out_both(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos")
    write_folder(photos / "test", n=6)
    shutil.copy(photos / "test" / "dog" / "2.png", photos / "cat" / "dog.png")
    shutil.copy(photos / "test" / "dog" / "3.png", photos / "dog" / "no conflict.png")
    task = load_task(photos)
    assert task.test.y.bincount().tolist() == [6, 5]
    assert sum(parts_of(task)[:3]) == 20
    note = "test/dog/2.png and cat/dog.png are the same picture in different classes: all left out"
    assert f"warning: label conflict: {note}" in task.notes


def test_conflicts_of_whole_classes_are_counted_and_named_in_the_refusal(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", n=30)
    shutil.copytree(photos / "cat", photos / "kitty")
    with pytest.raises(UsageError, match=r"class cat has 0 pictures: .*cat/0.png and kitty/0.png are the same"):
        load_task(photos)
    for k in range(30, 40):
        for name in ("cat", "kitty"):
            picture(1000 * len(name) + k, 20, 3).save(photos / name / f"{k}.png")
    notes = load_task(photos).notes
    assert sum("are the same picture" in note for note in notes) == 20
    assert "warning: label conflicts of 30 pictures in all, left out" in notes


def test_a_conflict_in_arrays_is_told_by_row_and_class() -> None:
    x = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8)
    y = torch.arange(40) % 2
    x[7] = x[4]
    task = uqgan.load_task((x, y))
    assert sum(parts_of(task)) == 38
    assert any("row 4 of train (0) and row 7 of train (1) are the same picture" in note for note in task.notes)


# What is passed over


def test_pictures_right_in_the_root_are_counted(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos")
    picture(1).save(photos / "one.png")
    assert any(note.startswith("1 picture passed over: lies right in ") for note in load_task(photos).notes)
    picture(2).save(photos / "two.JPG", "JPEG")
    (photos / "no picture.txt").write_text("text")
    assert any(note.startswith("2 pictures passed over: lie right in ") for note in load_task(photos).notes)


def test_ood_pictures_that_are_not_tested_with_are_counted(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos")
    assert not any("set aside" in note for note in load_task(photos).notes)
    write_folder(photos / "ood", ("city", "sea"), n=9)
    task = load_task(photos)
    assert {name: len(x) for name, x in task.ood.items()} == {"city": 4, "sea": 4}
    note = "OoD pictures set aside for studies and oracles, not tested with: city 5, sea 5"
    assert note in task.notes


def test_a_root_that_may_not_be_read_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = write_folder(tmp_path / "photos")
    real_stat, real_listdir = os.stat, os.listdir

    def refuse(path: object, *more: object, **options: object) -> object:
        if str(path).startswith(str(photos)):
            raise PermissionError(13, "Permission denied", str(path))
        return real_stat(path, *more, **options)  # type: ignore[call-overload]

    def refuse_listing(path: object) -> list[str]:
        if str(path) == str(photos):
            raise PermissionError(13, "Permission denied", str(path))
        return real_listdir(path)  # type: ignore[call-overload,no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", refuse_listing)
        with pytest.raises(UsageError, match=rf"^{photos}: cannot be read \(permission denied\)$"):
            load_task(photos)
    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(UsageError, match=rf"^task = {photos}: cannot be read \(permission denied\)$"):
        load_task(photos)


@pytest.mark.parametrize(
    ("n", "thing", "words"),
    [
        (0, "picture", "0 pictures"),
        (1, "picture", "1 picture"),
        (2000, "file", "2,000 files"),
        (3, "class", "3 classes"),
    ],
)
def test_things_are_counted_in_words(n: int, thing: str, words: str) -> None:
    assert count(n, thing) == words
