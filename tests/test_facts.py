"""What `uqgan methods` says of each method."""

import re
import sys

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from uqgan.cli import main
from uqgan.methods import METHODS
from uqgan.methods.facts import facts_of
from uqgan.uncertainty import RETURNS, UNITS, Prediction, Reading, entropy, returned


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_all_facts(name: str) -> None:
    facts = facts_of(name)
    for key in ("title", "aleatoric", "epistemic", "reference", "settings", "reading"):
        assert facts[key], key
    assert facts["cost"]["measured_on"]
    for key in ("training", "prediction"):
        assert facts["cost"][key] > 0
    assert re.search(r"(19|20)\d\d$|^ours", facts["reference"])


def test_dropout_passes_members_and_readings_are_those_of_the_paper() -> None:
    found = {name: (m.dropout, m.passes, m.members, m.reading.__name__) for name, m in METHODS.items()}
    assert found == {
        "uqgan": (0.0, 1, 1, "read_one_vs_all"),
        "uqgan-mc": (0.5, 50, 1, "read_one_vs_all"),
        "one-vs-all": (0.0, 1, 1, "read_one_vs_all"),
        "max-softmax": (0.0, 1, 1, "read_max_softmax"),
        "entropy": (0.0, 1, 1, "read_entropy"),
        "bayes": (0.0, 50, 1, "read_mutual_information"),
        "mc-dropout": (0.5, 50, 1, "read_entropy"),
        "ensemble": (0.0, 1, 5, "read_entropy"),
        "confident": (0.0, 1, 1, "read_entropy"),
        "gen-sensoy": (0.0, 1, 1, "read_dirichlet"),
        "entropy-oracle": (0.0, 1, 1, "read_entropy"),
        "ova-oracle": (0.0, 1, 1, "read_one_vs_all"),
        "uqgan-ensemble": (0.0, 1, 5, "read_one_vs_all"),
    }


@pytest.mark.parametrize("name", METHODS)
def test_it_needs_outliers_if_it_trains_on_them(name: str) -> None:
    assert facts_of(name)["needs_outliers"] is METHODS[name].sees_ood


def test_costs_are_multiples_of_max_softmax() -> None:
    cost = {name: facts_of(name)["cost"] for name in METHODS}
    assert cost["max-softmax"]["training"] == cost["max-softmax"]["prediction"] == 1
    assert cost["entropy"]["training"] == 1  # the same weights
    for one, ensemble in (("entropy", "ensemble"), ("uqgan", "uqgan-ensemble")):
        members = METHODS[ensemble].members
        assert cost[ensemble]["training"] == pytest.approx(members * cost[one]["training"], rel=0.4)  # both are rounded
    for name, method in METHODS.items():
        if method.passes > 1:
            assert cost[name]["prediction"] > 10


WORDS = {
    "entropy of p̂": lambda out, _: entropy(out.probs),
    "1 - max p̂": lambda out, _: 1 - out.probs.amax(1),
    "mean entropy": lambda _, logits: entropy(logits.softmax(-1)).mean(0),
    "mutual information": lambda out, logits: entropy(out.probs) - entropy(logits.softmax(-1)).mean(0),
    "Eq. 4": lambda out, logits: _eq_4(logits),
}
"""What the words stand for."""


def _eq_4(logits: Tensor) -> Tensor:
    """Eq. 4 as printed, with balanced classes."""
    n = logits.shape[-1]
    c = logits.double().sigmoid()
    within = c / ((2 - n) * c + n - 1)
    return 1 - (within.square().sum(-1) / within.sum(-1)).mean(0)


@pytest.mark.parametrize("reading", RETURNS, ids=lambda reading: reading.__name__)
def test_a_reading_returns_what_its_words_say(reading: Reading) -> None:
    logits = torch.randn(4, 20, 5, generator=torch.Generator().manual_seed(0))
    out: Prediction = reading(logits, torch.full((5,), 0.2))
    for value, words in zip((out.aleatoric, out.epistemic), RETURNS[reading], strict=True):
        assert_close(value.double(), WORDS[words](out, logits).double(), atol=1e-5, rtol=1e-4)


def test_words_have_their_units() -> None:
    assert set(RETURNS) == set(UNITS)
    for reading, units in UNITS.items():
        for words, unit in zip(returned(reading), units, strict=True):
            assert words == unit or words.endswith(f" ({unit})")


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "argv", ["uqgan", "methods"])
    main()
    lines = capfd.readouterr().out.splitlines()
    assert max(len(line.replace("\u0302", "").rstrip()) for line in lines) <= width
    for name in METHODS:
        assert sum(line.split()[:1] == [name] for line in lines) == 2  # once per table, not broken
        facts = facts_of(name)
        assert any(line.startswith(name) and facts["title"] in line for line in lines)
        assert any(line.startswith(name) and facts["aleatoric"] in line for line in lines)
