"""What a person sees while a stage runs."""

import io
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import uqgan
from uqgan.log import Log

LOSSES = {"critic": -1.2345, "generator": 12.3456, "classifier": 0.98765, "autoencoder": 0.5, "accuracy": 0.9}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("uqgan.progress.time.monotonic", lambda: now[0])
    return now


def train(log: Log, clock: list[float], steps: int, seconds: float, name: str = "cross_entropy.member-3") -> None:
    with log.bar(name, 0, 10_000) as advance:
        for step in range(steps):
            clock[0] += seconds
            log.write({"stage": name, "step": step, "critic.distance": 1.0} | LOSSES)
            advance()


@pytest.mark.parametrize("width", [80, 60, 50])
def test_a_narrow_bar_keeps_step_total_and_time_left_and_drops_losses_first(clock: list[float], width: int) -> None:
    heard = io.StringIO()
    train(Log(console=Console(file=heard, width=width, force_terminal=True, color_system=None)), clock, 50, 1.0)
    last = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", heard.getvalue()).rstrip())[-1]
    assert len(last.rstrip()) <= width
    assert "cross_entropy.member-3" in last
    assert "50/10000" in last
    assert re.search(r"2:4\d:\d\d", last), "9,950 s are left"
    assert width < 80 or "critic -1.23" in last
    assert "generator" not in last


def test_a_wide_bar_shows_all_losses(clock: list[float]) -> None:
    heard = io.StringIO()
    train(Log(console=Console(file=heard, width=200, force_terminal=True, color_system=None)), clock, 50, 1.0)
    assert "critic -1.23  generator 12.3  classifier 0.988  autoencoder 0.5  accuracy 0.9" in heard.getvalue()
    assert "distance" not in heard.getvalue()


def test_without_a_terminal_there_is_a_line_every_half_minute_and_one_at_the_end(clock: list[float]) -> None:
    heard = io.StringIO()
    train(Log(console=Console(file=heard, width=80)), clock, 70, 1.0, "uqgan")
    losses = "critic -1.23, generator 12.3, classifier 0.988, autoencoder 0.5, accuracy 0.9"
    assert heard.getvalue().splitlines() == [
        "uqgan: about 2.8 h",
        f"uqgan: step 30 of 10000, 2.8 h left, {losses}",
        f"uqgan: step 60 of 10000, 2.8 h left, {losses}",
        f"uqgan: step 70 of 10000, 2.8 h left, {losses}",
    ]


def test_fit_in_python_reports_on_standard_error_unless_it_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    task, few = uqgan.load_task("moons"), torch.arange(200)
    task = replace(task, train=task.train[few], validation=task.validation[few])
    settings = {"iterations": 2, "batch_size": 8, "validate_every": 1, "fresh": True}
    uqgan.fit("uqgan", task, quiet=True, **settings)
    assert capfd.readouterr() == ("", "")
    uqgan.fit("uqgan", task, **settings)
    out, err = capfd.readouterr()
    assert out == ""
    assert re.search(r"^uqgan: step 2 of 2, after \d+ s, critic ", err, re.M)
