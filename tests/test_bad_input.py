"""Bad pictures and bad calls of every kind: one sentence each, the right exit status, and nothing lost."""

import io
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pictures import Cli, encoded, picture, untrained_run, write_folder

Prepare = Callable[[Path], object]
"""Puts something into a place that holds photos/, moons/ (a run) and entropy/ (a run)."""
WHOLE = encoded(picture(0, 20, 3))


def put(name: str, data: bytes) -> Prepare:
    return lambda place: write(place / name, data)


def write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def as_it_is(_: Path) -> None:
    pass


def claiming(width: int, height: int) -> bytes:
    """A PNG whose header says that it is that large."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return WHOLE[:12] + header + struct.pack(">I", zlib.crc32(header)) + WHOLE[33:]


def animated(kind: str) -> bytes:
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("white", "black")]
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:])


def palette() -> bytes:
    image = Image.new("P", (20, 20), 1)
    image.putpalette([255, 0, 0, 0, 0, 0])
    return encoded(image, transparency=1)


def archive(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def zipped(name: str, data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr(name, data)
    return file.getvalue()


X, Y = np.zeros((10, 8, 8), np.uint8), np.arange(10) % 2
HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200)
NO_PICTURE = "cannot be read (--skip-broken leaves such pictures out)"
FORMAT = f"not a png, jpg, webp or bmp picture: {NO_PICTURE}"

BROKEN: list[tuple[str, Prepare, str]] = [
    ("no bytes", put("photos/cat/x.png", b""), f"cat/x.png: {FORMAT}"),
    ("zero bytes", put("photos/cat/x.png", bytes(500)), f"cat/x.png: {FORMAT}"),
    ("text", put("photos/cat/x.png", b"no picture"), f"cat/x.png: {FORMAT}"),
    ("truncated PNG", put("photos/cat/x.png", WHOLE[:200]), NO_PICTURE),
    ("PNG header only", put("photos/cat/x.png", WHOLE[:33]), NO_PICTURE),
    ("truncated JPEG", put("photos/dog/x.jpg", encoded(picture(1, 40, 3), "JPEG")[:400]), "dog/x.jpg: "),
    ("truncated WebP", put("photos/dog/x.webp", encoded(picture(1, 40, 3), "WEBP")[:400]), "dog/x.webp: "),
    ("huge header", put("photos/cat/x.png", claiming(200_000, 200_000)), "200,000 × 200,000 pixels, more than"),
    ("no width", put("photos/cat/x.png", claiming(0, 20)), "cat/x.png: "),
    ("animated GIF renamed", put("photos/cat/x.png", animated("GIF")), f"cat/x.png: {FORMAT}"),
    ("HEIC renamed", put("photos/cat/x.jpg", HEIC), f"cat/x.jpg: {FORMAT}"),
    ("TIFF renamed", put("photos/cat/x.jpg", encoded(picture(2), "TIFF")), f"cat/x.jpg: {FORMAT}"),
    ("zip renamed", put("photos/cat/x.png", zipped("x.png", WHOLE)), f"cat/x.png: {FORMAT}"),
    ("dangling link", lambda place: (place / "photos/cat/x.png").symlink_to("gone"), "cat/x.png: a link to nothing"),
    ("pipe", lambda place: os.mkfifo(place / "photos/cat/x.png"), "cat/x.png: not a regular file"),
]
GOOD: list[tuple[str, Prepare]] = [
    ("1 × 1", put("photos/cat/x.png", encoded(picture(0, 1, 3)))),
    ("very long", put("photos/cat/x.png", encoded(Image.new("L", (1, 5000), 9)))),
    ("16 bits", put("photos/cat/x.png", encoded(Image.fromarray(np.full((20, 20), 0x80FF, np.uint16))))),
    ("CMYK", put("photos/cat/x.jpg", encoded(Image.new("CMYK", (20, 20), (9, 9, 9, 9)), "JPEG"))),
    ("palette with transparency", put("photos/cat/x.png", palette())),
    ("black and white", put("photos/cat/x.png", encoded(Image.new("1", (20, 20), 1)))),
    ("animated WebP", put("photos/cat/x.webp", animated("WEBP"))),
    ("JPEG named .png", put("photos/cat/x.png", encoded(picture(3, 20, 3), "JPEG"))),
    ("ending in capitals", put("photos/cat/X.PNG", encoded(picture(3, 20, 3)))),
    ("folder named x.png", lambda place: (place / "photos/cat/x.png").mkdir()),
    ("HEIC by its name", put("photos/cat/x.heic", HEIC)),
    ("hidden text", put("photos/cat/._x.png", b"text")),
    ("picture in the root", put("photos/x.png", WHOLE)),
]
SHOW = ("data", "show", "photos", "-o", "out")
TRAIN = ("train", "moons", "-o", "out")
MAKE = ("generate", "moons", "--class", "1", "-o", "out.csv")
BAD: list[tuple[str, Prepare, Sequence[str], int, str]] = [
    ("no class", put("empty/.keep", b""), ("train", "empty"), 2, "empty: has no folders of classes"),
    ("one class", put("one/cat/x.png", WHOLE), ("train", "one"), 2, "one: has 1 class, cat: must have at least 2"),
    ("empty class", lambda place: (place / "photos/bird").mkdir(), SHOW, 2, "class bird has no pictures"),
    ("loose in a level", put("photos/Test/x.png", WHOLE), SHOW, 2, "photos/Test/x.png: lies right in Test/"),
    ("strange class", put("photos/test/cow/x.png", WHOLE), SHOW, 2, "test/cow: not a class of the training pictures"),
    (
        "two names of a level",
        lambda place: [put(f"photos/{name}/cat/x.png", WHOLE)(place) for name in ("val", "valid")],
        SHOW,
        2,
        "has both val/ and valid/, which mean the same",
    ),
    (
        "text as a folder",
        put("notes.txt", b"text"),
        ("train", "notes.txt"),
        2,
        "notes.txt: is a file: must be a folder",
    ),
    ("text named .npz", put("x.npz", b"text"), ("train", "x.npz"), 2, "x.npz: not a whole .npz file (numpy.savez"),
    ("half a .npz", put("x.npz", archive(x=X, y=Y)[:300]), ("train", "x.npz"), 2, "x.npz: not a whole .npz file"),
    ("objects", put("x.npz", archive(x=X, y=np.array([{}] * 10))), ("train", "x.npz"), 2, "it holds Python objects"),
    ("another zip", put("x.npz", zipped("x", b"text")), ("train", "x.npz"), 2, "x.npz: x is no array"),
    ("no labels", put("x.npz", archive(x=X)), ("train", "x.npz"), 2, "x.npz: has x: x needs y"),
    ("few labels", put("x.npz", archive(x=X, y=Y[:9])), ("train", "x.npz"), 2, "must have one label for each of 10"),
    (
        "NaN",
        put("x.npz", archive(x=X * np.nan, y=Y)),
        ("train", "x.npz"),
        2,
        "from nan to nan: must be uint8, or floats",
    ),
    ("no task", as_it_is, ("train", "moonz"), 2, "task = moonz: no such task, folder or .npz file"),
    ("task missing", as_it_is, ("train",), 2, "TASK requires an argument"),
    ("no such folder", as_it_is, ("train", "no/where"), 2, "task = no/where: no such folder or .npz file"),
    ("other classes of a toy", as_it_is, ("train", "moons+0"), 2, "a toy has no other classes to choose from"),
    ("classes too large", as_it_is, ("train", "digits+3,77"), 2, "classes = 3,77: must be within 0-9"),
    ("no method", as_it_is, (*TRAIN, "--method", "uqgam"), 2, "method = uqgam: no such method; did you mean uqgan?"),
    ("no device", as_it_is, (*TRAIN, "--device", "tpu"), 2, "device = tpu: must be auto, cpu, cuda or mps"),
    ("fraction as a seed", as_it_is, (*TRAIN, "--seed", "1.5"), 2, "--seed: 1.5: must be a whole number"),
    ("word as a seed", as_it_is, (*TRAIN, "--seed", "one"), 2, "--seed: one: must be a whole number"),
    ("negative seed", as_it_is, (*TRAIN, "--seed", "-1"), 2, "seed = -1: must be within 0 to 2147483647"),
    ("no time", as_it_is, (*TRAIN, "--max-minutes", "0"), 2, "max-minutes"),
    ("no setting", as_it_is, (*TRAIN, "--uqgan.lamda-real", "1"), 2, "Did you mean --uqgan.lambda-real?"),
    ("setting too large", as_it_is, (*TRAIN, "--uqgan.lambda-real", "2"), 2, "must be at most 1.0"),
    ("setting not a number", as_it_is, (*TRAIN, "--uqgan.lr", "nan"), 2, "uqgan.lr = 'nan': must be finite"),
    ("fraction as a setting", as_it_is, (*TRAIN, "--uqgan.noise", "2.6"), 2, "'2.6': must be a whole number"),
    (
        "setting without effect",
        as_it_is,
        ("train", "digits", "--method", "entropy", "--uqgan.lambda-real", "0.5"),
        2,
        "uqgan.lambda_real = 0.5: has no effect, entropy does not read the section uqgan (it reads cross_entropy)",
    ),
    (
        "size without effect",
        as_it_is,
        ("train", "mnist", "--image-size", "64"),
        2,
        "--image-size = 64: has no effect on",
    ),
    ("size of a toy", as_it_is, (*TRAIN, "--image-size", "32"), 2, "--image-size = 32: has no effect on moons"),
    ("size of a set", as_it_is, ("data", "show", "svhn", "--image-size", "32"), 2, "has no effect on svhn"),
    ("no such size", as_it_is, (*SHOW, "--image-size", "48"), 2, "--image-size = 48: must be one of 32, 64"),
    ("fraction as a size", as_it_is, (*SHOW, "--image-size", "32.5"), 2, "32.5: must be a whole number"),
    ("no config", as_it_is, (*TRAIN, "--config", "c.yaml"), 2, "--config = c.yaml: no such file"),
    ("config is a folder", as_it_is, (*TRAIN, "--config", "photos"), 2, "--config = photos: is a folder (give a YAML"),
    ("config is no YAML", put("c.yaml", b"a: ["), (*TRAIN, "--config", "c.yaml"), 2, "c.yaml: not valid YAML at line"),
    ("config is a list", put("c.yaml", b"- a"), (*TRAIN, "--config", "c.yaml"), 2, "must hold sections such as"),
    ("config is a picture", put("c.yaml", WHOLE), (*TRAIN, "--config", "c.yaml"), 2, "c.yaml: cannot be read"),
    (
        "no section",
        put("c.yaml", b"uqgam: {}"),
        (*TRAIN, "--config", "c.yaml"),
        2,
        "uqgam: unknown setting; did you mean",
    ),
    ("run is there", as_it_is, ("train", "moons", "-o", "moons"), 2, "moons: holds a run already"),
    (
        "overwritten with a mistake",
        as_it_is,
        ("train", "moons", "-o", "moons", "--overwrite", "--seed", "-1"),
        2,
        "seed = -1: must be within",
    ),
    (
        "other settings to resume with",
        as_it_is,
        ("train", "moons", "-o", "moons", "--resume", "--uqgan.noise", "7"),
        2,
        "moons: holds a run with other settings",
    ),
    ("file in the way", put("file", b"text"), ("train", "moons", "-o", "file/run"), 1, "could not be written"),
    ("no run", as_it_is, ("evaluate", "nowhere"), 2, "run = nowhere: no such folder"),
    (
        "run is a file",
        put("file", b"text"),
        ("evaluate", "file"),
        2,
        "run = file: is a file: must be the folder of a run",
    ),
    ("folder is no run", as_it_is, ("report", "photos"), 2, "photos: not a whole run, config.yaml is missing"),
    (
        "damaged weights",
        put("moons/weights.safetensors", b"x"),
        ("evaluate", "moons"),
        2,
        "weights.safetensors: damaged",
    ),
    ("damaged config", put("moons/config.yaml", b"task: moons"), ("evaluate", "moons"), 2, "config.yaml: damaged"),
    ("no class of that name", as_it_is, ("generate", "moons", "--class", "cat"), 2, "class = cat: must be one of 0, 1"),
    ("class too large", as_it_is, ("generate", "moons", "--class", "2"), 2, "class = 2: must be one of 0, 1"),
    ("fraction of examples", as_it_is, (*MAKE, "-n", "2.6"), 2, "-n: 2.6: must be a whole number"),
    ("no examples", as_it_is, (*MAKE, "-n", "0"), 2, "n = 0: must be within 1 to 10000"),
    ("no generator", as_it_is, ("generate", "entropy", "--class", "1"), 2, "method = entropy: makes no examples"),
    ("points as a picture", as_it_is, (*MAKE[:-1], "g.png"), 2, "--output = g.png: must end in .csv"),
    ("no ending", as_it_is, (*MAKE[:-1], "g"), 2, "--output = g: must end in .csv"),
    ("no command", as_it_is, ("trian",), 2, 'Did you mean "train"?'),
    ("no option", as_it_is, ("methods", "--jsn"), 2, "--jsn"),
    ("no set", as_it_is, ("data", "check", "mnits"), 2, "task = mnits: no such task"),
]
CASES = [
    *(pytest.param(prepare, SHOW, 2, words, id=name) for name, prepare, words in BROKEN),
    *(pytest.param(prepare, (*SHOW, "--skip-broken"), 0, "", id=f"{name}, left out") for name, prepare, _ in BROKEN),
    *(pytest.param(prepare, SHOW, 0, "", id=name) for name, prepare in GOOD),
    *(pytest.param(*rest, id=name) for name, *rest in BAD),
]
assert len(BROKEN) + len(BAD) >= 40


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, method in (("moons", "uqgan"), ("entropy", "entropy")):
        untrained_run("moons", method).save(folder / name)
    return folder


def content(place: Path) -> dict[str, bytes]:
    """All files of a place, with their bytes."""
    return {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()}


@pytest.mark.parametrize(("prepare", "words", "status", "sentence"), CASES)
def test_bad_input_is_one_sentence_and_loses_nothing(
    prepare: Prepare,
    words: Sequence[str],
    status: int,
    sentence: str,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    write_folder(tmp_path / "photos", n=8)
    (tmp_path / "data").mkdir()
    prepare(tmp_path)
    before = content(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UQGAN_DATA", str(tmp_path / "data"))
    quiet = ("-q",) if words[0] in ("train", "data", "evaluate", "report", "generate") and len(words) > 1 else ()
    found, out, err = Cli(monkeypatch, capsys)(*words, *quiet)
    assert found == status, err
    assert sentence in err
    after = content(tmp_path)
    assert {name: after.get(name) for name in before} == before
    if status:
        assert err.startswith("uqgan: ")
        assert (err.count("\n"), out) == (1, "")
        assert set(after) == set(before), "nothing half-made may be left behind"
    else:
        assert err == ""
