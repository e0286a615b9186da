import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import uqgan
from uqgan.acceleration import adam
from uqgan.checkpoint import Best, Stopped
from uqgan.config import Config, load_config
from uqgan.data.dataset import Dataset
from uqgan.errors import Interrupted, RunFailed
from uqgan.log import Log
from uqgan.methods import METHODS
from uqgan.networks import Networks
from uqgan.progress import spell
from uqgan.training import Stage, accuracy_on, decay, frozen, memory_advice, minimize, set_lr

QUICK = {"fresh": True, "uqgan": {"iterations": 12, "batch_size": 16, "validate_every": 2}}


def test_linear_decay_starts_at_the_start_and_falls_evenly() -> None:
    assert decay(1.0, 0.0, 0, 10) == 1.0
    assert decay(1.0, 0.0, 5, 10) == 0.5
    assert decay(1e-3, 1e-5, 10, 10) == pytest.approx(1e-5)


def test_minimize_takes_one_step_down() -> None:
    net = nn.Linear(3, 1)
    optimizer = adam(net)
    set_lr(optimizer, 0.01)
    x = torch.randn(8, 3)
    losses = []
    for _ in range(5):
        loss = net(x).square().mean()
        losses.append(float(loss.detach()))
        minimize(optimizer, loss)
    assert losses == sorted(losses, reverse=True)


def test_frozen_networks_pass_gradients_on_but_take_none() -> None:
    net, x = nn.Linear(2, 1), torch.randn(4, 2, requires_grad=True)
    with frozen(net):
        net(x).sum().backward()
    assert x.grad is not None
    assert net.weight.grad is None
    assert net.weight.requires_grad


def test_best_keeps_the_last_of_equal_values() -> None:
    net = nn.Linear(1, 1, bias=False)
    best = Best(net)
    for step, value in enumerate([0.5, 0.9, 0.9, 0.2]):
        nn.init.constant_(net.weight, step)
        best.offer(value, step)
    best.restore()
    assert net.weight.item() == 2
    assert best.step == 2


def test_accuracy_is_the_share_of_right_answers() -> None:
    data = Dataset(torch.eye(4), torch.tensor([0, 1, 2, 0]))
    assert accuracy_on(Networks(nn.Identity()), data, lambda logits: logits.softmax(-1)) == 0.75


@pytest.mark.parametrize(("method", "draws"), [("mc-dropout", 8), ("uqgan-mc", 8), ("bayes", 8), ("entropy", 1)])
def test_networks_that_draw_masks_or_weights_are_validated_by_eight_draws(method: str, draws: int) -> None:
    nets, seen = METHODS[method].assemble((2,), 2, Config()).networks[0], []
    logits = nets.logits
    nets.logits = lambda x, n: seen.append(n) or logits(x, n)
    accuracy_on(nets, Dataset(torch.randn(4, 2), torch.tensor([0, 1, 0, 1])), lambda logits: logits.softmax(-1))
    assert sum(seen) == draws


def test_the_same_seed_gives_the_same_log_and_weights(tmp_path: Path) -> None:
    for name in ("a", "b"):
        uqgan.fit("uqgan", "moons", seed=5, folder=tmp_path / name, config=load_config("moons", overrides=QUICK))
    for file in ("log.jsonl", "weights.safetensors", "config.yaml"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_another_seed_gives_another_log(tmp_path: Path) -> None:
    logs = [
        uqgan.fit("uqgan", "moons", seed=seed, config=load_config("moons", overrides=QUICK)).record.log
        for seed in (1, 2)
    ]
    assert logs[0] != logs[1]


TRAIN = """
import sys
import torch
torch.set_num_threads(1)
from test_training import train
train(*sys.argv[1:])
"""


def train(task: str, method: str, folder: str, resume: bool = False) -> None:
    """A short run that saves after every step."""
    uqgan.training.SAVE_SECONDS = 0.0
    autoencoder = {"epochs": 3, "batch_size": 256, "dim": 4} if task == "digits" else {}
    quick = {"fresh": True, "uqgan": {"iterations": 20, "batch_size": 16, "validate_every": 2}}
    config = load_config(task, overrides=quick | {"autoencoder": autoencoder})
    uqgan.fit(method, task, config=config, folder=folder, resume=resume, device="cpu", quiet=True)


@pytest.mark.parametrize(("task", "method"), [("moons", "uqgan"), ("digits", "uqgan-mc")])
def test_a_run_killed_and_resumed_ends_in_the_same_bytes(
    tmp_path: Path, task: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uqgan.training.SAVE_SECONDS", 0.0)  # restored after the test
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(task, method, str(whole))

    process = subprocess.Popen([sys.executable, "-c", TRAIN, task, method, str(killed)], cwd=Path(__file__).parent)
    saved = killed / "resume" / "uqgan.safetensors"
    deadline = time.monotonic() + 120
    while not saved.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert saved.exists(), "the run must have been killed in the middle of its training"
    assert not (killed / "about.json").exists()

    train(task, method, str(killed), resume=True)
    for file in ("weights.safetensors", "log.jsonl", "config.yaml"):
        assert (killed / file).read_bytes() == (whole / file).read_bytes()
    assert not (killed / "resume").exists()
    assert not [f for f in killed.rglob(".*") if f.is_file()], "no half-written file and no lock may be left"


def stage(log: Log, total: int = 10) -> Stage:
    net = nn.Linear(1, 1)
    return Stage(log, "test", total, {"net": net, "optimizer": adam(net), "best": Best(net)})


def test_a_value_that_is_not_finite_stops_the_run_and_is_named(tmp_path: Path) -> None:
    leg = stage(Log(tmp_path))
    leg.record(3, critic=1.0)
    with pytest.raises(RunFailed, match=r"test: critic = nan between steps 4 and 8: training diverged"):
        leg.record(7, critic=torch.tensor(float("nan")))


def test_ctrl_c_finishes_the_step_saves_and_says_where(tmp_path: Path) -> None:
    def interrupted(leg: Stage) -> None:
        for step in leg:
            if step == 2:
                os.kill(os.getpid(), signal.SIGINT)

    where = r"stopped by hand at step 3 of 10 of test, before the first validation \(saved, --resume goes on\)"
    with pytest.raises(Interrupted, match=where):
        interrupted(stage(Log(tmp_path)))
    assert stage(Log(tmp_path, resume=True)).steps == range(3, 10)


def test_out_of_time_ends_the_stage_and_saves(tmp_path: Path) -> None:
    log = Log(tmp_path, max_minutes=1e-9)
    assert list(stage(log)) == [0]
    assert log.stopped == "out of time at step 1 of 10 of test"
    assert stage(Log(tmp_path, resume=True)).steps == range(1, 10)


def test_a_run_out_of_time_keeps_its_best_classifier_and_can_go_on(tmp_path: Path) -> None:
    quick = load_config("moons", overrides={"uqgan": {"iterations": 12, "batch_size": 16, "validate_every": 1}})
    short = uqgan.fit("uqgan", "moons", config=quick, folder=tmp_path, max_minutes=1e-9)
    assert short.record.about["finished"] is False
    assert uqgan.load(tmp_path).record.about["stopped"].startswith("out of time at step 1 of 12")
    rest = uqgan.fit("uqgan", "moons", config=quick, folder=tmp_path, resume=True)
    whole = uqgan.fit("uqgan", "moons", config=quick.model_copy(update={"fresh": True}))
    assert rest.record.log == whole.record.log
    assert rest.record.about["finished"] is True
    assert list(json.loads((tmp_path / "about.json").read_text())["stage_seconds"]) == ["uqgan"]


def test_lines_after_the_last_saved_state_are_written_anew(tmp_path: Path) -> None:
    log = Log(tmp_path)
    leg = stage(log)
    log.write({"stage": "test", "step": 1, "loss": 1.0})
    leg.save()
    log.write({"stage": "test", "step": 2, "loss": 2.0})
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(b'{"half a li')
    resumed = Log(tmp_path, resume=True)
    assert [row["step"] for row in resumed.rows] == [1]
    assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [1]


def test_a_damaged_saved_state_is_named(tmp_path: Path) -> None:
    stage(Log(tmp_path)).save()
    file = tmp_path / "resume" / "test.safetensors"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(RunFailed, match=r"test\.safetensors: cannot be resumed from .*; delete it"):
        Log(tmp_path, resume=True)


def test_out_of_memory_says_which_batch_size_to_try() -> None:
    with (
        pytest.raises(RunFailed, match=r"uqgan\.batch_size = 256: out of memory \(try 128\)"),
        memory_advice("uqgan.batch_size", 256),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(RunFailed, match=r"\(try 128\)"), memory_advice("uqgan.batch_size", 256):
        torch.empty(2**50)


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="shape"), memory_advice("uqgan.batch_size", 256):
        raise RuntimeError("shape mismatch")


@pytest.mark.parametrize(("seconds", "words"), [(5, "5 s"), (89, "89 s"), (130, "2 min"), (7200, "2.0 h")])
def test_durations_are_spelled_as_one_says_them(seconds: float, words: str) -> None:
    assert spell(seconds) == words


def test_curves_go_to_tensorboard_where_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    log = Log(tmp_path)
    log.write({"stage": "test", "step": 1, "loss": 1.0})
    log.close()
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    uqgan.fit("one-vs-all", "moons", epochs=1, batch_size=50_000)
    assert list(tmp_path.iterdir()) == []


def test_out_of_time_in_the_autoencoder_says_that_there_is_no_classifier_and_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match=r"of autoencoder, before there is a classifier \(saved, --resume goes on\)"):
        uqgan.fit("uqgan", "digits", folder=tmp_path / "run", max_minutes=1e-9)
    assert (tmp_path / "run" / "resume" / "autoencoder.safetensors").exists()


def test_the_time_left_is_not_judged_by_the_first_steps_which_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, heard = [0.0], io.StringIO()
    monkeypatch.setattr("uqgan.log.time.monotonic", lambda: clock[0])
    log = Log(console=Console(file=heard, width=200), max_minutes=2)
    with log.bar("uqgan", 0, 101) as advance:
        for step in range(101):
            clock[0] += 60.0 if step == 0 else 0.5
            advance()
    assert "uqgan: about 2 min\n" in heard.getvalue(), "110 s, which --max-minutes allows"
    assert log.seconds == {"uqgan": 110.0}
