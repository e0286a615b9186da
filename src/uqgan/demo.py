"""The command `uqgan demo`: a few runs on embedded data, and a page about them."""

from pathlib import Path
from typing import Any

from rich.console import Console

from uqgan import api
from uqgan.errors import Interrupted
from uqgan.grid.cells import reason
from uqgan.report.page import Chapter, write_report
from uqgan.runs import finished, holds_run

RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gaussians": ("uqgan", "gaussians-overlap", {}),
    "digits": ("uqgan", "digits", {}),
    "digits-one-vs-all": ("one-vs-all", "digits", {}),
}
"""Folder → method, task, settings."""


def run_demo(folder: Path, console: Console) -> Path:
    """Train the runs that are not finished yet, write the page, and return its path."""
    chapters = []
    for step, (name, (method, task, settings)) in enumerate(RUNS.items(), 1):
        console.print(f"[{step}/{len(RUNS)}] {method} on {task}", markup=False)
        run = finish(folder / name, method, task, settings, console)
        outputs = run.outputs()
        chapters.append(Chapter(run.record, run.task, outputs, run.evaluate(outputs=outputs), run.decide))
    page = folder / "report.html"
    write_report(chapters, page, "uqgan demo")
    return page


def finish(folder: Path, method: str, task: str, settings: dict[str, Any], console: Console) -> api.Run:
    """Run in a folder, loaded if it is finished, otherwise trained to its end."""
    if finished(folder):
        return api.load(folder)
    try:
        return api.fit(method, task, folder=folder, resume=holds_run(folder), console=console, **settings)
    except Interrupted as error:
        where = reason(error).partition("; ")[0]
        raise Interrupted(f"{where}; the same command goes on", error.status - 128) from None
