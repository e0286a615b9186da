"""Figures are the same bytes each time, stand for the values given, and leave Matplotlib as it was."""

import base64
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

import matplotlib as mpl
import numpy as np
import torch
from PIL import Image
from torch.testing import assert_close

from uqgan.metrics import reliability
from uqgan.report import curves, plots

FRAME = (-2.0, 2.0, -1.0, 1.0)
POINTS = plots.Points(torch.zeros(3, 2), torch.tensor([0, 1, 0]), torch.ones(2, 2), torch.tensor([0, 1]))
ROWS = [{"stage": "s", "step": 10 * k, "loss": 1 / k, "accuracy": a} for k, a in enumerate((0.5, 0.9, 0.9, 0.7), 1)]
HEALTH = [
    {"step": k, "critic.distance": 3 - k, "gradient.C": 1 / k, "gradient.G": 9.0, "gradient.D": 0.0}
    | {f"{kind}.{each}": each / 20 for kind in ("spread", "out_of_class") for each in range(n)}
    for k, n in ((1, 3), (2, 3))
]


def heat_map() -> str:
    return plots.heat_map(torch.linspace(0, 1, plots.CELLS**2), FRAME, "nats", 1.0, POINTS)


def rasters(svg: str) -> list[Image.Image]:
    found = re.findall(r'data:image/png;base64,([^"]+)', svg)
    return [Image.open(io.BytesIO(base64.b64decode(each))) for each in found]


def test_every_figure_is_well_formed_and_the_same_bytes_each_time() -> None:
    x, y = torch.randn(50, 2), torch.arange(50) % 2
    confidence, right = torch.linspace(0.3, 1, 50), torch.arange(50) % 3 > 0
    figures: list[Callable[[], str]] = [
        heat_map,
        lambda: plots.density_map(x, y, 2, FRAME, POINTS),
        lambda: plots.gap_map(x, y / 2, FRAME),
        lambda: curves.training_curves(ROWS),
        lambda: curves.distance_curve(HEALTH),
        lambda: curves.gradient_curves(HEALTH),
        lambda: curves.class_curves(HEALTH, "spread"),
        lambda: curves.class_curves(HEALTH, "out_of_class"),
        lambda: plots.reliability_diagram(reliability(confidence, right)),
        lambda: plots.histograms([confidence, confidence[:0], confidence / 2], "nats", 0.7),
    ]
    for draw in figures:
        svg = draw()
        assert ET.fromstring(svg).tag.endswith("svg")
        assert draw() == svg


def test_threads_draw_the_same_as_one_alone() -> None:
    with ThreadPoolExecutor(4) as pool:
        drawn = [job.result() for job in [pool.submit(heat_map) for _ in range(4)]]
    assert set(drawn) == {heat_map()}


def test_drawing_leaves_the_settings_of_matplotlib_alone() -> None:
    before = dict(mpl.rcParams)
    heat_map()
    assert dict(mpl.rcParams) == before


def test_a_heat_map_runs_from_white_to_the_orange_of_the_paper() -> None:
    top = rasters(plots.heat_map(torch.ones(plots.CELLS**2), FRAME, "nats", 1.0, POINTS))[0].convert("RGB")
    bottom = rasters(plots.heat_map(torch.zeros(plots.CELLS**2), FRAME, "nats", 1.0, POINTS))[0].convert("RGB")
    assert_close(np.array(top.getpixel((9, 9))), np.array((255, 144, 59)), atol=2, rtol=0)
    assert_close(np.array(bottom.getpixel((9, 9))), np.array((255, 255, 255)), atol=2, rtol=0)


def test_a_heat_map_is_small_because_its_points_and_colours_are_one_picture() -> None:
    svg = heat_map()
    assert len(rasters(svg)) == 2  # the map, and the colour bar
    assert len(svg) < 60_000


def test_cells_fill_the_frame_row_by_row_from_the_bottom() -> None:
    cells = plots.cells_of(FRAME)
    assert cells.shape == (plots.CELLS**2, 2)
    assert cells[0].tolist() == [-2, -1]
    assert cells[plots.CELLS - 1].tolist() == [2, -1]
    assert cells[-1].tolist() == [2, 1]


def test_the_frame_is_the_range_of_the_data_and_a_share_of_it_on_each_side() -> None:
    assert_close(plots.frame_around(torch.tensor([[0.0, 0], [10, 5]]), 0.2), (-2.0, 12.0, -1.0, 6.0))


def test_a_density_shows_even_a_clump_and_nothing_where_there_are_no_points() -> None:
    clump, labels = torch.zeros(20, 2), torch.zeros(20, dtype=torch.long)
    with_clump, without = (
        np.array(rasters(plots.density_map(clump, y, 1, FRAME, plots.Points(clump[:0], labels[:0])))[0].convert("L"))
        for y in (labels, labels + 7)
    )
    assert with_clump.min() < 200
    assert without.min() == 255


def test_classes_beyond_the_last_colour_start_anew() -> None:
    n = len(plots.CLASS_COLOURS)
    assert plots.colour_of(n) == plots.colour_of(0)
    assert len({plots.colour_of(k) for k in range(n)}) == n


def test_the_row_kept_has_the_best_validation_and_is_the_last_of_equals() -> None:
    assert curves.best_row(ROWS) == ROWS[2]
    assert curves.best_row([{"step": 1, "validation": 2.0}, {"step": 2, "validation": 1.0}]) == {
        "step": 2,
        "validation": 1.0,
    }
    assert curves.best_row([{"step": 1, "loss": 2.0}]) is None


def test_curves_of_a_stage_logged_once_or_by_several_members_can_be_drawn() -> None:
    assert "validation accuracy" in curves.training_curves(ROWS[:1])
    members = [row | {"member": k, "loss": row["loss"] + k} for k in range(2) for row in ROWS]
    both, first = curves.training_curves(members), curves.training_curves(members[: len(ROWS)])
    assert first == curves.training_curves(ROWS)
    assert both.count("clip-path") - first.count("clip-path") == 2  # a line more of the losses and of the accuracy


def test_rows_are_grouped_by_stage_and_by_member_in_the_order_they_come() -> None:
    rows = [{"stage": stage, "member": k} for stage in "ba" for k in (1, 0)]
    assert curves.group_by("stage", rows) == {"b": rows[:2], "a": rows[2:]}
    assert list(curves.group_by("member", rows)) == [1, 0]
    assert curves.group_by("member", ROWS) == {None: ROWS}


def test_pictures_keep_their_pixels_and_stand_side_by_side() -> None:
    grey = torch.randint(0, 256, (3, 1, 5, 4), dtype=torch.uint8)
    strip = torch.tensor(np.array(Image.open(io.BytesIO(plots.png(grey)))))
    assert strip.shape == (5, 3 * 4 + 2)
    assert torch.equal(strip[:, 5:9], grey[1, 0])
    colour = torch.rand(1, 3, 6, 6)
    again = np.array(Image.open(io.BytesIO(plots.png(colour))))
    assert_close(torch.tensor(again).permute(2, 0, 1) / 255, colour[0], atol=0.003, rtol=0)


def test_a_data_address_gives_the_figure_back() -> None:
    svg = heat_map()
    kind, _, text = plots.data_uri(svg).partition(",")
    assert kind == "data:image/svg+xml;charset=utf-8"
    assert unquote(text) == svg
    assert not set(text) & set('"<>#\n')


def test_numbers_on_a_logarithmic_axis_are_plain() -> None:
    assert "mathdefault" not in curves.gradient_curves(HEALTH) + curves.class_curves(HEALTH, "spread")
