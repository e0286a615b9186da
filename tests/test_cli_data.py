"""`uqgan data list | check | fetch | show | clean`."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pictures import Cli, encoded, picture, write_folder, write_random_set, write_set
from uqgan.data.cache import pictures_folder


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    monkeypatch.setenv("UQGAN_CACHE", str(tmp_path / "cache"))
    return Cli(monkeypatch, capsys)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for seed, split in enumerate(("train", "test")):
        write_random_set(tmp_path / "data", "mnist", split, 50, 10, 1000 * seed)
    write_random_set(tmp_path / "data", "svhn", "test", 30, 10, 5000, 3)
    return tmp_path / "data"


def test_list_says_what_is_here_and_what_the_hub_has(cli: Cli, root: Path) -> None:
    status, out, _ = cli("data", "list", "--data-root", root, "--json")
    rows = {row["set"]: row for row in json.loads(out)}
    assert status == 0
    assert rows["mnist"]["here"] == "train 50, test 50"
    assert rows["mnist"]["from"] == "placed by hand"
    assert rows["cifar10"]["here"] == "no"
    assert rows["lsun"]["hub"] == "no faithful copy known"
    status, out, _ = cli("data", "list", "--data-root", root)
    assert (status, "uoft-cs/cifar10" in out, "what was made from them takes" in out) == (0, True, True)


def test_check_counts_classes_and_compares_hashes(cli: Cli, root: Path) -> None:
    file = root / "mnist" / "train-00000-of-00001.parquet"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (root / "README.md").write_text(f"| mnist/{file.name} | 50 | `{digest}` |\n")
    status, out, _ = cli("data", "check", "mnist", "--data-root", root, "--json")
    train, test = json.loads(out)
    assert status == 0
    assert train["counts"] == {str(k): 5 for k in range(10)}
    assert (train["hashes"], test["hashes"]) == ("ok", "not known")
    (root / "README.md").write_text(f"{'0' * 64}  mnist/{file.name}\n")
    status, out, err = cli("data", "check", "--data-root", root)
    assert (status, f"wrong: mnist/{file.name}" in err) == (1, True)
    assert "svhn" in out


def test_check_finds_pictures_that_are_in_training_and_test(cli: Cli, root: Path) -> None:
    write_random_set(root, "mnist", "test", 50, 10, 20)  # pictures 20 … 49 of training again
    status, out, _ = cli("data", "check", "mnist", "--data-root", root, "--json")
    assert (status, [row["duplicates"] for row in json.loads(out)]) == (0, [None, 30])


@pytest.mark.parametrize(
    ("labels", "damage", "sentence", "expected"),
    [
        ([0, 77], None, "label = 77: must be within 0-9", 2),
        ([0, None], None, "1 label is missing", 2),
        ([0, 1], "cut", "not a whole Parquet file", 2),
        ([0, 1], "picture", "row 1: ", 1),
    ],
)
def test_wrong_parquet_files_are_one_sentence(
    cli: Cli, tmp_path: Path, labels: list[Any], damage: str | None, sentence: str, expected: int
) -> None:
    whole = encoded(picture(0))
    blobs = [whole, whole[:70] if damage == "picture" else whole]
    file = write_set(tmp_path / "d", "mnist", "test", blobs, labels, [str(k) for k in range(10)])
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-9])
    status, _, err = cli("data", "check", "mnist", "--data-root", tmp_path / "d", "-q")
    assert (status, sentence in err, err.count("\n")) == (expected, True, 1)


def test_check_of_what_is_not_here_says_how_to_get_it(cli: Cli, root: Path) -> None:
    status, _, err = cli("data", "check", "omniglot", "--data-root", root)
    assert (status, "uqgan data fetch omniglot" in err) == (2, True)
    (root.parent / "empty").mkdir()
    assert cli("data", "check", "--data-root", root.parent / "empty")[0] == 2


def test_show_writes_a_sheet_for_each_set_of_a_task(cli: Cli, root: Path, tmp_path: Path) -> None:
    status, _, err = cli("data", "show", "mnist", "--data-root", root, "-o", tmp_path / "sheets")
    assert status == 0
    assert sorted(file.name for file in (tmp_path / "sheets").iterdir()) == [
        "ood-mnist+5-9.png",
        "ood-svhn.png",
        "test.png",
        "train.png",
    ]
    assert "omniglot: left out" in err
    with Image.open(tmp_path / "sheets" / "train.png") as sheet:
        assert (sheet.mode, sheet.height) == ("L", 2 * (5 * 33 - 1))


def test_show_knows_sets_that_are_no_tasks(cli: Cli, root: Path, tmp_path: Path) -> None:
    assert cli("data", "show", "svhn", "--data-root", root, "-o", tmp_path / "sheets")[0] == 0
    with Image.open(tmp_path / "sheets" / "test.png") as sheet:
        assert sheet.mode == "RGB"
    status, _, err = cli("data", "show", "lsun", "--data-root", root)
    assert (status, "place train-*.parquet" in err) == (2, True)
    status, _, err = cli("data", "show", "moons")
    assert (status, "points in the plane" in err) == (2, True)


def test_clean_says_how_much_it_freed_and_where(cli: Cli, root: Path) -> None:
    assert cli("data", "check", "mnist", "--data-root", root)[0] == 0
    assert list(pictures_folder().glob("*.safetensors"))
    kept = pictures_folder().with_name("autoencoders") / "digits.safetensors"
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(bytes(2**20))
    status, _, err = cli("data", "clean")
    assert (status, "freed 1.1 MiB" in err) == (0, True)
    assert not list(pictures_folder().iterdir())
    assert not kept.exists()


def test_fetch_without_a_network_names_both_ways(cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub", reason="the extra hf is not installed")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    status, _, err = cli("data", "fetch", "cifar100", "--data-root", root)
    assert status == 1
    assert (
        "no connection to the hub (uqgan data fetch cifar100, or place train-*.parquet and test-*.parquet with col"
        in err
    )


def test_fetch_makes_the_folder_that_it_is_told(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "new" / "sets"
    monkeypatch.setattr("uqgan.data.fetch.fetch", lambda name, root, say: root / name)
    status, _, err = cli("data", "fetch", "mnist", "--data-root", place)
    assert (status, place.is_dir(), f"mnist: in {place}" in err) == (0, True, True)
    (tmp_path / "file").write_text("in the way")
    status, _, err = cli("data", "fetch", "mnist", "--data-root", tmp_path / "file")
    assert (status, "a file stands where a folder is needed" in err) == (1, True)


@pytest.mark.parametrize("flag", ["-q", "-v"])
@pytest.mark.parametrize("words", ["list", "check mnist", "show mnist -o sheets", "clean", "fetch mnist"])
def test_every_command_takes_quiet_and_verbose(
    cli: Cli, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, flag: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("uqgan.data.fetch.fetch", lambda name, root, say: root / name)
    where = () if words == "clean" else ("--data-root", root)
    status, _, err = cli("data", *words.split(), *where, flag)
    assert status == 0, err
    assert not (flag == "-q" and err)


def test_a_quiet_list_is_the_table_alone(cli: Cli, root: Path) -> None:
    _, out, _ = cli("data", "list", "--data-root", root, "-q")
    assert "mnist" in out
    assert "what was made from them takes" not in out


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".npz", "", "a/" + "x" * 300])
@pytest.mark.parametrize("command", [("train",), ("data", "check"), ("data", "show")])
def test_names_that_no_disk_takes_are_one_sentence(
    cli: Cli, photos: Path, monkeypatch: pytest.MonkeyPatch, name: str, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(photos)
    status, _, err = cli(*command, name)
    assert (status, "no such" in err) == (2, True)


def test_fetch_of_an_unknown_set_lists_the_known_ones(cli: Cli) -> None:
    status, _, err = cli("data", "fetch", "imagenet")
    assert (status, "no such set (known: mnist" in err) == (2, True)


def test_a_wrong_data_root_is_said(cli: Cli, tmp_path: Path) -> None:
    status, _, err = cli("train", "cifar10", "--data-root", tmp_path / "nowhere")
    assert (status, "--data-root" in err, "no such folder" in err) == (2, True, True)
