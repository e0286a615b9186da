"""Values of any type given to fit, predict, generate and load: they work, or one sentence says why not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import uqgan
from pictures import untrained_run
from uqgan.errors import UsageError
from uqgan.run import Run
from uqgan.samples import checked_samples, whole

SHAPE = (1, 32, 32)
PIXELS = np.random.default_rng(0).random((4, *SHAPE), dtype=np.float32)
META = torch.empty(PIXELS.shape, device="meta")
POINTS = np.random.default_rng(1).normal(size=(5, 2))
QUICK = {"iterations": 1, "batch_size": 8, "validate_every": 1}


def frozen(x: Any) -> Any:
    x = x.copy()
    x.flags.writeable = False
    return x


def mapped(x: Any, folder: Path) -> Any:
    np.save(folder / "x.npy", x)
    return np.load(folder / "x.npy", mmap_mode="r")


@pytest.fixture(scope="module")
def digits() -> Run:
    return untrained_run("digits")


@pytest.fixture(scope="module")
def moons() -> Run:
    return untrained_run("moons")


@pytest.mark.parametrize(
    "given",
    [
        lambda x, _: frozen(x),
        mapped,
        lambda x, _: x[::-1].copy()[::-1],
        lambda x, _: np.asfortranarray(x),
        lambda x, _: x.astype(np.float64),
        lambda x, _: x.astype(np.longdouble),
        lambda x, _: x.astype(">f4"),
        lambda x, _: x.tolist(),
        lambda x, _: list(x),
        lambda x, _: torch.from_numpy(x),
        lambda x, _: list(torch.from_numpy(x)),
        lambda x, _: torch.from_numpy(x).requires_grad_(),
        lambda x, _: torch.from_numpy(x).to_sparse(),
    ],
)
@pytest.mark.parametrize("kind", ["pictures", "points"])
def test_numbers_of_every_make_are_read_alike(
    given: Callable[[Any, Path], Any], kind: str, digits: Run, moons: Run, tmp_path: Path
) -> None:
    run, x = (digits, PIXELS) if kind == "pictures" else (moons, POINTS.astype(np.float32))
    expected, found = run.predict(torch.from_numpy(x)), run.predict(given(x, tmp_path))
    torch.testing.assert_close(found.probs, expected.probs)


def test_bytes_are_read_as_bytes_and_points_of_any_number_type(digits: Run, moons: Run) -> None:
    whole_bytes = (PIXELS * 255).round().astype(np.uint8)
    torch.testing.assert_close(
        digits.predict(frozen(whole_bytes)).probs, digits.predict(whole_bytes / np.float64(255)).probs
    )
    for kind in (np.uint8, np.int64, np.float16):
        found = moons.predict(np.array([[1, 2], [3, 0]], kind))
        torch.testing.assert_close(found.probs, moons.predict([[1.0, 2.0], [3.0, 0.0]]).probs)


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (None, "x is NoneType: must be an array or tensor of numbers"),
        ("picture.png", "x is str: must be"),
        (["a.png", "b.png"], "x is an array of <U5: must be"),
        ({"x": 1}, "x is dict: must be"),
        (np.array([object()] * 3), "x is an array of object: must be"),
        (PIXELS.astype(np.complex64), "x is an array of complex64: must be"),
        (torch.from_numpy(PIXELS).to(torch.complex64), "x is of torch.complex64: must be"),
        ([[1.0], [1.0, 2.0]], "x is no array"),
        ([torch.zeros(2), torch.zeros(3)], "x holds tensors of several shapes"),
        (META, "x is on the device meta, without values: must be on cpu, cuda or mps"),
        (list(META), "x is on the device meta"),
        (PIXELS > 0.5, "x is of torch.bool: must be uint8, or floats in [0, 1]"),
        ((255 * PIXELS).astype(np.int64), "x is of torch.int64: must be uint8, or floats in [0, 1]"),
        (PIXELS * 255, "x has pixels outside [0, 1]: give uint8, or floats divided by 255"),
        (np.where(PIXELS > 0.5, np.nan, PIXELS), "x has values that are NaN or infinite: must be finite"),
        (np.full((1, *SHAPE), np.inf), "x has values that are NaN or infinite"),
        (np.full((1, *SHAPE), 1e300), "x has values that are NaN or infinite"),
        (PIXELS[:0], "x holds no samples: must hold at least one"),
        (PIXELS[0], "x has shape (1, 32, 32): must be (samples, 1, 32, 32)"),
        ([], "x has shape (0,): must be (samples, 1, 32, 32)"),
        (5, "x has shape (): must be (samples, 1, 32, 32)"),
    ],
)
def test_what_is_no_batch_of_pictures_is_one_sentence(x: Any, sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        checked_samples(x, SHAPE)
    assert str(refusal.value).startswith(sentence)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("x", [[[np.nan, 0.0]], [[True, False]], np.zeros((0, 2)), [["1", "2"]], [0.0, 1.0]])
def test_what_are_no_points_is_one_sentence(x: Any, moons: Run) -> None:
    with pytest.raises(UsageError, match=r"^x "):
        moons.predict(x)


@pytest.mark.parametrize("value", [True, 1.5, 1.0, "1", None, [1], np.float64(2), -1, 2**31])
def test_what_is_no_whole_number_is_refused_and_not_rounded(value: Any, moons: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^seed = "):
        uqgan.fit("uqgan", "moons", seed=value, folder=tmp_path / "run")
    with pytest.raises(UsageError, match=r"^seed = "):
        uqgan.load_task("moons", seed=value)
    if value is not None:
        with pytest.raises(UsageError, match=r"^member = "):
            moons.predict(POINTS, member=value)
        with pytest.raises(UsageError, match=r"^seed = "):
            moons.predict(POINTS, seed=value)
        with pytest.raises(UsageError, match=r"^seed = "):
            moons.generate(0, seed=value)
        with pytest.raises(UsageError, match=r"^seed = "):
            moons.decide(moons.predict(POINTS), seed=value)
    with pytest.raises(UsageError, match=r"^n = "):
        moons.generate(0, n=value)
    assert not (tmp_path / "run").exists()


def test_text_that_reads_like_a_number_is_told_from_one() -> None:
    with pytest.raises(UsageError, match=r"^n = '3': must be a whole number$"):
        whole("3", "n", 0, 9)
    with pytest.raises(UsageError, match=r"^n = many: must be a whole number$"):
        whole("many", "n", 0, 9)


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), torch.tensor(3), 3])
def test_whole_numbers_of_other_libraries_are_whole_numbers(value: Any) -> None:
    number = whole(value, "n", 0, 9)
    assert (number, type(number)) == (3, int)


@pytest.mark.parametrize("label", [True, None, 1.0, [0], 2, -1, "2", "cat"])
def test_a_class_that_is_none_is_refused(label: Any, moons: Run) -> None:
    with pytest.raises(UsageError, match=r"^class = "):
        moons.generate(label)


def test_a_class_may_be_any_whole_number_or_a_name(moons: Run) -> None:
    made = [moons.generate(label, n=np.int64(3), seed=1) for label in (1, np.int64(1), torch.tensor(1), "1")]
    assert all(torch.equal(made[0], each) for each in made)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"method": None}, "method = None: no such method"),
        ({"method": ["uqgan"]}, "method = ['uqgan']: no such method"),
        ({"task": None}, "task = NoneType: must be a name, a folder, (x, y)"),
        ({"task": 5}, "task = int: must be"),
        ({"task": b"moons"}, "task = bytes: must be"),
        ({"task": {"x": 1}}, "task = dict: must be"),
        ({"task": (PIXELS, None)}, "task = (ndarray, NoneType): must be (x, y), pictures and their labels"),
        ({"task": ("photos", "labels")}, "x of own data, train is str: must be"),
        ({"task": (PIXELS, [0, 1, 0])}, "y of own data, train: has shape (3,)"),
        ({"task": (PIXELS, [0, None, 1, 1])}, "y of own data, train holds labels that are no numbers or names"),
        ({"task": (PIXELS, [0, 1, np.nan, 1])}, "y of own data, train holds labels that are no numbers"),
        ({"task": (PIXELS, [[0], [1, 2], [3], [4]])}, "y of own data, train is no array"),
        ({"task": (PIXELS.astype(complex), [0, 1, 0, 1])}, "x of own data, train is an array of complex128"),
        ({"task": (PIXELS > 0.5, [0, 1, 0, 1])}, "x of own data, train: torch.bool from 0 to 1: must be uint8"),
        ({"task": (PIXELS * np.nan, [0, 1, 0, 1])}, "x of own data, train: torch.float32 from nan to nan: must be"),
        ({"task": (PIXELS[:0], [])}, "x of own data, train: has shape (0, 1, 32, 32)"),
        ({"task": (META, [0, 1, 0, 1])}, "x of own data, train is on the device meta, without values: must be on"),
        ({"task": (PIXELS, META[:, 0, 0, 0])}, "y of own data, train is no array"),
        ({"task": [(None, 0), (None, 1)]}, "image is NoneType: must be"),
        ({"task": ["a.png", "b.png"]}, "items are of type str: must be (image, label)"),
        ({"task": "a\0b"}, "task = a\0b: no such task"),
        ({"config": {"uqgan": {}}}, "config = {'uqgan': {}}: must be a uqgan.Config"),
        ({"config": "moons.yaml"}, "config = moons.yaml: must be a uqgan.Config"),
        ({"folder": 5}, "folder = 5: must be a path"),
        ({"folder": "a\0b"}, "folder = a\0b: must be a path"),
        ({"device": None}, "device = None: must be auto, cpu, cuda or mps"),
        ({"device": 0}, "device = 0: must be"),
        ({"device": torch.device("meta")}, "device = meta: must be"),
        ({"folder": ""}, "folder = '': must be a path"),
        ({"max_minutes": "5"}, "max_minutes = '5': must be a number greater than 0"),
        ({"max_minutes": 10**400}, "max_minutes = 1000"),
        ({"max_minutes": 10**5000}, "max_minutes = int: must be a number greater than 0, and at most 1,000,000,000"),
        ({"max_minutes": float("nan")}, "max_minutes = nan: must be"),
        ({"max_minutes": True}, "max_minutes = True: must be"),
        ({"resume": "no"}, "resume = no: must be True or False"),
        ({"overwrite": 1}, "overwrite = 1: must be True or False"),
        ({"quiet": None}, "quiet = None: must be True or False"),
        ({"quiet": "True"}, "quiet = 'True': must be True or False"),
        ({"console": 3}, "console = 3: must be a rich.console.Console"),
        ({"classifier": 5}, "classifier = 5: must be an nn.Module"),
        ({"uqgan": 5}, "uqgan = 5: must be a section of settings"),
        ({"lambda_real": "much"}, "uqgan.lambda_real = 'much': must be a number"),
        ({"iterations": True}, "uqgan.iterations = True: must be a whole number"),
        ({"lr": False}, "uqgan.lr = False: must be a number"),
        ({"lambda_real": None}, "uqgan.lambda_real = None: must be a number"),
        ({"lambda_real": np.nan}, "uqgan.lambda_real = nan: must be finite"),
        ({"one_vs_all": {"epochs": 3}}, "one_vs_all.epochs = 3: has no effect, uqgan does not read the section"),
        ({"method": "entropy", "uqgan": {"lr": 0.1}}, "uqgan.lr = 0.1: has no effect, entropy does not read"),
        ({"method": "entropy-oracle", "cross_entropy": {"epochs": 3}}, "cross_entropy.epochs = 3: has no effect"),
    ],
)
def test_a_wrong_value_for_fit_is_one_sentence(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        uqgan.fit(**({"method": "uqgan", "task": "moons", "folder": tmp_path / "run"} | change))
    assert str(refusal.value).startswith(sentence)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"image_size": 64}, "--image-size = 64: has no effect on digits, only on user-supplied pictures"),
        ({"channels": 3}, "channels = 3: has no effect on digits"),
        ({"source": "moons", "image_size": 32}, "--image-size = 32: has no effect on moons"),
        ({"source": (PIXELS, [0, 1, 0, 1]), "image_size": "32"}, "--image-size = '32': must be one of 32, 64"),
        ({"source": (PIXELS, [0, 1, 0, 1]), "image_size": 32.0}, "--image-size = 32.0: must be one of 32, 64"),
        ({"source": (PIXELS, [0, 1, 0, 1]), "channels": 2}, "channels = 2: must be 1 or 3"),
        ({"root": 5}, "data_root = 5: must be a path"),
    ],
)
def test_a_wrong_value_for_load_task_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        uqgan.load_task(**({"source": "digits"} | change))
    assert str(refusal.value).startswith(sentence)


def test_sections_of_other_methods_may_stand_in_a_config(tmp_path: Path) -> None:
    config = uqgan.Config(uqgan=QUICK, one_vs_all={"epochs": 3})  # type: ignore[arg-type]
    assert uqgan.fit("uqgan", "moons", config=config).record.plan.config.one_vs_all.epochs == 3


@pytest.mark.parametrize("folder", [None, 5, ["run"], "a\0b", ""])
def test_a_run_is_loaded_and_saved_by_a_path(folder: Any, moons: Run) -> None:
    with pytest.raises(UsageError, match=r"^folder = .*: must be a path$"):
        uqgan.load(folder)
    with pytest.raises(UsageError, match=r"^folder = .*: must be a path$"):
        moons.save(folder)


def test_a_device_may_be_torchs_own(moons: Run, tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    run = uqgan.fit("uqgan", "moons", device=cpu, uqgan=QUICK, folder=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "about.json").read_text())["device"].startswith("cpu")
    again = uqgan.load(tmp_path / "run", device=cpu)
    assert torch.equal(again.predict(POINTS).probs, run.predict(POINTS).probs)
    with pytest.raises(UsageError, match="device = meta"):
        uqgan.load(tmp_path / "run", device=torch.device("meta"))


def test_pictures_that_must_not_be_written_are_trained_on(tmp_path: Path) -> None:
    x = (np.random.default_rng(2).random((40, 32, 32, 3)) * 255).astype(np.uint8)
    y = np.arange(40) % 2
    expected = uqgan.load_task((x, y)).train.x
    for given in (frozen(x), mapped(x, tmp_path), x[::-1].copy()[::-1], (x / 255).tolist(), x / 255):
        assert torch.equal(uqgan.load_task((given, frozen(y))).train.x, expected)
    pairs = [(Image.fromarray(each), np.int64(label)) for each, label in zip(x, y, strict=True)]
    assert torch.equal(uqgan.load_task(pairs).train.x, expected)
