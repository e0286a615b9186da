"""Figures of the paper from runs: whole SVG and PNG files, a row per run, and a sentence where they cannot be drawn."""

import io
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from pages import chapter, small
from uqgan.cli import main
from uqgan.cli.figure import files_of
from uqgan.errors import UsageError
from uqgan.report.figures import panels_of, plane_figure, shields_figure, side_by_side, titles_of
from uqgan.report.plots import saved
from uqgan.run import Run


def run_of(method: str, task: str, seed: int = 0, **sections: object) -> Run:
    data = small(task)
    return Run(chapter(method, data, seed, resamples=0, **sections).record, data)


def test_figures_are_whole_and_the_same_bytes_each_time() -> None:
    for drawn in (plane_figure([run_of("uqgan", "moons")]), shields_figure([run_of("uqgan", "digits")], 3, 2)):
        svg, png = saved(drawn, "svg"), saved(drawn, "png")
        assert ET.fromstring(svg).tag.endswith("svg")
        assert Image.open(io.BytesIO(png)).width > 200
        assert (saved(drawn, "svg"), saved(drawn, "png")) == (svg, png)


def test_a_run_has_the_maps_that_its_method_gives() -> None:
    titles = {method: [panel.title for panel in panels_of(run_of(method, "moons"))] for method in ("uqgan", "entropy")}
    assert titles == {"uqgan": ["epistemic", "aleatoric", "foreignness", "generated"], "entropy": ["uncertainty"]}
    assert [panel.title for panel in panels_of(run_of("bayes", "moons"))] == ["epistemic", "aleatoric"]


def test_rows_are_named_by_what_differs() -> None:
    runs = [run_of("uqgan", "moons", uqgan={"lambda_reg": value}) for value in (0, 4)]
    assert titles_of(runs) == ["lambda_reg = 0", "lambda_reg = 4"]
    assert titles_of([runs[0], run_of("uqgan", "gaussians")])[0].startswith("moons\n")
    assert titles_of(runs[:1]) == ["uqgan"]


def test_pictures_stand_side_by_side_with_a_line_around_each() -> None:
    pictures = torch.rand(4, 3, 5, 6)
    strip = side_by_side(pictures)
    assert strip.shape == (7, 32, 3)
    assert torch.equal(strip[1:6, 9:15], pictures[1].permute(1, 2, 0))


def test_what_cannot_be_drawn_is_told() -> None:
    points, digits = run_of("uqgan", "moons"), run_of("uqgan", "digits")
    with pytest.raises(UsageError, match="samples are pictures"):
        plane_figure([digits])
    with pytest.raises(UsageError, match="samples are points"):
        shields_figure([points])
    with pytest.raises(UsageError, match="must be of one task"):
        shields_figure([digits, points])
    with pytest.raises(UsageError, match="makes no examples"):
        shields_figure([run_of("entropy", "digits")])


def test_a_name_without_an_ending_stands_for_both_files() -> None:
    assert files_of(Path("a.b/shields")) == {"a.b/shields.svg": "svg", "a.b/shields.png": "png"}
    assert files_of(Path("x.png")) == {"x.png": "png"}
    with pytest.raises(UsageError, match=r"must end in \.svg or \.png"):
        files_of(Path("x.pdf"))


def test_the_commands_write_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, task in (("toys", "moons"), ("shields", "digits")):
        run = run_of("uqgan", task)
        monkeypatch.setattr("uqgan.api.load", lambda *_, run=run: run)
        place = tmp_path / "figures" / kind
        monkeypatch.setattr(sys, "argv", ["uqgan", "figure", kind, "a-run", "-o", str(place), "-q"])
        main()
        assert {path.name for path in place.parent.glob(f"{kind}.*")} == {f"{kind}.svg", f"{kind}.png"}


def test_fewer_pictures_of_a_class_than_asked_for_are_shown() -> None:
    run = run_of("uqgan", "digits")
    few = Run(run.record, replace(run.task, test=run.task.test[torch.arange(6)]))
    assert saved(shields_figure([few], 8, 5), "png")
