"""The benchmarks of grids run, on a task of no interest, and record what they promise."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from grids import cells_of, tiny

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("data"))


def recorded(name: str, file: Path, words: Sequence[str]) -> list[dict[str, Any]]:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *words, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    assert all(row[key] for row in rows for key in ("command", "commit", "device", "versions"))
    return rows


def test_cells_by_a_grid_and_one_after_another_end_with_the_same_scores(task: str, tmp_path: Path) -> None:
    words = ["sides", task, "--methods", "one-vs-all", "--seeds", "0", "--device", "cpu", "--workers", "1"]
    words += ["--folder", str(tmp_path / "runs"), "--one-vs-all.epochs", "2"]
    grid, alone = recorded("grid", tmp_path / "rows.json", words)
    assert (grid["side"], alone["side"]) == ("grid", "alone")
    assert grid["cells"] == alone["cells"] == 1
    for row in (grid, alone):
        assert row["runs_per_hour"] == pytest.approx(3600 / row["seconds"], rel=0.05)  # of rounded seconds
    one, other = (next(iter(row["scores"].values())) for row in (grid, alone))
    assert one["accuracy"] == other["accuracy"]
    seconds = (tmp_path / "runs" / "tiny.npz" / "alone" / "seconds.json").read_text()
    recorded("grid", tmp_path / "rows.json", words)
    assert (tmp_path / "runs" / "tiny.npz" / "alone" / "seconds.json").read_text() == seconds, "nothing ran again"


def test_one_worker_two_workers_and_the_time_between_cells(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import grid

    cells = cells_of(task, ["one-vs-all"], (0, 1))
    one, two, between = grid.compare_workers("workers", cells, done_cells=10, repeats=1)
    assert (one["workers"], two["workers"], between["cells"]) == (1, 2, 10)
    assert two["speedup"] == pytest.approx(one["seconds"][0] / two["seconds"][0], rel=0.5)
    assert 0 < between["ms_per_cell"] < 1000


@pytest.mark.parametrize("pandas", [False, True])
def test_tasks_are_timed_whether_or_not_ray_data_can_be(
    pandas: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    import cluster

    for name in ("load", "scoring_of", "pixel_format_of", "Sources", "chunk_size", "by_tasks", "by_data"):
        monkeypatch.setattr(cluster, name, MagicMock())
    monkeypatch.setattr(cluster, "find_spec", lambda _: "found" if pandas else None)
    found = cluster.scoring_seconds("127.0.0.1:1", Path("run"), Path("pictures"))
    assert set(found) == {
        f"{way}_{what}" for way in ("tasks", "data")[: 1 + pandas] for what in ("seconds_scoring", "rows")
    }
    assert ("needs pandas" in capsys.readouterr().out) != pandas
    assert cluster.shown(["predict", "--n", "9", "--json", "a.json"]) == "predict --n 9"
