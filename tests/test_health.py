"""The shield's health: known cases give known numbers, training does not notice, and faults become sentences."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.testing import assert_close

import uqgan
from uqgan.config import load_config
from uqgan.data.dataset import Dataset
from uqgan.data.tasks import Task
from uqgan.health import PER_CLASS, Health, gradient_norm, sample_per_class, say_warnings, settled, warnings
from uqgan.log import Log, headline
from uqgan.models.autoencoders import Identity
from uqgan.models.gan import Critic, Generator
from uqgan.report import curves, shields

QUICK = {"uqgan": {"iterations": 6, "batch_size": 16, "validate_every": 2}}


class FromReal(nn.Module):
    """Gives random real codes of the classes asked for back."""

    def __init__(self, data: Dataset) -> None:
        super().__init__()
        self.data = data

    def forward(self, y: Tensor) -> Tensor:
        alike = (self.data.y == y[:, None]).double()
        return self.data.x[alike.multinomial(1)[:, 0]]


class Constant(nn.Module):
    """The same row for every sample."""

    def __init__(self, row: Sequence[float]) -> None:
        super().__init__()
        self.row = torch.tensor(row)

    def forward(self, x: Tensor) -> Tensor:
        return self.row.expand(len(x), -1)


class FirstCoordinate(nn.Module):
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return z[:, :1]


def plane(sizes: Sequence[int]) -> Task:
    """A class around (k, 0) for each size."""
    y = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    data = Dataset(torch.randn(len(y), 2) + torch.stack([y, 0 * y], 1), y)
    return Task("plane", "plane", tuple(map(str, range(len(sizes)))), data, data, data, data, {}, {}, {})


def health(task: Task, C: nn.Module | None = None, G: nn.Module | None = None, D: nn.Module | None = None) -> Health:
    n = task.n_classes
    identity = Identity((2,), n, 2)
    return Health(C or nn.Linear(2, n), G or Generator(2, n, 8), D or Critic(2, n), identity, task, seed=3)


def rows(n: int = 9, **values: float) -> list[dict[str, Any]]:
    """A log of n measurements, alike but for their steps."""
    numbers = {"critic.distance": 1.0, "gradient.C": 0.1, "gradient.G": 10.0, "gradient.D": 0.0}
    row = {"stage": "uqgan", "critic": 0.1, "accuracy": 0.9} | numbers | values
    return [row | {"step": 10 * k} for k in range(1, n + 1)]


def of_classes(spread: Sequence[float], out_of_class: Sequence[float]) -> dict[str, float]:
    pairs = {"spread": spread, "out_of_class": out_of_class}
    return {f"{kind}.{k}": value for kind, values in pairs.items() for k, value in enumerate(values)}


def test_a_generator_that_gives_real_codes_back_is_as_wide_as_its_class() -> None:
    task = plane([300, 500])
    found = health(task, G=FromReal(task.train)).measure(0)
    assert_close([found["spread.0"], found["spread.1"]], [1.0, 1.0], atol=0.25, rtol=0)


def test_a_constant_generator_has_no_width_and_is_called_collapsed() -> None:
    found = health(plane([100, 100]), G=Constant([0.3, 0.7])).measure(0)
    assert_close([found["spread.0"], found["spread.1"]], [0.0, 0.0], atol=1e-5, rtol=0)
    sentence = warnings(rows(**found), ("cat", "dog"))[0]
    assert sentence.startswith("generated examples that should surround class ")
    assert sentence.endswith("of the class's own width: collapsed (try a larger --uqgan.lambda-reg)")


def test_a_classifier_that_lets_everything_in_shields_nothing() -> None:
    task = plane([100, 100])
    found = health(task, C=Constant([5.0, -5.0]), G=FromReal(task.train)).measure(0)
    assert (found["out_of_class.0"], found["out_of_class.1"]) == (0.0, 1.0)
    assert warnings(rows(**found), ("cat", "dog")) == [
        "generated examples that should surround class cat (its shield) are called out-of-class in 0 of all cases: "
        "not shielded (try a larger --uqgan.lambda-cl)"
    ]


def test_the_critics_distance_is_that_of_the_data_whatever_their_balance() -> None:
    task = plane([PER_CLASS, 3 * PER_CLASS])
    found = health(task, G=Constant([0.0, 0.0]), D=FirstCoordinate()).measure(0)
    x = task.train.x[sample_per_class(task.train.y, 2), 0].view(2, -1).mean(1)
    assert found["critic.distance"] == pytest.approx(float(0.25 * x[0] + 0.75 * x[1]), rel=1e-3)


def test_gradients_are_those_of_the_last_step_and_none_counts_as_nothing() -> None:
    net = nn.Linear(2, 1)
    assert float(gradient_norm(net)) == 0
    net.weight.grad = torch.tensor([[3.0, 4.0]])
    assert float(gradient_norm(net)) == 5
    assert health(plane([20, 20]), C=nn.Linear(2, 2)).measure(0)["gradient.C"] == 0


def test_classes_that_are_empty_single_or_all_alike_are_left_out_and_all_numbers_are_finite() -> None:
    task = plane([5, 0, 1, 40, 30])
    task.train.x[task.train.y == 4] = 7.0
    found = health(task).measure(0)
    assert [key for key in found if key.startswith("spread.")] == ["spread.0", "spread.3"]
    assert all(torch.tensor(value).isfinite() for value in found.values())


def test_as_many_of_each_class_are_taken_and_few_come_repeatedly() -> None:
    y = torch.tensor([2, 0, 2, 0, 0])
    index = sample_per_class(y, 4).view(2, PER_CLASS)
    assert y[index].unique(dim=1).tolist() == [[0], [2]]
    assert set(index[0].tolist()) == {1, 3, 4}


def test_of_many_classes_only_some_examples_are_shown_to_the_classifier() -> None:
    seen = []
    C = nn.Linear(2, 100)
    C.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    found = health(plane([3] * 100), C=C).measure(0)
    assert seen == [1000]
    assert len(found) == 204


def test_measuring_repeats_for_a_step_and_leaves_the_callers_randomness_alone() -> None:
    inspected = health(plane([30, 30]))
    before = torch.get_rng_state()
    first, again, later = inspected.measure(4), inspected.measure(4), inspected.measure(5)
    assert first == again != later
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("method", ["uqgan", "uqgan-mc"])
def test_training_is_the_same_to_the_bit_as_without_a_look_at_its_health(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("moons", overrides=QUICK)
    seen = uqgan.fit(method, "moons", config=config)
    monkeypatch.setattr("uqgan.methods.uqgan.Health.measure", lambda *_: {})
    unseen = uqgan.fit(method, "moons", config=config)
    weights = unseen.record.predictor.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in seen.record.predictor.state_dict().items())
    assert [headline(row) for row in seen.record.log] == [headline(row) for row in unseen.record.log]


def test_every_validation_logs_the_health_of_each_class(tmp_path: Path) -> None:
    log = uqgan.fit("uqgan", "moons", folder=tmp_path, config=load_config("moons", overrides=QUICK)).record.log
    names = ["critic.distance", *(f"gradient.{net}" for net in "CGD"), *of_classes([0, 0], [0, 0])]
    assert len(log) == 3
    for row in log:
        assert [key for key in row if "." in key] == names
        assert list(headline(row)) == ["critic", "generator", "classifier", "accuracy"]
        assert min(row[f"gradient.{net}"] for net in "CGD") > 0


def test_names_with_dots_go_to_tensorboard_where_it_is_installed(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log = Log(tmp_path)
    log.write({"stage": "uqgan", "step": 1, "critic.distance": 1.0, "spread.12": 0.5})
    log.close()
    found = accumulators.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert found.Tags()["scalars"] == ["uqgan/critic.distance", "uqgan/spread.12"]


def test_only_the_last_third_of_training_is_warned_of_and_a_single_slip_is_forgiven() -> None:
    bad, good = of_classes([0.01, 1], [0.2, 1]), of_classes([1, 1], [1, 1])
    assert warnings([*rows(6, **bad), *rows(9, **good)[6:]], "ab") == []
    assert len(warnings([*rows(6, **good), *rows(9, **bad)[6:]], "ab")) == 2
    assert warnings([*rows(8, **good), *rows(9, **bad)[8:]], "ab") == []
    assert settled(rows(**bad), "out_of_class") == {0: 0.2, 1: 1}


def test_the_first_member_of_an_ensemble_stands_for_all() -> None:
    bad, good = rows(**of_classes([0.01], [1])), rows(**of_classes([1], [1]))
    ensemble = [row | {"member": k} for k, log in enumerate((bad, good)) for row in log]
    assert warnings(ensemble, "a") == warnings(bad, "a") != []
    assert shields.describe_health(ensemble, "a") == shields.describe_health(bad, "a")


def test_each_member_is_warned_of_its_own_faults() -> None:
    heard = io.StringIO()
    log = Log(console=Console(file=heard))
    log.rows = [row | {"member": k} for k, spread in enumerate((1, 0.04)) for row in rows(**of_classes([spread], [1]))]
    say_warnings(log.of_member(0, 0), "a")
    assert heard.getvalue() == ""
    say_warnings(log.of_member(1, 1), "a")
    assert "collapsed" in heard.getvalue()


def test_a_training_that_was_stopped_gives_no_warnings() -> None:
    heard = io.StringIO()
    log = Log(console=Console(file=heard))
    log.rows, log.stopped = rows(**of_classes([0.04], [1])), "stopped by hand"
    say_warnings(log, "a")
    assert heard.getvalue() == ""


def test_a_log_without_measurements_gives_no_warnings() -> None:
    assert warnings([], "ab") == []
    assert warnings([{"stage": "one_vs_all", "step": 1, "classifier": 0.1}], "ab") == []


def test_of_many_faults_the_worst_are_named_and_the_others_counted() -> None:
    names = [f"c{k}" for k in range(20)]
    sentences = warnings(rows(**of_classes([k / 200 for k in range(20)], [1.0] * 20)), names)
    assert [sentence.partition(" (")[0].split()[-1] for sentence in sentences[:5]] == [f"c{k}" for k in range(5)]
    assert sentences[5:] == ["shields of 15 more classes: collapsed too"]


def test_warnings_are_said_with_names_as_they_are() -> None:
    heard = io.StringIO()
    log = Log(console=Console(file=heard, width=40))
    log.rows = rows(**of_classes([0.04], [0.9]))
    say_warnings(log, ["[red]3[/]"])
    assert heard.getvalue() == (
        "generated examples that should surround class [red]3[/] (its shield) spread over 0.04 of the class's own "
        "width: collapsed (try a larger --uqgan.lambda-reg)\n"
    )


def test_the_bar_shows_losses_and_accuracy_only() -> None:
    heard = io.StringIO()
    log = Log(console=Console(file=heard, width=200, force_terminal=True))
    with log.bar("uqgan", 0, 1) as advance:
        log.write(rows(1, **of_classes([1.0], [1.0]))[0])
        advance()
    assert "accuracy 0.9" in heard.getvalue()
    assert "spread" not in heard.getvalue()
    assert "distance" not in heard.getvalue()


def test_losses_are_drawn_without_the_details() -> None:
    plain = [{key: value for key, value in row.items() if "." not in key} for row in rows()]
    assert curves.training_curves(rows(**of_classes([1.0], [1.0]))) == curves.training_curves(plain)


def test_ten_classes_get_a_line_each_and_more_of_them_a_band_and_their_lowest_rows() -> None:
    few = shields.describe_health(rows(**of_classes([1.0] * 10, [0.0] * 10)), [str(k) for k in range(10)])
    assert few is not None
    assert len(few["classes"]) == 10
    values = of_classes([1 + k for k in range(30)], [1 - k / 100 for k in range(30)])
    many = shields.describe_health(rows(**values), [str(k) for k in range(30)])
    assert many is not None
    assert [name for name, *_ in many["classes"]] == [str(k) for k in (*range(5), *range(25, 30))]
    assert len(many["curves"]["spread"]) < 2 * len(few["curves"]["spread"])


def test_a_log_of_one_measurement_or_of_none_can_be_shown() -> None:
    assert shields.describe_health(rows(1, **of_classes([0.0], [0.0])), ["a"]) is not None
    assert shields.describe_health(rows(1, **of_classes([0.5] * 11, [0.0] * 11)), "abcdefghijk") is not None
    assert shields.describe_health([{"stage": "uqgan", "step": 1, "critic": 1.0}], ["a"]) is None
