"""An autoencoder is trained once for the same settings, data and seed, and runs can't tell the difference."""

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

import uqgan
from uqgan.config import Config, load_config
from uqgan.data.dataset import Dataset
from uqgan.data.tasks import Task, load_task
from uqgan.files import locked
from uqgan.log import Log
from uqgan.losses import reconstruction_loss
from uqgan.models.autoencoders import Autoencoder, make_autoencoder
from uqgan.pretraining import STAGE, key_of, pretrain

TAKEN = "taken from the cache"


class Heard(Log):
    """A log that remembers what was said."""

    def __init__(self, folder: Path | None = None, seed: int = 0) -> None:
        super().__init__(folder, seed)
        self.said: list[str] = []

    def say(self, sentence: str) -> None:
        self.said.append(sentence)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UQGAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "autoencoders"


@pytest.fixture(scope="module")
def task() -> Task:
    digits = load_task("digits")
    return replace(digits, train=digits.train[torch.arange(128)], validation=digits.validation[torch.arange(32)])


def settings(**changes: Any) -> Config:
    return load_config("digits", overrides={"autoencoder": {"epochs": 2, "batch_size": 64, "dim": 4} | changes})


def trained(task: Task, config: Config, seed: int = 0, log: Heard | None = None) -> tuple[Autoencoder, Heard]:
    log = log or Heard(seed=seed)
    torch.manual_seed(seed)
    A = make_autoencoder(config.autoencoder.kind, task.shape, task.n_classes, config.autoencoder.dim)
    pretrain(A, task, config, log)
    return A, log


def same(a: Autoencoder, b: Autoencoder) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_the_second_run_takes_what_the_first_trained_and_tells_the_same_story(cache: Path, task: Task) -> None:
    first, told = trained(task, settings())
    assert told.said == []
    state = torch.get_rng_state()
    second, again = trained(task, settings())
    assert TAKEN in again.said[0]
    assert same(first, second)
    assert again.rows == told.rows != []
    assert torch.equal(torch.get_rng_state(), state), "what follows must draw the same noise either way"


def test_other_settings_seeds_and_data_have_other_keys(task: Task) -> None:
    other = replace(task, train=Dataset(task.train.x.flip(0), task.train.y))
    keys = [
        key_of(task, settings(), 0),
        key_of(task, settings(), 1),
        key_of(task, settings(lr=0.01), 0),
        key_of(other, settings(), 0),
        key_of(replace(task, flip=True), settings(), 0),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == key_of(task, settings(), 0)


@pytest.mark.parametrize(("kind", "expected"), [("small", [False, False]), ("resnet", [True, True])])
def test_the_key_follows_the_precision_in_which_it_is_trained(
    kind: str, expected: list[bool], task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uqgan.acceleration.has_bf16", lambda _: True)
    plain, *others = (settings(kind=kind).model_copy(update={"precision": name}) for name in ("fp32", "auto", "bf16"))
    assert [key_of(task, other, 0) != key_of(task, plain, 0) for other in others] == expected


@pytest.mark.parametrize(("kind", "while_trained"), [("small", False), ("resnet", True)])
def test_a_small_one_is_trained_in_float32_even_if_it_is_used_in_bf16(
    kind: str, while_trained: bool, cache: Path, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered: list[bool] = []

    def loss(logits: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        lowered.append(in_bf16(logits))
        return reconstruction_loss(logits, x)

    monkeypatch.setattr("uqgan.pretraining.reconstruction_loss", loss)
    A, _ = trained(task, settings(kind=kind, epochs=1).model_copy(update={"precision": "bf16"}))
    assert lowered
    assert all(low == while_trained for low in lowered)
    assert in_bf16(A(task.train.x[:8] / 255, task.train.y[:8]))


def in_bf16(values: torch.Tensor) -> bool:
    """Whether all of them are numbers that bf16 has."""
    return torch.equal(values, values.bfloat16().float())


def test_each_seed_trains_its_own(cache: Path, task: Task) -> None:
    first, _ = trained(task, settings(), seed=0)
    second, told = trained(task, settings(), seed=1)
    assert told.said == []
    assert not same(first, second)


def test_a_fresh_one_is_neither_taken_nor_kept(cache: Path, task: Task) -> None:
    trained(task, settings().model_copy(update={"fresh": True}))
    assert not cache.exists()


def test_a_damaged_file_is_trained_anew(cache: Path, task: Task) -> None:
    first, _ = trained(task, settings())
    (file,) = cache.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:1000])
    second, told = trained(task, settings())
    assert told.said == []
    assert same(first, second)
    assert TAKEN in trained(task, settings())[1].said[0]


def test_where_nothing_can_be_written_it_is_trained_and_said(cache: Path, task: Task) -> None:
    cache.parent.mkdir(parents=True)
    cache.touch()  # a file where the folder should be
    _, told = trained(task, settings())
    assert "training without the cache" in told.said[0]
    assert told.rows[-1]["stage"] == STAGE


def test_a_resumed_log_is_not_told_twice(cache: Path, task: Task, tmp_path: Path) -> None:
    _, whole = trained(task, settings())
    log = Heard(tmp_path / "run")
    log.write(whole.rows[0])
    trained(task, settings(), log=log)
    assert log.rows == whole.rows


def test_a_run_that_waits_for_another_says_so(cache: Path, task: Task) -> None:
    file = cache / f"digits-{key_of(task, settings(), 0)}.safetensors"
    told = Heard()
    with locked(file):
        waiting = threading.Thread(target=trained, args=(task, settings(), 0, told))
        waiting.start()
        deadline = time.monotonic() + 30
        while not told.said and time.monotonic() < deadline:
            time.sleep(0.01)
        assert told.rows == []
    waiting.join()
    assert told.said == ["another process trains the same autoencoder: waiting for it"]
    assert told.rows[-1]["stage"] == STAGE


def test_a_stopped_run_goes_on_with_the_autoencoder_it_began_with(cache: Path, tmp_path: Path) -> None:
    few = {"iterations": 3, "batch_size": 16, "validate_every": 1}
    config = load_config("digits", overrides={"autoencoder": {"epochs": 1, "dim": 4}, "uqgan": few})
    whole = uqgan.fit("uqgan", "digits", config=config)
    shutil.rmtree(cache.parent / "networks")
    begun = uqgan.fit("uqgan", "digits", config=config, folder=tmp_path / "run", max_minutes=1e-9)
    assert begun.record.about["stopped"] == "out of time at step 1 of 3 of uqgan"
    (file,) = cache.glob("*.safetensors")
    with safe_open(file, "pt") as saved:
        story = saved.metadata()
        other = {key: saved.get_tensor(key) + 1 for key in saved.keys()}  # noqa: SIM118
    file.write_bytes(save(other, story))
    rest = uqgan.fit("uqgan", "digits", config=config, folder=tmp_path / "run", resume=True)
    assert rest.record.log == whole.record.log
