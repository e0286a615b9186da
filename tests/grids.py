"""A task so small that a cell takes a moment, and grids of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uqgan.grid.cells import Cell, plan_cells

QUICK: dict[str, Any] = {
    "cross_entropy.epochs": 1,
    "one_vs_all.epochs": 1,
    "autoencoder.epochs": 1,
    "uqgan.iterations": 2,
    "uqgan.batch_size": 8,
    "uqgan.validate_every": 1,
}
LONG = {"one_vs_all.epochs": 100_000}
"""A training that no test waits for."""


def tiny(folder: Path, name: str = "tiny", n: int = 120) -> str:
    """A task of two classes, dark and bright noise, by its path."""
    noise, y = np.random.default_rng(0), np.arange(n) % 2
    file = folder / f"{name}.npz"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(file, x=(noise.integers(0, 120, (n, 16, 16)) + 100 * y[:, None, None]).astype(np.uint8), y=y)
    return str(file)


def cells_of(task: str, methods: Sequence[str], seeds: Sequence[int] = (0,), **changed: Any) -> list[Cell]:
    """Cells that take a moment each."""
    read = {name.replace("__", "."): value for name, value in changed.items()}
    return [cell for method in methods for cell in plan_cells([task], [method], seeds, [_own(method) | read])]


def _own(method: str) -> dict[str, Any]:
    from uqgan.methods import METHODS

    return {key: value for key, value in QUICK.items() if key.partition(".")[0] in METHODS[method].sections}


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    """When each file below a folder was written, and what it holds."""
    files = [file for file in root.rglob("*") if file.is_file()]
    return {str(file.relative_to(root)): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}
