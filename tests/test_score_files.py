"""Metrics of raw scores in files are those of scikit-learn, on every committed file and on one of the largest size."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch import Tensor

from uqgan import paper
from uqgan.evaluation import Outputs, ranking, scores, set_names
from uqgan.uncertainty import Prediction

RESULTS = Path(__file__).parent.parent / "results"
FILES = sorted(RESULTS.rglob("seed-*.npz"))
SCORES = {"sets": "epistemic", "foreignness": "foreignness"}


def prediction(n: int, shift: float) -> Prediction:
    """Saturated scores with many ties, as trained classifiers give."""
    epistemic = (4 * torch.randn(n) + shift).sigmoid()
    foreignness = (epistemic + 0.1 * torch.randn(n)).clamp(min=0)
    return Prediction((3 * torch.randn(n, 5)).softmax(1), torch.rand(n).round(decimals=3), epistemic, foreignness)


@pytest.fixture(scope="module")
def largest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 66,032 samples: the test side of CIFAR10 with all of the paper's OoD sets."""
    file = tmp_path_factory.mktemp("raw") / "raw.npz"
    ood = {name: prediction(n, 1.0 + k) for k, (name, n) in enumerate(paper.sizes("cifar10").items())}
    Outputs(torch.randint(5, (5000,)), prediction(5000, -1.0), ood).write(file)
    return file


def expected(score: Tensor, is_ood: Tensor) -> dict[str, float]:
    """The paper's columns by scikit-learn: the sign of the score says which class is the positive one."""
    out, flags = score.double().numpy(), is_ood.numpy()
    found = {"auroc": reference.roc_auc_score(flags, out)}
    for name, values, positive in (("in", -out, ~flags), ("out", out, flags)):
        precision, recall, _ = reference.precision_recall_curve(positive, values)
        found |= {f"aupr_{name}": reference.auc(recall, precision)}
        found |= {f"ap_{name}": reference.average_precision_score(positive, values)}
    for name, values, positive in (("id", -out, ~flags), ("ood", out, flags)):
        fpr, tpr, _ = reference.roc_curve(positive, values, drop_intermediate=False)
        found |= {f"fpr95_{name}_positive": fpr[np.argmax(tpr >= 0.95)]}
    return found


def check(file: Path) -> None:
    outputs = Outputs.read(file)
    found = scores(outputs)
    wrong = ~outputs.right
    assert found["accuracy"] == pytest.approx(
        reference.accuracy_score(outputs.y, outputs.test.probs.argmax(1)), abs=1e-9
    )
    sf = reference.roc_auc_score(wrong, outputs.test.aleatoric.double()) if wrong.any() and not wrong.all() else None
    assert found["auroc_sf"] == (None if sf is None else pytest.approx(sf, abs=1e-9))
    for key, column in SCORES.items():
        for name in set_names(outputs):
            assert found[key][name] == pytest.approx(expected(*ranking(outputs, column, name)), abs=1e-9)


def test_metrics_of_the_largest_setting_are_those_of_scikit_learn(largest: Path) -> None:
    check(largest)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(RESULTS)))
def test_metrics_of_committed_raw_scores_are_those_of_scikit_learn(file: Path) -> None:
    check(file)
