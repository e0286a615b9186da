"""Facts to choose a method by: what it returns, what it costs and needs, and its reference."""

import json
from functools import cache
from importlib import resources
from typing import Any

from uqgan.methods import METHODS
from uqgan.uncertainty import returned

PAPERS = {
    "uqgan": "Oberdiek et al., NeurIPS 2022",
    "uqgan-mc": "Oberdiek et al., NeurIPS 2022",
    "one-vs-all": "Oberdiek et al., NeurIPS 2022",
    "max-softmax": "Hendrycks & Gimpel, ICLR 2017",
    "entropy": "Oberdiek et al., NeurIPS 2022",
    "bayes": "Blundell et al., ICML 2015",
    "mc-dropout": "Gal & Ghahramani, ICML 2016",
    "ensemble": "Lakshminarayanan et al., NIPS 2017",
    "confident": "Lee et al., ICLR 2018",
    "gen-sensoy": "Sensoy et al., AAAI 2020",
    "entropy-oracle": "Oberdiek et al., NeurIPS 2022",
    "ova-oracle": "Oberdiek et al., NeurIPS 2022",
    "uqgan-ensemble": "ours, not in the paper",
}
"""Publication that describes each method as it is implemented here."""


@cache
def costs() -> dict[str, Any]:
    """Costs of all methods as multiples of `max-softmax`, and the device of the measurement (benchmarks/costs.py)."""
    found: dict[str, Any] = json.loads((resources.files("uqgan.methods") / "costs.json").read_text())
    return found


def facts_of(name: str) -> dict[str, Any]:
    """Everything that `uqgan methods` prints about a method."""
    method = METHODS[name]
    aleatoric, epistemic = returned(method.reading)
    return {
        "name": name,
        "title": method.title,
        "aleatoric": aleatoric,
        "epistemic": epistemic,
        "cost": {**costs()["methods"][name], "measured_on": costs()["measured_on"]},
        "needs_outliers": method.sees_ood,
        "reference": PAPERS[name],
        "settings": list(method.sections),
        "reading": method.reading.__name__,
        "passes": method.passes,
        "members": method.members,
    }
