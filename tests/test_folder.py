"""User-supplied folders of pictures: levels, splits, choices, and bad input of every kind, with real bytes."""

import io
import os
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import uqgan
from pictures import Cli, encoded, picture, write_folder
from uqgan.data.checks import fingerprints
from uqgan.data.preprocessing import PixelFormat, pixels
from uqgan.data.tasks import load_task
from uqgan.data.user import chosen_size


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos")


def show(cli: Cli, photos: Path, *words: object) -> tuple[int, str, str]:
    return cli("data", "show", photos, "-o", photos.parent / "sheets", *words)


# Levels and splits


def test_a_folder_of_classes_is_split_by_itself(photos: Path) -> None:
    task = load_task(photos)
    assert task.class_names == ("cat", "dog")
    assert task.shape == (3, 32, 32)
    assert [len(part) for part in (task.train, task.validation, task.calibration, task.test)] == [12, 2, 2, 4]
    for part in (task.train, task.validation, task.calibration, task.test):
        assert part.y.bincount().tolist() == [len(part) // 2] * 2
        assert (part.x.float().mean((2, 3)).argmax(1) == part.y).all()


def test_the_same_seed_splits_a_folder_alike_and_another_one_otherwise(photos: Path) -> None:
    first, again, other = (load_task(photos, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.test.x, again.test.x)
    assert not torch.equal(first.test.x, other.test.x)


def test_levels_are_taken_as_they_are(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for level, n in (("train", 12), ("val", 4), ("test", 6)):
        write_folder(root / level, n=n)
    write_folder(root / "ood", ("sea", "city"), n=8)
    task = load_task(root)
    assert [len(part) for part in (task.train, task.validation, task.calibration, task.test)] == [24, 4, 4, 12]
    assert {name: len(x) for name, x in task.ood.items()} == {"city": 4, "sea": 4}
    assert len(task.outliers["sea"]) + len(task.ood_validation["sea"]) == 4


@pytest.mark.parametrize(("level", "place"), [("ood", "ood/NAME/"), ("val", "val/CLASS/"), ("train", "train/CLASS/")])
def test_pictures_right_in_a_level_are_refused(photos: Path, cli: Cli, level: str, place: str) -> None:
    (photos / level).mkdir()
    for k in range(6):
        picture(k, 20, 3).save(photos / level / f"{k}.png")
    status, _, err = show(cli, photos)
    assert status == 2
    assert f"{level}/0.png: lies right in {level}/, which cannot be a class (put pictures under {place})" in err


def test_an_ood_set_named_all_is_refused(photos: Path, cli: Cli) -> None:
    write_folder(photos / "ood", ("all",), n=4)
    status, _, err = show(cli, photos)
    assert (status, "has an OoD set named all: that is what all sets together are called" in err) == (2, True)


@pytest.mark.parametrize("level", ["val", "test"])
def test_an_empty_level_is_refused(photos: Path, cli: Cli, level: str) -> None:
    (photos / level / "cat").mkdir(parents=True)
    status, _, err = show(cli, photos)
    assert (status, f"{level}/ has too few pictures: must have at least 2 of a class" in err) == (2, True)


def test_a_level_of_nothing_but_duplicates_is_refused_with_the_reason(photos: Path, cli: Cli) -> None:
    for level in ("test", "val"):
        (photos / level / "cat").mkdir(parents=True)
        for file in list((photos / "cat").iterdir())[:3]:
            (photos / level / "cat" / file.name).write_bytes(file.read_bytes())
    status, _, err = show(cli, photos)
    assert status == 2
    assert "val/ has too few pictures: must have at least 2 of a class (pictures for training left out: " in err


def test_a_copy_of_a_picture_is_in_no_second_part(photos: Path) -> None:
    write_folder(photos / "test", n=3)
    shutil.copy(photos / "test" / "cat" / "0.png", photos / "cat" / "also in test.png")
    for k in range(30):
        shutil.copy(photos / "dog" / "0.png", photos / "dog" / f"copy-{k}.png")
    task = load_task(photos)
    parts = (task.train, task.validation, task.calibration, task.test)
    found = [each for part in parts for each in fingerprints(part.x)]
    assert len(found) == len(set(found)) == 20 + 6
    note = "pictures for training left out: 1 equal a test picture and 30 equal another one, pixel for pixel"
    assert note in task.notes
    write_folder(photos / "ood", ("sea",), n=4)
    shutil.copy(photos / "cat" / "1.png", photos / "ood" / "sea" / "a cat.png")
    told = load_task(photos).notes
    assert note in told
    assert "OoD pictures left out: 1 equal another one, pixel for pixel" in told


def test_the_digest_of_a_folder_follows_its_content_and_nothing_else(photos: Path, tmp_path: Path) -> None:
    digest = load_task(photos).digest
    assert len(digest) == 64
    assert load_task(photos, seed=1, image_size=64, channels=1).digest == digest
    os.utime(photos / "cat" / "0.png", (0, 0))
    photos.rename(tmp_path / "moved")
    moved = tmp_path / "moved"
    assert load_task(moved).digest == digest
    write_folder(moved / "ood", ("sea",), n=4)
    with_ood = load_task(moved).digest
    picture(0, 20, 3).save(moved / "cat" / "0.png")
    assert len({digest, with_ood, load_task(moved).digest}) == 3


def test_a_folder_whose_name_looks_like_a_pattern_is_cached(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "st**r [a-z")
    assert len(load_task(photos).train) == 12


def test_ood_and_test_may_stand_beside_the_classes(photos: Path) -> None:
    write_folder(photos / "ood", ("sea",), n=4)
    write_folder(photos / "test", n=3)
    task = load_task(photos)
    assert task.class_names == ("cat", "dog")
    assert len(task.test) == 6
    assert list(task.ood) == ["sea"]


def test_deeper_folders_belong_to_their_class(photos: Path) -> None:
    (photos / "cat" / "more").mkdir()
    for k in range(5):
        picture(k, 20, 3).save(photos / "cat" / "more" / f"{k}.BMP")
    task = load_task(photos)
    parts = (task.train, task.validation, task.calibration, task.test)
    assert sum(part.y.bincount() for part in parts).tolist() == [15, 10]


def test_what_was_chosen_is_said(cli: Cli, photos: Path) -> None:
    (photos / "cat" / "notes.txt").write_text("text")
    for k in range(200):
        picture(k, 20, 3).save(photos / "dog" / f"more-{k}.png")
    status, _, err = show(cli, photos)
    assert status == 0
    for sentence in (
        "2 classes: cat, dog",
        "seen as 32 × 32 pixels (--image-size 32 or 64), RGB: turned by EXIF, short side fitted, middle cropped",
        "split: train 140, validation 18, calibration 18, test 44",
        "OoD sets to test against: none",
        "1 .txt file passed over",
        "warning: classes with fewer than 50 pictures: cat (10): expect",
        "warning: dog has 210 pictures and cat 10: strongly imbalanced",
    ):
        assert sentence in err


def test_size_and_channels_follow_the_pictures_or_what_is_told(tmp_path: Path, cli: Cli) -> None:
    large = write_folder(tmp_path / "large", size=100)
    assert load_task(large).shape == (3, 32, 32)
    assert load_task(large, image_size=64).shape == (3, 64, 64)
    assert chosen_size(None, 100, 10_000) == 64
    assert load_task(large, image_size=32, channels=1).shape == (1, 32, 32)
    for file in large.rglob("*.png"):
        Image.open(file).convert("L").save(file)
    assert load_task(large).shape == (1, 32, 32)
    status, _, err = show(cli, large, "--image-size", 48)
    assert (status, "--image-size = 48: must be one of 32, 64" in err) == (2, True)


def test_a_folder_is_trained_on_and_tested_again_by_its_name(photos: Path, cli: Cli, tmp_path: Path) -> None:
    write_folder(photos / "ood", ("sea",), n=6)
    grey = [Image.open(file).convert("L").save(file) for file in photos.rglob("*.png")]
    (photos / "cat" / "broken.png").write_bytes(b"text")
    run = tmp_path / "run"
    quick = ("--method", "max-softmax", "--cross-entropy.epochs", 1, "--skip-broken", "-o", run)
    status, out, err = cli("train", photos, *quick)
    assert grey
    assert status == 0, err
    assert "sea" in out
    assert [err.count(note) for note in ("2 classes: cat, dog", "classifier lenet, autoencoder small")] == [1, 1]
    assert cli("evaluate", run)[0] == 0


def test_training_in_python_tells_what_the_command_tells(photos: Path) -> None:
    words, task = io.StringIO(), load_task(photos)
    console, quick = Console(file=words, width=200), {"epochs": 1, "device": "cpu"}
    uqgan.fit("max-softmax", task, console=console, **quick)
    for note in (*task.notes, "classifier lenet, autoencoder small"):
        assert words.getvalue().count(f"{note}\n") == 1
    told = words.getvalue()
    uqgan.fit("max-softmax", task, console=console, quiet=True, **quick)
    assert words.getvalue() == told


# Bad input


def test_a_truncated_picture_is_named_and_can_be_left_out(photos: Path, cli: Cli) -> None:
    file = photos / "cat" / "3.png"
    file.write_bytes(file.read_bytes()[:200])
    status, _, err = show(cli, photos)
    assert status == 2
    assert "cat/3.png" in err
    assert "--skip-broken" in err
    status, _, err = show(cli, photos, "--skip-broken")
    assert status == 0
    assert "broken: 1 picture in all, left out" in err


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "BMP"])
def test_other_formats_cut_short_are_named_too(photos: Path, cli: Cli, kind: str) -> None:
    data = encoded(picture(0, 60, 3), kind)
    (photos / "cat" / f"x.{kind.lower().replace('jpeg', 'jpg')}").write_bytes(data[: len(data) // 2])
    status, _, err = show(cli, photos)
    assert status == 2
    assert "cat/x." in err


@pytest.mark.parametrize("data", [b"", b"just text", b"\x89PNG\r\n\x1a\n", b"GIF89a" + bytes(50), os.urandom(4000)])
def test_a_file_that_is_no_picture_is_named(photos: Path, cli: Cli, data: bytes) -> None:
    (photos / "dog" / "no picture.jpg").write_bytes(data)
    status, _, err = show(cli, photos)
    assert status == 2
    assert "dog/no picture.jpg" in err
    status, _, err = cli("data", "check", photos)
    assert status == 1
    assert "dog/no picture.jpg" in err


def test_several_broken_pictures_are_counted(photos: Path, cli: Cli) -> None:
    for k in range(3):
        (photos / "cat" / f"{k}.png").write_bytes(b"text")
    status, _, err = show(cli, photos)
    assert (status, "(and 2 more)" in err) == (2, True)


def test_an_empty_class_is_refused(photos: Path, cli: Cli) -> None:
    (photos / "bird").mkdir()
    status, _, err = show(cli, photos)
    assert status == 2
    assert "class bird has no pictures" in err


def test_a_class_of_nothing_but_broken_pictures_is_refused(photos: Path, cli: Cli) -> None:
    (photos / "bird").mkdir()
    (photos / "bird" / "a.png").write_bytes(b"text")
    status, _, err = show(cli, photos, "--skip-broken")
    assert status == 2
    assert "class bird has 0 pictures: must have at least 5" in err


def test_one_class_only_is_refused(tmp_path: Path, cli: Cli) -> None:
    status, _, err = show(cli, write_folder(tmp_path / "photos", ("cat",)))
    assert status == 2
    assert "has 1 class, cat: must have at least 2" in err


def test_pictures_without_class_folders_are_refused(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "flat"
    folder.mkdir()
    picture(0).save(folder / "a.png")
    status, _, err = show(cli, folder)
    assert status == 2
    assert "has no folders of classes" in err


def test_a_folder_that_is_not_there_is_said(tmp_path: Path, cli: Cli) -> None:
    status, _, err = show(cli, tmp_path / "nowhere")
    assert (status, "no such folder" in err) == (2, True)


def test_a_class_that_training_does_not_know_is_refused(tmp_path: Path, cli: Cli) -> None:
    write_folder(tmp_path / "photos" / "train")
    write_folder(tmp_path / "photos" / "test", ("cat", "bird"))
    status, _, err = show(cli, tmp_path / "photos")
    assert status == 2
    assert "test/bird: not a class of the training pictures" in err


@pytest.mark.parametrize("level", ["train", "Training"])
def test_class_folders_beside_train_are_refused(level: str, tmp_path: Path, cli: Cli) -> None:
    write_folder(tmp_path / "photos" / level)
    write_folder(tmp_path / "photos", ("bird",))
    status, _, err = show(cli, tmp_path / "photos")
    assert (status, f"has bird/ beside {level}/: folders of classes belong in {level}/" in err) == (2, True)


def test_links_in_a_loop_are_not_followed_forever(photos: Path, cli: Cli) -> None:
    (photos / "cat" / "up").symlink_to(photos, target_is_directory=True)
    (photos / "cat" / "self").symlink_to(photos / "cat", target_is_directory=True)
    (photos / "dog" / "round.png").symlink_to(photos / "dog" / "round.png")
    start = time.monotonic()
    status, _, err = show(cli, photos)
    assert status == 2
    assert "dog/round.png: a link to nothing" in err
    (photos / "dog" / "round.png").unlink()
    (photos / "cat" / "up").unlink()
    assert show(cli, photos)[0] == 0
    assert load_task(photos).train.y.bincount().tolist() == [6, 6]
    assert time.monotonic() - start < 20


def test_a_pipe_with_the_name_of_a_picture_does_not_hang(photos: Path, cli: Cli) -> None:
    os.mkfifo(photos / "cat" / "pipe.png")
    status, _, err = show(cli, photos)
    assert (status, "cat/pipe.png: not a regular file" in err) == (2, True)


def test_names_with_spaces_other_alphabets_brackets_and_broken_bytes_are_kept(tmp_path: Path, cli: Cli) -> None:
    names = ("rote Äpfel", "空", "[red]green")
    photos = write_folder(tmp_path / "photos of [all]", names)
    status, _, err = show(cli, photos)
    assert status == 0
    for name in names:
        assert name in err
    odd = os.fsencode(photos) + b"/caf\xe9"
    Path(os.fsdecode(odd)).mkdir()
    for k in range(5):
        picture(k, 20, 3).save(os.fsdecode(odd) + f"/{k}.png")
    status, _, err = show(cli, photos)
    assert (status, "caf�" in err) == (0, True)


@pytest.fixture
def someone() -> Iterator[Callable[[], None]]:
    """Become a user who may not read everything, until the end of the test."""
    superuser = os.geteuid() == 0
    yield lambda: os.seteuid(65534) if superuser else None
    if superuser:
        os.seteuid(0)


def test_a_folder_that_may_not_be_read_is_named(
    cli: Cli, someone: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(tempfile.mkdtemp())  # open to all, unlike tmp_path
    place.chmod(0o777)
    monkeypatch.setenv("UQGAN_CACHE", str(place / "cache"))
    photos = write_folder(place / "photos")
    assert cli("data", "check", photos)[0] == 0
    (photos / "dog" / "3.png").chmod(0)
    (photos / "cat").chmod(0)
    someone()
    try:
        status, _, err = cli("data", "check", photos)
        assert (status, "photos/cat: cannot be read (permission denied)" in err) == (2, True)
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        (photos / "cat").chmod(0o755)
    someone()
    status, _, err = show(cli, photos)
    assert (status, "dog/3.png: permission denied" in err) == (2, True)
    if os.getuid() == 0:
        os.seteuid(0)
    shutil.rmtree(place)


# Unusual pictures


def png_claiming(width: int, height: int) -> bytes:
    """A few bytes that say they are that large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(100_000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_a_decompression_bomb_is_named_at_once(photos: Path, cli: Cli) -> None:
    (photos / "cat" / "bomb.png").write_bytes(png_claiming(200_000, 200_000))
    start = time.monotonic()
    status, _, err = show(cli, photos)
    assert status == 2
    assert "cat/bomb.png: 200,000 × 200,000 pixels, more than 100,000,000" in err
    assert time.monotonic() - start < 5


def test_a_bomb_of_text_in_a_picture_is_named(photos: Path, cli: Cli) -> None:
    text = b"zTXt" + b"a\0\0" + zlib.compress(bytes(200_000_000), 9)
    data = encoded(picture(0, 20, 3))
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    (photos / "cat" / "bomb.png").write_bytes(data[:33] + chunk + data[33:])
    status, _, err = show(cli, photos)
    assert (status, "cat/bomb.png" in err) == (2, True)


def test_a_picture_of_10000_by_10000_pixels_is_read(photos: Path, cli: Cli) -> None:
    Image.new("L", (10_000, 10_000), 200).save(photos / "cat" / "large.png")
    Image.new("RGB", (10_000, 10_000), "red").save(photos / "dog" / "large.jpg")
    assert show(cli, photos)[0] == 0


def test_a_very_long_picture_is_cut_before_it_is_resized() -> None:
    found = pixels(encoded(Image.new("L", (1, 60_000), 77)), PixelFormat(32, 1))
    assert (found == 77).all()


def test_one_pixel_becomes_an_even_picture() -> None:
    found = pixels(encoded(Image.new("RGB", (1, 1), (10, 20, 30))), PixelFormat(32, 3))
    assert found.reshape(3, -1).tolist() == [[value] * 1024 for value in (10, 20, 30)]


def sixteen_bits(_: Path) -> bytes:
    return encoded(Image.fromarray(np.full((40, 40), 0x80FF, np.uint16)))


def cmyk(_: Path) -> bytes:
    return encoded(Image.new("RGB", (40, 40), (128, 128, 128)).convert("CMYK"), "JPEG")


def transparent_palette(_: Path) -> bytes:
    image = Image.new("P", (40, 40), 1)
    image.putpalette([255, 0, 0, 0, 0, 0])
    image.paste(0, (0, 0, 20, 40))
    return encoded(image, transparency=1)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (sixteen_bits, [128, 128, 128]),
        (cmyk, [128, 128, 128]),
        (transparent_palette, [255, 128, 128]),
    ],
)
def test_unusual_modes_are_brought_to_8_bits_without_transparency(
    make: Callable[[Path], bytes], expected: list[int], tmp_path: Path
) -> None:
    found = pixels(make(tmp_path), PixelFormat(32, 3)).reshape(3, -1).mean(1)
    assert abs(found - expected).max() < 6


@pytest.mark.parametrize("mode", ["LA", "RGBA", "1", "PA"])
def test_other_modes_are_read(mode: str, photos: Path, cli: Cli) -> None:
    kind = "PNG" if mode != "PA" else "WEBP"
    image = Image.new("RGBA", (30, 30), (0, 0, 0, 0)) if mode != "1" else Image.new("1", (30, 30), 1)
    image = image if mode in ("1", "RGBA", "PA") else image.convert(mode)
    (photos / "cat" / f"odd.{kind.lower()}").write_bytes(encoded(image, kind))
    assert show(cli, photos)[0] == 0
    assert (pixels(encoded(image, kind), PixelFormat(32, 3)) >= 254).all()


def test_a_turned_photo_is_put_upright() -> None:
    image = Image.new("RGB", (40, 20), "black")
    image.paste((255, 255, 255), (0, 0, 20, 20))  # white on the left as stored
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise: the left side becomes the top
    for kind in ("JPEG", "PNG", "WEBP"):
        found = pixels(encoded(image, kind, exif=exif), PixelFormat(32, 1))[0]
        assert found[2].mean() > 240
        assert found[-3].mean() < 15


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_of_an_animated_picture_the_first_frame_is_taken(kind: str) -> None:
    frames = [Image.new("RGB", (40, 40), colour) for colour in ("white", "black", "black")]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)
    assert pixels(data, PixelFormat(32, 3)).min() > 250


def test_all_unusual_pictures_together_are_read(photos: Path, cli: Cli) -> None:
    for name, make in {"16.png": sixteen_bits, "cmyk.jpg": cmyk, "palette.png": transparent_palette}.items():
        (photos / "cat" / name).write_bytes(make(photos))
    Image.new("RGB", (1, 1)).save(photos / "dog" / "dot.png")
    status, _, err = show(cli, photos)
    assert status == 0, err
