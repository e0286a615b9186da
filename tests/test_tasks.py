"""Tasks: the table, class ranges, the paper's settings on made-up copies of their sets, own arrays."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pictures import REAL, Cli, encoded, picture, write_random_set, write_set
from uqgan.config import load_config
from uqgan.data import tasks
from uqgan.data.checks import fingerprints
from uqgan.data.sources import REPOSITORIES
from uqgan.data.tasks import TASKS, class_ranges, load_task, parse_classes
from uqgan.errors import UsageError


def test_class_ranges_are_read_and_written() -> None:
    assert parse_classes("0,3,6-8", 10) == [0, 3, 6, 7, 8]
    assert parse_classes("6..8", 10) == [6, 7, 8]
    assert class_ranges([0, 3, 6, 7, 8]) == "0,3,6-8"


@pytest.mark.parametrize("text", ["", "a", "5-3", "0-10", "3", "0-9", "1,,2", "-1", "0.5"])
def test_wrong_class_ranges_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="classes = "):
        parse_classes(text, 10)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_settings_that_go_with_its_pictures(name: str) -> None:
    config, outline = load_config(name), TASKS[name]
    if outline.ood:
        assert config.classifier == ("lenet" if outline.channels == 1 else "resnet")
        assert set(outline.ood) <= set(REPOSITORIES)
        assert name in REPOSITORIES


def test_the_table_is_the_papers() -> None:
    rows = {name: (o.known, o.n_classes, o.size, o.channels, o.flip, o.ood) for name, o in TASKS.items() if o.ood}
    rgb = ("lsun", "svhn", "fashion-mnist", "mnist")
    grey = ("emnist-letters", "fashion-mnist", "svhn", "omniglot", "cifar10")
    assert rows == {
        "mnist": (range(5), 10, 32, 1, False, grey),
        "cifar10": (range(5), 10, 32, 3, True, rgb),
        "cifar100": (range(50), 100, 32, 3, True, rgb),
        "tiny-imagenet": (range(100), 200, 64, 3, False, rgb[1:]),
    }


def test_unknown_names_come_with_a_guess() -> None:
    with pytest.raises(UsageError, match="did you mean mnist"):
        load_task("mnsit")
    with pytest.raises(UsageError, match="no such folder"):
        load_task("some/where")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """Small copies of MNIST, Fashion-MNIST and SVHN."""
    for seed, (name, train, channels) in enumerate((("mnist", "train", 1), ("fashion-mnist", "train_subset", 1))):
        write_random_set(tmp_path, name, train, 100, 10, 1000 * seed, channels)
        write_random_set(tmp_path, name, "test", 50, 10, 1000 * seed + 500, channels)
    write_random_set(tmp_path, "svhn", "test", 30, 10, 5000, 3)
    return tmp_path


@pytest.mark.parametrize(("part", "called"), [("train", "training"), ("test", "test")])
def test_what_lacks_is_told_before_anything_is_decoded(part: str, called: str, shelf: Path) -> None:
    for file in (shelf / "mnist").glob(f"{part}-*"):
        file.unlink()
    said: list[str] = []
    with pytest.raises(UsageError, match=f"no {called} pictures of mnist"):
        load_task("mnist", root=shelf, say=said.append)
    assert said == []


def test_a_task_is_made_of_what_is_there_and_says_what_is_not(shelf: Path) -> None:
    task = load_task("mnist", root=shelf)
    assert task.class_names == ("0", "1", "2", "3", "4")
    assert task.shape == (1, 32, 32)
    assert len(task.train) + len(task.validation) + len(task.calibration) == 50
    assert len(task.test) == 25
    assert {name: len(x) for name, x in task.ood.items()} == {"mnist+5-9": 25, "fashion-mnist": 50, "svhn": 30}
    assert set(task.missing) == {"emnist-letters", "omniglot", "cifar10"}
    assert "uqgan data fetch omniglot" in task.missing["omniglot"]
    assert any("svhn has no training pictures" in note for note in task.notes)
    assert {name: len(x) for name, x in task.outliers.items()} == {"mnist+5-9": 35, "fashion-mnist": 70}
    assert {name: len(x) for name, x in task.ood_validation.items()} == {"mnist+5-9": 15, "fashion-mnist": 30}


def test_no_picture_of_a_task_is_in_two_of_its_parts(shelf: Path) -> None:
    task = load_task("mnist", root=shelf)
    parts: list[Any] = [task.train.x, task.validation.x, task.calibration.x, task.test.x]
    parts += [*task.ood.values(), *task.ood_validation.values(), *task.outliers.values()]
    found = [each for part in parts for each in fingerprints(part)]
    assert len(found) == len(set(found)) == 100 + 50 + 100 + 50 + 30


def test_other_classes_make_another_task(shelf: Path) -> None:
    task = load_task("mnist+0,3,6-8", root=shelf)
    assert task.class_names == ("0", "3", "6", "7", "8")
    assert "mnist+1-2,4-5,9" in task.ood
    assert task.train.y.max() == 4


def write_part_of_cifar10(root: Path, a_class: int) -> None:
    names = [str(k) for k in range(10)]
    for split, labels, seed in (
        ("train", [k for k in range(5) for _ in range(a_class)], 0),
        ("train_ood", [*range(5, 10)] * 5, 2000),
        ("test", list(range(10)), 3000),
    ):
        write_set(
            root, "cifar10", split, [encoded(picture(seed + k, 32, 3)) for k in range(len(labels))], labels, names
        )


def test_thin_training_classes_are_said_whether_known_or_not(tmp_path: Path) -> None:
    write_part_of_cifar10(tmp_path, 60)
    note = "only 25 training pictures of the classes 5-9 of cifar10 are here"
    assert load_task("cifar10", root=tmp_path).notes[0] == note
    for name in ("cifar10+5-9", "cifar10+0-2,7"):
        assert load_task(name, root=tmp_path).notes[0] == note
    told = load_task("cifar10+0-2,7", root=tmp_path).notes
    assert "warning: 0 has 60 pictures and 7 5: strongly imbalanced classes" in told


@pytest.mark.skipif(not os.environ.get(REAL), reason=f"{REAL} is not set: the paper's data sets aren't here")
def test_no_picture_of_the_real_cifar100_is_trained_on_and_in_another_part(tmp_path: Path) -> None:
    (tmp_path / "cifar100").symlink_to(Path(os.environ[REAL]).resolve() / "cifar100")
    task = load_task("cifar100", root=tmp_path)
    sets = [task.train, task.validation, task.calibration, task.test]
    assert [len(data) for data in sets] == [19_971, 2_500, 2_522, 5_000]
    parts = [*(data.x for data in sets), *task.ood.values(), *task.ood_validation.values(), *task.outliers.values()]
    found = [set(fingerprints(part)) for part in parts]
    assert sum(map(len, found)) == len(set().union(*found))
    left_out = "pictures for training left out: 6 equal a test picture and 1 equal another one, pixel for pixel"
    assert left_out in task.notes


def test_a_set_that_is_needed_and_absent_is_said_with_both_ways_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_task("cifar10", root=tmp_path)
    assert "uqgan data fetch cifar10, or place train-*.parquet and test-*.parquet with columns img and label in" in str(
        caught.value
    )


def test_a_set_with_the_wrong_classes_is_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_random_set(tmp_path, "cifar10", split, 20, 7, 0, 3)
    with pytest.raises(UsageError, match="has 7 classes: must have 10"):
        load_task("cifar10", root=tmp_path)


def test_large_data_are_announced(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "LARGE", 100_000)
    said: list[str] = []
    load_task("mnist", root=shelf, say=said.append)
    assert said[0] == "330 pictures take 0.0 GiB of memory"


def write_tiny_imagenet(root: Path, a_class: int = 3) -> None:
    """64-pixel JPEGs of 100 + 100 classes, some of them grey, in the splits of the real copy."""
    names = (Path(tasks.__file__).parent / "tiny_imagenet_classes.txt").read_text().split()
    for split, classes, n, seed in (("train", range(100), a_class, 0), ("train_ood", range(100, 200), 1, 5000)):
        _write_jpegs(root, split, [k for k in classes for _ in range(n)], names, seed)
    _write_jpegs(root, "val", list(range(200)), names, 9000)


def _write_jpegs(root: Path, split: str, labels: list[int], names: list[str], seed: int) -> None:
    blobs = [encoded(picture(seed + k, 64, 1 if k % 10 == 0 else 3), "JPEG") for k in range(len(labels))]
    write_set(root, "tiny-imagenet", split, blobs, labels, names)


def test_tiny_imagenet_works_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    write_tiny_imagenet(tmp_path)
    task = load_task("tiny-imagenet", root=tmp_path)
    assert task.shape == (3, 64, 64)
    assert task.n_classes == 100
    assert len(task.train) + len(task.validation) + len(task.calibration) == 300
    assert len(task.test) == len(task.ood["tiny-imagenet+100-199"]) == 100
    assert len(task.outliers["tiny-imagenet+100-199"]) == 70
    assert set(task.missing) == {"svhn", "fashion-mnist", "mnist"}
    assert task.class_names[:2] == ("n02124075", "n04067472")
    grey = (task.train.x[:, 0] == task.train.x[:, 1]).flatten(1).all(1)
    assert 0.04 < grey.double().mean() < 0.2
    few = "tiny-imagenet+0-9"
    words = ("--method", "max-softmax", "--cross-entropy.epochs", 1, "--data-root", tmp_path, "-o", tmp_path / "run")
    status, out, err = Cli(monkeypatch, capsys)("train", few, *words)
    assert status == 0, err
    assert "tiny-imagenet+10-199" in out
    assert "svhn: left out" in err


def test_tiny_imagenet_with_other_classes_says_so(tmp_path: Path) -> None:
    names = [f"n{k:08}" for k in range(200)]
    for split, seed in (("train", 0), ("val", 500)):
        _write_jpegs(tmp_path, split, list(range(200)), names, seed)
    assert "aren't the paper's" in load_task("tiny-imagenet", root=tmp_path).notes[0]


# Own data that is no folder


def arrays(n: int = 60, size: int = 32, channels: int = 3) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, channels, size, size), dtype=np.uint8), np.arange(n) % 3


def test_arrays_tensors_floats_and_channels_last_are_the_same_task() -> None:
    x, y = arrays()
    given = [(x, y), (torch.tensor(x), torch.tensor(y)), (x / 255, y), (x.transpose(0, 2, 3, 1), y.tolist())]
    loaded = [load_task(pair) for pair in given]
    assert all(torch.equal(task.train.x, loaded[0].train.x) for task in loaded)
    assert loaded[0].shape == (3, 32, 32)
    assert loaded[0].class_names == ("0", "1", "2")


def test_arrays_of_another_size_are_resized_and_named_labels_kept() -> None:
    x, y = arrays(size=28, channels=1)
    task = load_task((x[:, 0], np.array(["a", "b", "c"])[y]))
    assert task.shape == (1, 32, 32)
    assert task.class_names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (np.zeros((9, 5)), np.zeros(9), "must be"),
        (np.full((9, 3, 32, 32), 200.0), np.arange(9) % 3, r"must be uint8, or floats within \[0, 1\]"),
        (np.full((9, 3, 32, 32), np.nan), np.arange(9) % 3, r"must be uint8, or floats within \[0, 1\]"),
        (np.zeros((9, 3, 32, 32), np.uint8), np.zeros(8), "one label for each"),
        (np.zeros((9, 3, 32, 32), np.uint8), np.zeros(9), "must have at least 2"),
        (np.zeros((9, 3, 32, 32), np.uint8), np.arange(9), "must have at least 5"),
        (np.zeros((0, 3, 32, 32), np.uint8), np.zeros(0), "must be"),
    ],
)
def test_wrong_arrays_are_refused(x: Any, y: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        load_task((x, y))


def test_an_npz_file_is_a_task_with_its_own_levels(tmp_path: Path) -> None:
    x, y = arrays()
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=255 - x[:9], y_test=y[:9], ood_noise=x[:10] // 2)
    task = load_task(tmp_path / "mine.npz")
    assert len(task.test) == 9
    assert len(task.ood["noise"]) == 5
    np.savez(tmp_path / "plain.npz", x=x, y=y)
    assert len(load_task(str(tmp_path / "plain.npz")).test) == 12


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("x_train", "y_train", "x_test"), "x_test needs y_test"),
        (("x", "y", "x_val"), "x_val needs y_val"),
        (("x", "y", "y_test"), "y_test needs x_test"),
        (("x",), "x needs y"),
        (("x", "y", "x_train", "y_train"), "either x and y, or x_train and y_train"),
    ],
)
def test_half_a_pair_in_an_npz_file_is_refused(tmp_path: Path, names: tuple[str, ...], sentence: str) -> None:
    x, y = arrays()
    np.savez(tmp_path / "half.npz", **{name: x if name[0] == "x" else y for name in names})
    with pytest.raises(UsageError, match=sentence):
        load_task(tmp_path / "half.npz")


def test_levels_may_stand_beside_x_and_y(tmp_path: Path) -> None:
    x, y = arrays()
    np.savez(tmp_path / "mine.npz", x=x, y=y, x_test=255 - x[:9], y_test=y[:9])
    assert len(load_task(tmp_path / "mine.npz").test) == 9


def test_an_ood_array_named_all_is_refused(tmp_path: Path) -> None:
    x, y = arrays()
    np.savez(tmp_path / "mine.npz", x=x, y=y, ood_all=x[:9] // 2)
    with pytest.raises(UsageError, match="has an OoD set named all"):
        load_task(tmp_path / "mine.npz")


def test_the_digest_of_arrays_follows_their_content_and_nothing_else() -> None:
    x, y = arrays()
    digest = load_task((x, y)).digest
    assert load_task((x.copy(), y.tolist()), seed=3, image_size=64).digest == digest
    assert load_task("digits").digest == ""
    other, swapped = x.copy(), y.copy()
    other[7, 0, 0, 0] ^= 1
    swapped[[0, 1]] = swapped[[1, 0]]
    assert len({digest, load_task((other, y)).digest, load_task((x, swapped)).digest}) == 3
    items = Pairs(lambda k: (picture(k, 32, 3), k % 2))
    assert load_task(items).digest == load_task(items).digest != ""


def test_one_picture_in_colour_makes_a_data_set_object_rgb() -> None:
    assert load_task(Pairs(lambda k: (picture(k, 32, 3 if k == 5 else 1), k % 2))).shape == (3, 32, 32)
    assert load_task(Pairs(lambda k: (picture(k, 32, 1), k % 2))).shape == (1, 32, 32)


def test_a_title_names_the_chosen_classes() -> None:
    assert load_task("digits+1,7-9").title == "digits: 1,7-9 known"
    assert load_task("digits+0-4").title == load_task("digits").title == TASKS["digits"].title


@pytest.mark.parametrize("kind", ["text", "cut", "objects", "names"])
def test_a_wrong_npz_file_is_refused(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "wrong.npz"
    np.savez(file, x=np.array([{}], object)) if kind == "objects" else np.savez(file, pictures=np.zeros(3))
    if kind == "cut":
        file.write_bytes(file.read_bytes()[:-30])
    if kind == "text":
        file.write_text("text")
    with pytest.raises(UsageError, match=r"wrong\.npz"):
        load_task(file)


class Pairs:
    """As torchvision's sets are."""

    classes = ("cat", "dog")

    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 24

    def __getitem__(self, k: int) -> Any:
        return self.item(k)


@pytest.mark.parametrize(
    "item",
    [
        lambda k: (picture(k, 32, 3), k % 2),
        lambda k: (np.asarray(picture(k, 32, 3)), k % 2),
        lambda k: (torch.tensor(np.asarray(picture(k, 32, 3))).permute(2, 0, 1) / 255, torch.tensor(k % 2)),
        lambda k: {"img": picture(k, 32, 3), "label": k % 2},
    ],
)
def test_any_object_with_a_length_and_items_is_a_task(item: Any) -> None:
    task = load_task(Pairs(item))
    assert task.class_names == ("cat", "dog")
    assert torch.equal(task.train.x, load_task(Pairs(lambda k: (picture(k, 32, 3), k % 2))).train.x)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (Pairs(picture), "must be \\(image, label\\)"),
        (Pairs(lambda k: {"pixels": 1}), "must have image and label"),
        (Pairs(lambda k: (Image.new("L", (20_000, 20_000)) if k == 3 else picture(k), k % 2)), "item 3: 20,000"),
        (3.5, "must be a name, a folder"),
        ([], "holds no pictures"),
    ],
)
def test_wrong_objects_are_refused(source: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        load_task(source)
