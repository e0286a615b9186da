"""Pictures and sets of them, made up for tests."""

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from uqgan.cli import main
from uqgan.config import load_config
from uqgan.environment import circumstances
from uqgan.run import Run
from uqgan.runs import Plan, Record

REAL = "UQGAN_DATA"


def picture(seed: int, size: int = 28, channels: int = 1) -> Image.Image:
    shape = (size, size) if channels == 1 else (size, size, channels)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def write_set(
    root: Path,
    name: str,
    split: str,
    blobs: Sequence[bytes | None],
    labels: Sequence[Any],
    names: Sequence[str] | None,
    image: str = "image",
    label: str = "label",
    folder: str = "",
) -> Path:
    """A Parquet file in the layout of the hub."""
    column = pa.array(
        [{"bytes": blob, "path": None} for blob in blobs], pa.struct({"bytes": pa.binary(), "path": pa.string()})
    )
    table = pa.table({image: column, label: pa.array(labels)})
    if names is not None:
        features = {image: {"_type": "Image"}, label: {"names": list(names), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file = root / name.replace("-", "_") / folder / f"{split}-00000-of-00001.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file)
    return file


def write_random_set(
    root: Path, name: str, split: str, n: int, n_classes: int, seed: int, channels: int = 1, **kwargs: Any
) -> Path:
    blobs = [encoded(picture(seed + k, 32 if channels == 3 else 28, channels)) for k in range(n)]
    return write_set(
        root, name, split, blobs, [k % n_classes for k in range(n)], [str(k) for k in range(n_classes)], **kwargs
    )


def write_folder(root: Path, classes: Sequence[str] = ("cat", "dog"), n: int = 10, size: int = 20) -> Path:
    """ROOT/CLASS/K.png, every class with a colour of its own."""
    for k, name in enumerate(classes):
        folder = root / name
        folder.mkdir(parents=True)
        for i in range(n):
            tint = np.full((size, size, 3), 40) + np.eye(3, dtype=int)[k % 3] * 150
            noise = np.random.default_rng([100 * k + i, *root.name.encode()]).integers(0, 40, (size, size, 3))
            Image.fromarray((tint + noise).astype(np.uint8)).save(folder / f"{i}.png")
    return root


class Cli:
    """The command line in this process: status, standard output, standard error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys
        monkeypatch.setenv("COLUMNS", "200")

    def __call__(self, *words: object) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["uqgan", *map(str, words)])
        status = 0
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
        out, err = self.capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err


def untrained_run(task: str, method: str = "uqgan", classes: int = 2) -> Run:
    """A run with the weights it began with: all that predicting, generating and saving need."""
    config = load_config(task)
    names = tuple(str(k) for k in range(classes))
    plan = Plan(task, method, 0, (1, 32, 32) if task == "digits" else (2,), names, config)
    torch.manual_seed(0)
    return Run(Record(plan, plan.assemble(), [], circumstances(torch.device("cpu"), 0.0, None, {})))
