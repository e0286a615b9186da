"""Parquet repositories, local and from the hub, and how their pictures come to look like the paper's."""

import hashlib
import http.server
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from pictures import REAL, encoded, picture, write_random_set, write_set
from uqgan.data import sources
from uqgan.data.checks import fingerprints
from uqgan.data.fetch import fetch, origin
from uqgan.data.preprocessing import PixelFormat, pixels
from uqgan.data.sets import load_part, load_split
from uqgan.data.sources import REPOSITORIES, data_root, rows_of
from uqgan.errors import RunFailed, UsageError

needs_data = pytest.mark.skipif(
    not os.environ.get(REAL), reason=f"{REAL} is not set: the paper's data sets aren't here"
)
COUNTS = {
    "mnist": {"train": 60_000, "test": 10_000},
    "fashion-mnist": {"test": 10_000, "train_subset": 3_000},
    "cifar10": {"train": 25_000, "train_ood": 1_500, "test": 10_000},
    "cifar100": {"train": 25_000, "train_ood": 1_500, "test": 10_000},
    "svhn": {"test": 26_032, "train_subset": 1_500},
    "omniglot": {"test": 13_180, "train": 19_280},
    "emnist-letters": {"test": 20_800, "train_subset": 3_536},
}
"""Numbers of pictures in the data sets' own description."""


@pytest.mark.parametrize(("name", "split"), [(name, split) for name, splits in COUNTS.items() for split in splits])
@needs_data
def test_every_split_has_as_many_pictures_as_its_description_says(name: str, split: str) -> None:
    assert rows_of(name, split, data_root()) == COUNTS[name][split]


def real_labels(name: str, split: str) -> list[int]:
    files = sources.files_of(name, split, data_root())
    labels = np.concatenate([pq.read_table(file, columns=["label"])["label"].to_numpy() for file in files])
    return np.bincount(labels).tolist()


@needs_data
def test_label_histograms_are_the_official_ones() -> None:
    assert real_labels("mnist", "test") == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert real_labels("mnist", "train") == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert real_labels("svhn", "test") == [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]
    assert real_labels("emnist-letters", "test") == [800] * 26
    assert real_labels("cifar10", "test") == [1000] * 10
    assert real_labels("cifar10", "train") == [5000] * 5
    assert real_labels("cifar100", "train") == [500] * 50
    assert real_labels("omniglot", "test")[964:] == [20] * 659


@needs_data
@pytest.mark.parametrize(
    "name", ["emnist-letters", "omniglot", "fashion-mnist", "svhn", "mnist", "cifar10", "cifar100"]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_real_pictures_look_as_the_papers_steps_make_them(name: str, channels: int) -> None:
    file = sources.files_of(name, "test", data_root())[0]
    rows = next(pq.ParquetFile(file).iter_batches(40, columns=["image"])).to_pylist()
    for row in rows:
        data = row["image"]["bytes"]
        found = pixels(data, REPOSITORIES[name].pixel_format(32, channels))
        assert np.array_equal(found, papers_steps(name, Image.open(io.BytesIO(data)), 32, channels))


def papers_steps(name: str, image: Image.Image, size: int, channels: int) -> Any:
    """The paper's pre-processing in its own order and operations."""
    if name == "omniglot":
        image = image.convert("L")
    image = image.resize((size, size), Image.Resampling.BILINEAR)
    if name == "emnist-letters":
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).rotate(90)
    if channels == 1:
        image = image.convert("L")
    x = np.asarray(image)
    x = x[None] if x.ndim == 2 else x.transpose(2, 0, 1)
    x = 255 - x if name == "omniglot" else x
    return np.repeat(x, 3, 0) if len(x) < channels else x


@needs_data
def test_omniglot_is_white_on_black_with_grey_edges() -> None:
    found = load_part("omniglot", "test", 32, 1, data_root())
    assert found is not None
    assert found.x.float().mean() < 60
    assert found.x.amax() > 200
    grey = ((found.x > 20) & (found.x < 235)).double().mean()
    assert grey > 0.03


def test_a_row_of_emnist_becomes_a_column() -> None:
    stripe = np.zeros((28, 28), np.uint8)
    stripe[:3] = 255
    found = pixels(encoded(Image.fromarray(stripe)), REPOSITORIES["emnist-letters"].pixel_format(28, 1))
    assert (found[0, :, :3] == 255).all()
    assert (found[0, :, 3:] == 0).all()


def test_a_grey_picture_is_repeated_and_a_colour_picture_weighed_by_luma() -> None:
    grey = pixels(encoded(picture(0)), PixelFormat(32, 3))
    assert np.array_equal(grey[0], grey[1])
    assert np.array_equal(grey[1], grey[2])
    colour = picture(1, 32, 3)
    assert np.array_equal(pixels(encoded(colour), PixelFormat(32, 1))[0], np.asarray(colour.convert("L")))


def test_shrinking_is_antialiased() -> None:
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    assert abs(pixels(encoded(Image.fromarray(board)), PixelFormat(32, 1)).astype(int) - 127).max() <= 3


def test_hub_columns_and_local_columns_read_alike(tmp_path: Path) -> None:
    local, hub = tmp_path / "local", tmp_path / "hub"
    write_random_set(local, "cifar100", "train", 12, 100, 0, 3)
    write_random_set(hub, "cifar100", "train", 12, 100, 0, 3, image="img", label="fine_label", folder="cifar100")
    ours, theirs = (load_split("cifar100", "train", 32, 3, root) for root in (local, hub))
    assert torch.equal(ours.x, theirs.x)
    assert torch.equal(ours.y, theirs.y)
    assert ours.class_names == theirs.class_names


def test_a_subset_beside_the_whole_training_set_adds_only_classes_that_this_lacks(tmp_path: Path) -> None:
    names = [str(k) for k in range(10)]
    blobs = [encoded(picture(k, 32, 3)) for k in range(12)]
    write_set(tmp_path, "cifar10", "train", blobs[:6], [0, 1, 2] * 2, names)
    write_set(tmp_path, "cifar10", "train_subset", blobs[:3] + blobs[6:9], [0, 1, 2, 7, 8, 9], names)
    found = load_part("cifar10", "train", 32, 3, tmp_path)
    assert found is not None
    assert found.y.tolist() == [0, 1, 2, 0, 1, 2, 7, 8, 9]
    assert len(set(fingerprints(found.x))) == 9
    assert found.notes == ("3 pictures of cifar10, train_subset left out: their classes are in another training split",)


def test_pictures_keep_their_rows_and_labels(tmp_path: Path) -> None:
    blobs = [encoded(picture(k, 32, 3), "WEBP", lossless=True) for k in range(5)]
    write_set(tmp_path, "cifar10", "test", blobs, [4, 0, 3, 3, 1], list("abcdefghij"))
    found = load_split("cifar10", "test", 32, 3, tmp_path)
    assert found.y.tolist() == [4, 0, 3, 3, 1]
    for k in range(5):
        assert np.array_equal(found.x[k].numpy().transpose(1, 2, 0), np.asarray(picture(k, 32, 3)))


def test_tiny_imagenet_of_the_hub_is_numbered_as_in_wnids(tmp_path: Path) -> None:
    folder = Path(sources.__file__).parent
    official = (folder / "tiny_imagenet_classes.txt").read_text().split()
    assert len(set(official)) == 200
    alphabetic = sorted(official)
    write_set(
        tmp_path,
        "tiny-imagenet",
        "valid",
        [encoded(picture(0, 64, 3), "JPEG")] * 2,
        [0, 199],
        alphabetic,
        folder="data",
    )
    found = load_split("tiny-imagenet", "valid", 64, 3, tmp_path)
    assert [found.class_names[k] for k in found.y] == [alphabetic[0], alphabetic[199]]
    assert found.class_names == tuple(official)


@pytest.mark.parametrize(
    ("labels", "names", "sentence"),
    [
        ([0, 12], list("abcdefghij"), "label = 12: must be within 0-9"),
        ([0, -1], list("abcdefghij"), "label = -1: must be within 0-9"),
        ([0, -3], None, "label = -3: must not be < 0"),
        ([0, None], list("abcdefghij"), "1 label is missing"),
        (["cat", "dog"], None, "labels are of type string"),
        ([0.5, 1.0], None, "labels are of type double"),
    ],
)
def test_wrong_labels_are_refused(tmp_path: Path, labels: list[Any], names: list[str] | None, sentence: str) -> None:
    write_set(tmp_path, "cifar10", "test", [encoded(picture(0))] * 2, labels, names)
    with pytest.raises(UsageError, match=sentence):
        load_split("cifar10", "test", 32, 3, tmp_path)


def test_broken_pictures_are_named_or_left_out(tmp_path: Path) -> None:
    whole = encoded(picture(0))
    write_set(
        tmp_path,
        "mnist",
        "test",
        [whole, whole[:60], b"text", None, whole],
        [0, 1, 2, 3, 4],
        [str(k) for k in range(10)],
    )
    with pytest.raises(UsageError, match=r"row 1: .*\(and 2 more\).*--skip-broken"):
        load_split("mnist", "test", 32, 1, tmp_path)
    found = load_split("mnist", "test", 32, 1, tmp_path, skip_broken=True)
    assert found.y.tolist() == [0, 4]
    assert len(found.left_out) == 3


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    file = write_random_set(tmp_path, "mnist", "test", 4, 10, 0)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UsageError, match="not a whole Parquet file"):
        load_split("mnist", "test", 32, 1, tmp_path)


def test_a_missing_column_or_file_is_named(tmp_path: Path) -> None:
    write_random_set(tmp_path, "mnist", "test", 4, 10, 0, image="photo")
    with pytest.raises(UsageError, match=r"no column image .*has photo, label"):
        load_split("mnist", "test", 32, 1, tmp_path)
    shard = tmp_path / "mnist" / "train-00000-of-00002.parquet"
    shard.write_bytes(b"")
    with pytest.raises(UsageError, match="has 1 of the 2 files of train"):
        sources.files_of("mnist", "train", tmp_path)


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"--data-root = .*: no such folder"):
        data_root(tmp_path / "nowhere")
    monkeypatch.setenv(REAL, str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match=r"UQGAN_DATA = .*: no such folder"):
        data_root()


class Hub(http.server.BaseHTTPRequestHandler):
    """A folder OWNER/NAME/… behind the interface of the hub."""

    root: Path

    def log_message(self, *words: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        words = self.path.partition("?")[0].strip("/").split("/")
        headers, data = {}, b""
        if words[:2] == ["api", "datasets"]:
            folder = self.root / words[2] / words[3]
            files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.parquet"))
            tree = [{"type": "file", "oid": "0" * 40, "size": (folder / f).stat().st_size, "path": f} for f in files]
            about = {"id": "/".join(words[2:4]), "sha": "a" * 40, "siblings": [{"rfilename": f} for f in files]}
            data = json.dumps(tree if "tree" in words else about).encode()
        elif words[0] == "datasets" and (self.root / words[1] / words[2] / "/".join(words[5:])).is_file():
            data = (self.root / words[1] / words[2] / "/".join(words[5:])).read_bytes()
            headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": "a" * 40}
        self.send_response(200 if data else 404)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder standing in for the hub; huggingface_hub talks to it."""
    pytest.importorskip("huggingface_hub", reason="the extra hf is not installed")
    root = tmp_path / "hub"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Hub,), {"root": root}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield root
    server.shutdown()
    server.server_close()


def test_a_set_is_fetched_with_the_hubs_own_layout(hub: Path, tmp_path: Path) -> None:
    columns = {"image": "img", "label": "fine_label", "folder": "cifar100"}
    write_random_set(hub / "uoft-cs", "cifar100", "train", 200, 100, 0, 3, **columns)
    write_random_set(hub / "uoft-cs", "cifar100", "test", 100, 100, 500, 3, **columns)
    (hub / "uoft-cs" / "cifar100" / "cifar100" / "other.parquet").write_bytes(b"not wanted")
    root = tmp_path / "data"
    folder = fetch("cifar100", root)
    assert sorted(file.name for file in folder.rglob("*.parquet")) == [
        "test-00000-of-00001.parquet",
        "train-00000-of-00001.parquet",
    ]
    assert origin("cifar100", root) == "uoft-cs/cifar100 at aaaaaaaaaaaa"
    found = load_part("cifar100", "train", 32, 3, root)
    assert found is not None
    assert found.y.tolist() == [k % 100 for k in range(200)]


def test_a_repository_with_other_columns_is_refused(hub: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_random_set(hub / "ylecun", "mnist", split, 10, 10, 0, image="pixels", folder="mnist")
    with pytest.raises(UsageError, match="no column image"):
        fetch("mnist", tmp_path / "data")


def test_a_repository_without_the_files_is_said(hub: Path, tmp_path: Path) -> None:
    write_random_set(hub / "ylecun", "mnist", "train", 10, 10, 0, folder="mnist")
    with pytest.raises(RunFailed, match=r"has no test files in mnist \(uqgan data fetch mnist, or place train-"):
        fetch("mnist", tmp_path / "data")


def test_without_a_network_both_ways_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub", reason="the extra hf is not installed")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RunFailed, match=r"no connection to the hub \(.*, or place train-\*.parquet .* columns img"):
        fetch("cifar10", tmp_path)


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=r"pip install 'uqgan\[hf\]'"):
        fetch("mnist", tmp_path)


def test_what_the_hub_lacks_is_placed_by_hand(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lsun: no faithful copy is known"):
        fetch("lsun", tmp_path)
