"""Raw scores on the disk: any metric can be computed from them without the model."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from uqgan.errors import UsageError
from uqgan.evaluation import Outputs, evaluate
from uqgan.uncertainty import Prediction


def prediction(n: int, spread: bool) -> Prediction:
    probs, others = torch.rand(n, 3).softmax(1), torch.rand(4, n)
    return Prediction(probs, *others[:3], spread=others[3] if spread else None)


def outputs(spread: bool = False) -> Outputs:
    ood = {"near": prediction(30, spread), "photo patches/2": prediction(50, spread)}
    return Outputs(torch.randint(3, (80,)), prediction(80, spread), ood)


@pytest.mark.parametrize("spread", [False, True])
def test_raw_scores_come_back_bit_for_bit(spread: bool, tmp_path: Path) -> None:
    found = outputs(spread)
    found.write(tmp_path / "raw.npz")
    read = Outputs.read(tmp_path / "raw.npz")
    assert torch.equal(read.y, found.y)
    assert list(read.ood) == list(found.ood)
    pairs = zip((read.test, *read.ood.values()), (found.test, *found.ood.values()), strict=True)
    for ours, theirs in pairs:
        for field in fields(Prediction):
            a, b = getattr(ours, field.name), getattr(theirs, field.name)
            assert (a is None and b is None) or torch.equal(a, b)
    assert evaluate(read, 20) == evaluate(found, 20)


def test_raw_scores_are_float32_whatever_the_predictions_are(tmp_path: Path) -> None:
    found = outputs()
    wide = replace(found.test, epistemic=found.test.epistemic.double())
    replace(found, test=wide).write(tmp_path / "raw.npz")
    with np.load(tmp_path / "raw.npz") as saved:
        assert {str(saved[key].dtype) for key in saved.files if key != "y"} == {"float32"}


@pytest.mark.parametrize("content", [None, b"", b"text", b"PK\x03\x04 cut off", "other arrays"])
def test_what_is_no_raw_scores_is_told_in_a_sentence(content: bytes | str | None, tmp_path: Path) -> None:
    file = tmp_path / "raw.npz"
    if content == "other arrays":
        np.savez(file, x=np.zeros(3))
    elif isinstance(content, bytes):
        file.write_bytes(content)
    with pytest.raises(UsageError, match="no such file" if content is None else "damaged, or no raw scores"):
        Outputs.read(file)
