"""Any network can be handed in as classifier."""

import io
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import uqgan
from uqgan.cli import main
from uqgan.config import Config, load_config
from uqgan.data.dataset import CHUNK
from uqgan.data.tasks import Task
from uqgan.errors import UsageError
from uqgan.health import PER_CLASS
from uqgan.methods import METHODS
from uqgan.models.user import UserClassifier
from uqgan.networks import Networks

SMALL = {
    "uqgan": {"iterations": 3, "batch_size": 16, "critic_steps": 1, "classifier_steps": 2, "validate_every": 1},
    "one_vs_all": {"epochs": 2, "batch_size": 64},
    "cross_entropy": {"epochs": 2, "batch_size": 64},
    "mc_dropout": {"epochs": 2, "batch_size": 64},
    "bayes": {"epochs": 2, "batch_size": 64},
    "confident": {"epochs": 2, "batch_size": 64},
    "gen": {"epochs": 2, "batch_size": 64, "autoencoder_steps": 2},
    "oracle": {"epochs": 2, "batch_size": 64},
}
QUICK = load_config("moons", overrides=SMALL)


class MyNet(nn.Module):
    """For points, with dropout and batch norm."""

    def __init__(self, n_classes: int = 2, width: int = 16) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x))


class Pictures(nn.Module):
    """For digits, with batch norm, and with `view`, which minds how images lie in memory."""

    def __init__(self, flat: Callable[[Tensor], Tensor] = lambda x: x.view(len(x), -1)) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3, 4, 1))
        self.flat, self.head = flat, nn.Linear(128, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.flat(self.features(x)))


class Watched(nn.Module):
    """Remembers the mode and size of every batch."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.layers, self.seen = nn.Sequential(norm, nn.Linear(2, 2)), []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(("train" if self.training else "eval", len(x)))
        return self.layers(x)


def small_task(name: str) -> Task:
    task, few = uqgan.load_task(name), torch.arange(193)  # three batches of 64 and one sample
    return replace(task, train=task.train[few], validation=task.validation[few[:40]], test=task.test[few[:60]])


@pytest.fixture(scope="module")
def moons() -> Task:
    return small_task("moons")


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}


def users_net(member: Networks) -> nn.Module:
    """The copy of the user-supplied network, whatever a recipe put around it."""
    (wrapper,) = (module for module in member.modules() if isinstance(module, UserClassifier))
    return wrapper.net


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def watch_starts(method: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """The weights that each training of the method will start from."""
    recipe, starts = METHODS[method].recipe, []
    fit = recipe.fit

    def watched(nets: Networks, *rest: Any) -> None:
        starts.append(weights_of(users_net(nets)))
        fit(nets, *rest)

    monkeypatch.setattr(recipe, "fit", watched)
    return starts


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_copies_of_it_from_its_weights(
    method: str, moons: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, starts = MyNet(), watch_starts(method, monkeypatch)
    before = weights_of(net)
    first, second = (uqgan.fit(method, moons, classifier=net, config=QUICK) for _ in range(2))
    assert [same(start, before) for start in starts] == [j == 0 for j in range(METHODS[method].members)] * 2
    assert same(weights_of(net), before)
    assert net.training
    assert same(weights_of(first.record.predictor), weights_of(second.record.predictor))
    for member in first.record.predictor.members:
        trained = weights_of(users_net(member))
        assert trained.keys() == before.keys()
        assert not same(trained, before)
    assert first.predict(moons.test.x[:7]).probs.shape == (7, 2)


@pytest.mark.parametrize("method", ["ensemble", "uqgan-ensemble"])
def test_members_of_an_ensemble_start_apart_but_for_what_is_frozen_or_cannot_be_drawn(
    method: str, moons: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, heard = MyNet(), io.StringIO()
    net.frozen, net.shift = nn.Linear(2, 2).requires_grad_(False), nn.Parameter(torch.randn(2))
    net.hidden[1].weight.data.normal_()  # as after a training
    starts = watch_starts(method, monkeypatch)
    uqgan.fit(method, moons, classifier=net, config=QUICK, console=Console(file=heard, width=200))
    first, *others = starts
    assert same(first, weights_of(net))
    for key in first:
        drawn = len({tuple(start[key].flatten().tolist()) for start in starts})
        assert drawn == (5 if key.startswith(("hidden.0", "head")) else 2 if key == "hidden.1.weight" else 1), key
    assert all((start["hidden.1.weight"] == 1).all() for start in others)
    said = "MyNet: no reset_parameters draws 1 weight anew, such as shift: equal at the start of all members"
    assert heard.getvalue().count(f"classifier = {said}\n") == heard.getvalue().count("equal at the start") == 1


def test_a_networks_own_start_comes_after_those_of_its_layers_and_leaves_frozen_weights_alone() -> None:
    class Own(MyNet):
        def reset_parameters(self) -> None:
            nn.init.constant_(self.head.weight, 7.0)

    net = UserClassifier(Own(), (2,), 2)
    assert net.start_anew() == []
    assert (net.net.head.weight == 7).all()
    net.net.head.requires_grad_(False).weight.fill_(3.0)
    before = weights_of(net.net)
    net.start_anew()
    changed = [key for key, value in net.net.named_parameters() if not torch.equal(value, before[key])]
    assert changed == ["hidden.0.weight", "hidden.0.bias"]


def test_weights_that_reset_parameters_does_not_reach_are_named() -> None:
    net = UserClassifier(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), (2,), 2)
    assert net.start_anew() == ["parametrizations.weight.original0", "parametrizations.weight.original1"]


@pytest.mark.parametrize("method", METHODS)
def test_a_saved_run_comes_back_bit_for_bit_with_it(method: str, moons: Task, tmp_path: Path) -> None:
    run = uqgan.fit(method, moons, classifier=MyNet(), folder=tmp_path, config=QUICK)
    loaded = uqgan.load(tmp_path, classifier=MyNet())
    before, after = (each.predict(moons.test.x[:9], seed=1) for each in (run, loaded))
    for score in ("probs", "aleatoric", "epistemic", "foreignness"):
        assert torch.equal(getattr(before, score), getattr(after, score))
    assert loaded.record.plan == run.record.plan
    saved = (tmp_path / "config.yaml").read_text()
    assert "\ncustom_classifier: MyNet\nsettings:\n  classifier: custom\n" in saved


@pytest.mark.parametrize(("flat", "taken"), [(lambda x: x.view(len(x), -1), False), (lambda x: x.flatten(1), True)])
def test_pictures_may_lie_in_memory_as_it_likes(flat: Callable[[Tensor], Tensor], taken: bool, tmp_path: Path) -> None:
    digits = small_task("digits")
    settings = SMALL | {"precision": "bf16", "autoencoder": {"epochs": 1, "batch_size": 64, "dim": 4}}
    run = uqgan.fit(
        "uqgan", digits, classifier=Pictures(flat), folder=tmp_path, config=load_config("digits", overrides=settings)
    )
    assert run.record.predictor.members[0].classifier.takes_channels_last is taken
    out, again = (r.predict(digits.test.x[:9]) for r in (run, uqgan.load(tmp_path, classifier=Pictures(flat))))
    assert out.probs.dtype == torch.float32
    assert torch.equal(out.probs, again.probs)


class Odd(MyNet):
    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(super().forward(x))


@pytest.mark.parametrize(
    ("net", "sentence"),
    [
        (MyNet(10), "gives shape (2, 10) for 2 classes: must give one logit per class (change its last layer)"),
        (Odd(lambda logits: (logits, None)), "classifier = Odd: gives a tuple for 2 classes"),
        (Odd(lambda logits: logits.long()), "classifier = Odd: gives a tensor of torch.int64 for 2 classes"),
        (nn.Linear(3, 2), "classifier = Linear: fails on inputs of shape (2, 2) (RuntimeError: mat1 and mat2 shapes"),
        (nn.Identity(), "classifier = Identity: has no weights to train (give it parameters that require gradients)"),
        (MyNet().requires_grad_(False), "classifier = MyNet: has no weights to train"),
        (MyNet, "MyNet'>: must be an nn.Module, already built (MyNet(), not MyNet)"),
        ("lent", "classifier = 'lent': must be one of 'mlp', 'lenet', 'resnet' or 'custom'"),
        ("custom", "classifier = custom: needs your network (in Python: uqgan.fit(…, classifier=MyNet()))"),
    ],
)
def test_what_cannot_be_one_is_refused_before_anything_is_touched(net: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        uqgan.fit("uqgan", "moons", classifier=net, folder=tmp_path / "run")
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_copied_is_refused(moons: Task) -> None:
    net = nn.Linear(2, 2)
    net.cached = net.weight * 2  # no leaf, so that PyTorch refuses to copy it
    with pytest.raises(UsageError, match=r"classifier = Linear: cannot be copied \(RuntimeError: Only Tensors"):
        uqgan.fit("uqgan", moons, classifier=net)


def test_it_goes_with_a_config_whose_autoencoder_must_fit_still(moons: Task) -> None:
    run = uqgan.fit("uqgan", moons, config=load_config("moons", overrides=SMALL), classifier=MyNet())
    assert run.record.plan.config.classifier == "custom"
    with pytest.raises(UsageError, match=r"autoencoder\.kind = small: does not take inputs of shape \(2,\)"):
        uqgan.fit("uqgan", moons, config=Config(classifier="custom", autoencoder={"kind": "small"}), classifier=MyNet())
    with pytest.raises(UsageError, match="classifier = custom: needs your network"):
        uqgan.fit("uqgan", moons, config=Config(classifier="custom"))


def test_its_dropout_stays_on_in_prediction_only_where_passes_are_drawn(moons: Task) -> None:
    def same_for_two_seeds(method: str) -> bool:
        run = uqgan.fit(method, moons, classifier=MyNet(), config=QUICK)
        first, second = (run.predict(moons.test.x[:7], seed).probs for seed in (1, 2))
        return torch.equal(first, second)

    assert same_for_two_seeds("uqgan")
    assert not same_for_two_seeds("uqgan-mc")


@pytest.mark.parametrize("net", [nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.0), nn.Linear(2, 2))])
def test_a_method_that_draws_passes_refuses_one_without_dropout(net: nn.Module, moons: Task) -> None:
    with pytest.raises(UsageError, match=r"has no dropout to draw from \(put nn\.Dropout in, or take a method without"):
        uqgan.fit("uqgan-mc", moons, classifier=net)


# Once trained, what it says of validation samples (for the temperature) and of the 10,000 calibration samples is kept.
AFTERWARDS = [("eval", 40), *[("eval", CHUNK)] * 5]


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(2), nn.Identity()])
def test_real_and_generated_samples_pass_it_together(norm: nn.Module, moons: Task) -> None:
    run = uqgan.fit("uqgan", moons, classifier=Watched(norm), config=QUICK)
    seen = run.record.predictor.members[0].classifier.net.seen
    # Generator, two classifier steps, validation, health.
    an_iteration = [("eval", 16), *[("train", 32)] * 2, ("eval", 40), ("eval", 2 * PER_CLASS)]
    assert seen[1:] == an_iteration * 3 + AFTERWARDS


@pytest.mark.parametrize(
    ("method", "a_step"),
    [
        ("confident", [("eval", 64), ("train", 128)]),  # generator, classifier
        ("gen-sensoy", [("train", 128)]),
        ("entropy-oracle", [("train", 64)]),
        ("ova-oracle", [("train", 64)]),
    ],
)
def test_known_and_foreign_samples_pass_it_together_in_every_method(
    method: str, a_step: list[tuple[str, int]], moons: Task
) -> None:
    """Half of an oracle's batch is known, half foreign."""
    run = uqgan.fit(method, moons, classifier=Watched(nn.BatchNorm1d(2)), config=QUICK)
    seen = run.record.predictor.members[0].classifier.net.seen
    assert seen[1 : 1 + 3 * len(a_step)] == a_step * 3


def test_the_supervised_loop_trains_and_validates_in_the_right_mode(moons: Task) -> None:
    run = uqgan.fit("one-vs-all", moons, classifier=Watched(nn.BatchNorm1d(2)), config=QUICK)
    seen = run.record.predictor.members[0].classifier.net.seen
    epoch = [("train", 64)] * 3 + [("eval", 1), ("eval", 40)]  # a single sample has no batch statistics
    assert seen[1:] == epoch * 2 + AFTERWARDS


@pytest.mark.parametrize("method", ["uqgan", "bayes"])
def test_weights_that_were_frozen_stay_frozen(method: str, moons: Task) -> None:
    net = MyNet()
    net.hidden[0].requires_grad_(False)
    trained = users_net(uqgan.fit(method, moons, classifier=net, config=QUICK).record.predictor.members[0])
    assert torch.equal(trained.hidden[0].weight, net.hidden[0].weight)
    assert not torch.equal(trained.head.weight, net.head.weight)


@pytest.mark.parametrize("method", ["uqgan", "bayes"])
def test_tied_weights_can_be_saved(method: str, moons: Task, tmp_path: Path) -> None:
    def tied() -> nn.Module:
        net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        net[2].weight = net[0].weight
        return net

    run = uqgan.fit(method, moons, classifier=tied(), folder=tmp_path, config=QUICK)
    loaded = uqgan.load(tmp_path, classifier=tied())
    assert torch.equal(run.predict(moons.test.x).probs, loaded.predict(moons.test.x).probs)


@pytest.mark.parametrize("method", ["uqgan", "entropy"])
def test_a_run_out_of_time_goes_on_to_the_same_weights_and_statistics(method: str, moons: Task, tmp_path: Path) -> None:
    net = MyNet()

    def fit(**place: Any) -> dict[str, Tensor]:
        return weights_of(uqgan.fit(method, moons, classifier=net, **place, config=QUICK).record.predictor)

    whole = fit()
    if method == "uqgan":
        assert not same(fit(folder=tmp_path, max_minutes=1e-9), whole)
    else:
        with pytest.raises(uqgan.errors.RunFailed, match="stopped before the first validation"):
            fit(folder=tmp_path, max_minutes=1e-9)
    assert same(fit(folder=tmp_path, resume=True), whole)
    assert same(fit(folder=tmp_path, resume=True), whole)  # now finished, so loaded
    with pytest.raises(UsageError, match=r"other settings \(custom_classifier was MyNet, is Linear\)"):
        uqgan.fit(method, moons, classifier=nn.Linear(2, 2), folder=tmp_path, resume=True, config=QUICK)


@pytest.fixture(scope="module")
def custom_run(moons: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("custom")
    uqgan.fit("uqgan", moons, classifier=MyNet(), folder=folder, config=QUICK)
    return folder


def test_a_run_loaded_without_its_network_says_how_to_give_it(custom_run: Path) -> None:
    with pytest.raises(UsageError) as error:
        uqgan.load(custom_run)
    call = f'uqgan.load("{custom_run}", classifier=MyNet())'
    assert str(error.value) == f"run = {custom_run}: has a user-supplied classifier, MyNet (in Python: {call})"


@pytest.mark.parametrize("net", [MyNet(width=8), nn.Sequential(nn.Linear(2, 2))])
def test_a_network_that_the_weights_do_not_fit_is_refused(net: nn.Module, custom_run: Path) -> None:
    rule = r"does not take the weights in .* \(build MyNet as it was for training\)"
    with pytest.raises(UsageError, match=f"classifier = {type(net).__name__}: {rule}"):
        uqgan.load(custom_run, classifier=net)


def test_a_network_for_a_run_that_has_none_of_ones_own_is_refused(moons: Task, tmp_path: Path) -> None:
    uqgan.fit("one-vs-all", moons, folder=tmp_path, config=QUICK)
    with pytest.raises(UsageError, match=r"classifier = MyNet: that of .* is mlp \(leave it out\)"):
        uqgan.load(tmp_path, classifier=MyNet())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["evaluate", "RUN"], "has a user-supplied classifier, MyNet (in Python: "),
        (["report", "RUN"], "has a user-supplied classifier, MyNet (in Python: "),
        (["generate", "RUN", "--class", "0"], "has a user-supplied classifier, MyNet (in Python: "),
        (
            ["train", "moons", "--output", "RUN", "--resume"],
            "other settings (classifier was custom, is ",
        ),
        (["train", "moons", "--output", "RUN", "--classifier", "custom"], "classifier = custom: needs your network"),
    ],
)
def test_commands_about_it_end_in_one_sentence_and_status_2(
    words: list[str],
    sentence: str,
    custom_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["uqgan", *(str(custom_run) if word == "RUN" else word for word in words)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    err = capfd.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def test_the_example_of_the_docs_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "methods.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    monkeypatch.chdir(tmp_path)
    exec(example.replace("iterations=50", "iterations=2"), {})
