"""The page: whole, alone, honest about its numbers, and deaf to what names contain."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from markupsafe import escape
from rich.console import Console

from pages import LOG, Page, chapter, small
from uqgan import demo
from uqgan.decisions import WORDS, Decisions
from uqgan.errors import UsageError
from uqgan.evaluation import evaluate, ranking
from uqgan.health import warnings
from uqgan.methods import METHODS
from uqgan.metrics import paired_bootstrap
from uqgan.report import curves, plots
from uqgan.report.galleries import SHOWN, galleries, shares
from uqgan.report.page import Chapter, clearly_best, heat_maps, percent, render, write_report
from uqgan.run import Run
from uqgan.uncertainty import Prediction

ODD = ("$\\frac{", "猫")
"""What would trip a figure that drew it."""
HEALTH = {"critic.distance": 1.0, "gradient.C": 0.1, "gradient.G": 0.2, "gradient.D": 0.3}
HEALTH |= {"spread.0": 2.0, "spread.1": 0.04, "out_of_class.0": 1.0, "out_of_class.1": 0.25}


def decide(found: Prediction) -> Decisions:
    """The words in turn, and the number of the sample as its p-value; the two most probable classes are plausible."""
    n = len(found.probs)
    sets = torch.zeros_like(found.probs, dtype=torch.bool).scatter(1, found.probs.topk(2).indices, True)
    words = tuple(WORDS[k % 3] for k in range(n))
    reasons = tuple("because <so>" if word == "ambiguous" else "" for word in words)
    return Decisions(torch.arange(n) / 1000, torch.zeros(n) > 0, words, reasons, sets, sets, "why <so>")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figures, for tests of words: drawing takes most of the time."""
    for name in ("heat_map", "density_map", "gap_map", "reliability_diagram", "histograms"):
        monkeypatch.setattr(plots, name, lambda *_: "<svg/>")
    for name in ("training_curves", "distance_curve", "gradient_curves", "class_curves"):
        monkeypatch.setattr(curves, name, lambda *_: "<svg/>")


@pytest.fixture(scope="module")
def chapters() -> list[Chapter]:
    """Interleaved on purpose: the page has to sort them."""
    plane, digits = replace(small("gaussians-overlap"), class_names=ODD), small("digits")
    return [
        chapter("uqgan", plane),
        replace(chapter("uqgan", digits), decisions=decide),
        chapter("uqgan", plane, uqgan={"lambda_reg": 0}, one_vs_all={"epochs": 7}),
        replace(chapter("one-vs-all", digits), decisions=decide),
    ]


@pytest.fixture(scope="module")
def html(chapters: list[Chapter]) -> str:
    return render(chapters, "All & sundry")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_page_is_whole_html_and_every_picture_has_words(html: str, page: Page) -> None:
    assert html.lstrip().startswith("<!DOCTYPE html>")
    assert html.count("All &amp; sundry") == 2
    assert page.missing_alt == 0


def test_the_page_asks_for_nothing_from_outside(html: str, page: Page) -> None:
    assert {address.partition(":")[0] if address[0] != "#" else "#" for address in page.addresses} == {"data", "#"}
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert "@import" not in html
    assert "url(" not in html.partition("<body>")[0]


def test_every_link_leads_to_a_place_on_the_page(html: str, page: Page) -> None:
    assert all(f'id="{address[1:]}"' in html for address in page.addresses if address.startswith("#"))


def test_a_planar_and_an_image_run_get_all_their_sections(html: str, page: Page) -> None:
    planes, pictures, plane, second, one_vs_all, digits = re.split(r'<section (?:class="run" )?id="', html)[1:-1]
    for caption in ("Epistemic:", "Aleatoric:", "Aleatoric × (1", "Foreignness", "Density", "Error of p̂"):
        assert all(re.search(f"<figcaption>(<abbr[^>]*>)?{re.escape(caption)}", part) for part in (planes, second))
    for name in ("Accept", "Ambiguous", "Unknown", "(false alarms)", "(missed)"):
        assert name in pictures
    for name in ("Generated <abbr", "What the autoencoder keeps"):
        assert name in digits
        assert name not in one_vs_all
    for section in (plane, digits):
        for name in ("Reliability", "Stage autoencoder", "Stage uqgan", "Settings, versions, command", "lambda_real"):
            assert name in section
    assert page.headings[-1] == "Glossary"


def test_runs_of_a_task_stand_together_and_are_named_by_what_differs_and_matters(page: Page) -> None:
    assert [name for name in page.headings if ":" in name and "0-4" not in name] == [
        "gaussians-overlap: uqgan, lambda_reg = 32",
        "gaussians-overlap: uqgan, lambda_reg = 0",
        "digits: one-vs-all",
        "digits: uqgan",
    ], "methods in the order of the leaderboard"


def test_the_numbers_of_the_table_are_those_that_were_found(chapters: list[Chapter], page: Page) -> None:
    scores, intervals = (chapters[1].found[key] for key in ("scores", "intervals"))
    names = ("accuracy", "auroc_sf", "ece")
    assert ["uqgan", "0", *(percent(scores[name], intervals[name])[0] for name in names)] in page.rows
    for name in ("all", *chapters[1].outputs.ood):
        columns = [("sets", key) for key in ("auroc", "aupr_in", "aupr_out", "fpr95_id_positive", "fpr95_ood_positive")]
        expected = [
            percent(scores[place][name][key], intervals[place][name][key])[0]
            for place, key in [*columns, ("foreignness", "auroc")]
        ]
        assert ["uqgan", *expected] in page.rows


def test_two_runs_of_a_task_are_compared_on_the_same_resamples(chapters: list[Chapter], page: Page) -> None:
    score, is_ood = ranking(chapters[3].outputs, "epistemic", "noise")
    result = paired_bootstrap(score, ranking(chapters[1].outputs, "epistemic", "noise")[0], is_ood)
    row = next(row for row in page.rows if row[:2] == ["uqgan", "noise"])
    assert row[2:4] == [f"{100 * result.difference.estimate:+.2f}", f"{result.p_value:.3f}"]
    assert row[4] == "no difference shown" or result.p_value < 0.05


def test_the_leaderboard_and_the_paired_comparison_have_the_same_p_value(page: Page) -> None:
    leaders = [row for row in page.rows if len(row) == 8 and row[1] == "1"]
    paired = {row[0]: row[3] for row in page.rows if row[1:2] == ["all"]}
    assert [row[-1] for row in leaders if row[0] in paired] == list(paired.values())
    assert paired


def test_rendering_repeats_byte_for_byte_and_takes_nothing_from_the_callers_randomness(
    chapters: list[Chapter], html: str
) -> None:
    before = torch.get_rng_state()
    assert all(str(escape(picture)) in html for picture in heat_maps(chapters[0]).values())
    assert render(chapters[1:2], "again") == render(chapters[1:2], "again")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_page_of_four_runs_is_small(html: str) -> None:
    assert len(html.encode()) < 1_500_000


@pytest.mark.usefixtures("plain")
def test_names_are_shown_as_they_are_and_never_obeyed() -> None:
    task, evil = small("digits", 20), '"><img src=x onerror=alert(1)>'
    names = ("<u>class</u>", "größe → 猫", "$x_1$", "{{ 7 * 7 }}", "&amp;")
    task = replace(task, title="<script>", class_names=names, ood={evil: task.ood["noise"][:20]})
    html = render([chapter("one-vs-all", task, resamples=5), chapter("uqgan", task, resamples=5)], "<s>title</s>")
    page = Page(html)
    assert not {"script", "u", "s"} & set(page.tags)
    for name in (*names, evil, "<script>", "<s>title</s>"):
        assert name in page.words
    assert all(address.startswith(("data:", "#")) for address in page.addresses)


def test_class_names_need_no_font_and_no_mathematics(page: Page) -> None:
    assert all(name in page.words for name in ODD)


@pytest.mark.usefixtures("plain")
def test_an_undefined_score_is_a_dash_with_a_reason() -> None:
    one = chapter("one-vs-all", small("digits"))
    outputs = replace(one.outputs, y=one.outputs.test.labels)
    page = Page(render([replace(one, outputs=outputs, found=evaluate(outputs, 20))], "faultless"))
    row = next(row for row in page.rows if row[:2] == ["one-vs-all", "0"])
    assert row[2:4] == ["100.00", "–"]
    assert "undefined" in page.words


@pytest.mark.usefixtures("plain")
def test_scores_without_intervals_and_tasks_without_outliers_can_be_shown() -> None:
    task = replace(small("digits"), ood={})
    page = Page(render([chapter("entropy", task, resamples=0)], "bare"))
    assert "Known against out-of-distribution" not in page.words
    assert not any(" to " in cell for row in page.rows for cell in row)


@pytest.mark.usefixtures("plain")
def test_a_method_with_one_uncertainty_gets_one_map() -> None:
    html = render([chapter("max-softmax", small("moons"), resamples=0)], "one map")
    assert html.count("<figcaption>Uncertainty. This method has one") == 1
    assert "<figcaption>Epistemic:" not in html


@pytest.mark.usefixtures("plain")
def test_runs_on_different_samples_are_not_compared() -> None:
    pair = [chapter("one-vs-all", small("moons", n), resamples=0) for n in (30, 40)]
    page = Page(render(pair, "apart"))
    assert "Paired comparison" not in page.words
    assert "different samples" in page.words


def test_the_best_is_marked_only_where_intervals_lie_apart() -> None:
    found = [{"intervals": {"ece": ends}} for ends in ([0.1, 0.2], [0.3, 0.4], [0.35, 0.5])]
    assert clearly_best(found, ("ece",), more_is_better=False) == 0
    assert clearly_best(found, ("ece",), more_is_better=True) is None
    assert clearly_best(found[:1], ("ece",), more_is_better=True) is None
    assert clearly_best([*found, {"intervals": {}}], ("ece",), more_is_better=False) is None


def test_digits_follow_the_width_of_the_interval() -> None:
    assert percent(0.98765, [0.97, 0.99]) == ("98.8", "97.0 to 99.0")
    assert percent(0.98765, [0.987, 0.988]) == ("98.77", "98.70 to 98.80")
    assert percent(0.5) == ("50.0", "")
    assert percent(None, None) == ("–", "")


@pytest.mark.usefixtures("plain")
def test_a_report_is_written_as_rendered(tmp_path: Path) -> None:
    one = chapter("one-vs-all", small("moons"), resamples=0)
    write_report([one], tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").read_text(encoding="utf-8") == render([one], "uqgan report")


@pytest.mark.usefixtures("plain")
def test_every_method_can_be_shown() -> None:
    task = replace(small("digits", 20), ood={"noise": small("digits").ood["noise"]})
    page = Page(render([chapter(method, task, resamples=0) for method in METHODS], "all"))
    assert sum(name.startswith("digits: ") for name in page.headings) == len(METHODS)


@pytest.mark.usefixtures("plain")
def test_an_ood_set_that_is_not_there_stands_in_the_table_as_left_out() -> None:
    whole = chapter("entropy", small("moons"))
    without = replace(whole, task=replace(whole.task, missing={"lsun": "not in <here>"}))
    assert "left out: not in &lt;here&gt;" in render([without], "title")
    assert "left out:" not in render([whole], "title")


@pytest.mark.usefixtures("plain")
def test_the_health_of_a_shield_is_shown_per_class_with_its_warnings() -> None:
    whole = chapter("uqgan", small("moons"), resamples=0)
    assert "Is the shield whole?" not in render([whole], "not measured")
    log = [row | HEALTH if row["stage"] == "uqgan" else row for row in LOG]
    page = Page(render([replace(whole, record=replace(whole.record, log=log))], "measured"))
    assert "Is the shield whole?" in page.headings
    first, second = whole.task.class_names
    assert [first, "2.00", "100"] in page.rows
    assert [second, "0.04", "25"] in page.rows
    assert all(sentence in page.words for sentence in warnings(log, (first, second)))
    assert "No warnings:" not in page.words
    healthy = [row | HEALTH | {"spread.1": 1.0, "out_of_class.1": 0.9} for row in LOG[1:]]
    assert "No warnings:" in render([replace(whole, record=replace(whole.record, log=healthy))], "healthy")


@pytest.mark.usefixtures("plain")
def test_reconstructions_stand_below_their_pictures_with_the_validation_loss() -> None:
    one = chapter("uqgan", small("digits"), resamples=0)
    page = Page(render([one], "pictures"))
    assert "What the autoencoder keeps" in page.headings
    assert "Validation loss: 0.600" in page.words
    unlogged = replace(one, record=replace(one.record, log=[]))
    assert "Validation loss" not in render([unlogged], "no log")
    assert "What the autoencoder keeps" not in render([chapter("uqgan", small("moons"), resamples=0)], "points")


@pytest.mark.parametrize("task", ["moons", "digits"])
@pytest.mark.parametrize("decisions", [decide, None])
@pytest.mark.usefixtures("plain")
def test_the_page_begins_with_a_picture_and_tables_follow(task: str, decisions: Any) -> None:
    tags = Page(render([replace(chapter("uqgan", small(task), resamples=0), decisions=decisions)], "order")).tags
    assert tags.index("img") < tags.index("table")
    assert tags[: tags.index("img")].count("p") < 6


@pytest.mark.usefixtures("plain")
def test_every_term_is_explained_where_it_stands_first() -> None:
    log = [row | HEALTH if row["stage"] == "uqgan" else row for row in LOG]
    terms = ["aleatoric", "epistemic", "Eq. 4", "foreignness", "shield", "out-of-class", "out-of-distribution"]
    terms += ["AUROC", "S/F", "FPR95", "ECE", "AUPR-In", "AUPR-Out"]
    for task in ("gaussians-overlap", "digits"):
        one = chapter("uqgan", small(task), resamples=0)
        for decisions in (decide, None):
            shown = replace(one, record=replace(one.record, log=log), decisions=decisions)
            texts = Page(render([shown], "terms")).texts
            for term in terms:
                text, explained = next(piece for piece in texts if re.search(rf"\b{term}\b", piece[0], re.IGNORECASE))
                assert explained, (task, term, text)


@pytest.mark.usefixtures("plain")
def test_one_is_singular() -> None:
    task = small("digits", 1)
    one = chapter("one-vs-all", replace(task, ood={"noise": task.ood["noise"][:1]}), resamples=0)
    words = Page(render([replace(one, decisions=decide)], "one")).words.replace("\xa0", " ")
    assert "1 test picture," in words
    assert "noise 1 picture\n" in words
    assert not re.search(r"(?<![\d.])1 (test )?(pictures|images|samples|points|classes|runs)\b", words)


def test_galleries_show_pictures_by_their_decision_from_the_first_to_the_last() -> None:
    one = chapter("one-vs-all", small("digits"), resamples=0)
    made = {None: decide(one.outputs.test)} | {name: decide(found) for name, found in one.outputs.ood.items()}
    found = galleries(one.task, one.outputs, made)
    assert list(found) == list(WORDS)
    for word, sides in found.items():
        assert [side["of"] for side in sides.values()] == [60, 120]
        assert [side["n"] for side in sides.values()] == [20, {"accept": 42, "ambiguous": 39, "unknown": 39}[word]]
        for side in sides.values():
            indices = [round(1000 * picture["p_value"]) for picture in side["pictures"]]
            assert len(indices) == SHOWN
            assert all(WORDS[k % 3] == word for k in indices)
    first, *_, last = found["accept"]["known"]["pictures"]
    assert (first["p_value"], last["p_value"]) == (0, pytest.approx(0.057))
    assert first["names"] == [one.task.class_names[k] for k in one.outputs.test.probs[0].topk(2).indices]
    assert {p["ood"] for p in found["unknown"]["foreign"]["pictures"]} == set(one.task.ood)


@pytest.mark.usefixtures("plain")
def test_shares_of_the_decisions_stand_in_a_table() -> None:
    one = replace(chapter("one-vs-all", small("digits"), resamples=0), decisions=decide)
    page = Page(render([one], "shares"))
    n = int(one.outputs.right.sum())
    counted = [sum(WORDS[k % 3] == word for k in one.outputs.right.nonzero().flatten().tolist()) for word in WORDS]
    assert ["known, predicted correctly", str(n), *(f"{100 * count / n:.1f}" for count in counted)] in page.rows
    assert ["noise", "40", "35.0", "32.5", "32.5"] in page.rows
    assert "why <so>" in page.words
    made = {None: decide(one.outputs.test)} | {name: decide(found) for name, found in one.outputs.ood.items()}
    assert all(sum(each.values()) == pytest.approx(1) for _, _, each in shares(one.outputs, made))


@pytest.mark.usefixtures("plain")
def test_without_decisions_the_galleries_are_called_what_they_are() -> None:
    def refuse(_: Prediction) -> Decisions:
        raise UsageError("calibration has 3 pictures: must have at least 19")

    one = chapter("one-vs-all", small("digits"), resamples=0)
    for decisions, reason in ((None, ""), (refuse, "calibration has 3 pictures")):
        page = Page(render([replace(one, decisions=decisions)], "ranked"))
        assert "Least epistemic uncertainty" in page.headings
        assert not {"Accept", "Ambiguous", "Unknown"} & set(page.headings)
        assert "Decisions, in percent" not in page.words
        assert reason in page.words
    least = galleries(one.task, one.outputs, {})["least"]["known"]["pictures"]
    expected = one.outputs.test.epistemic.sort().values[:SHOWN].tolist()
    assert [picture["epistemic"] for picture in least] == pytest.approx(expected)


@pytest.mark.usefixtures("plain")
def test_the_demos_page_begins_with_maps_and_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def untrained(folder: Path, method: str, task: str, *_: Any) -> Run:
        return Run(chapter(method, small(task), resamples=0).record, small(task))

    monkeypatch.setattr(demo, "finish", untrained)
    html = demo.run_demo(tmp_path, Console(file=io.StringIO())).read_text(encoding="utf-8")
    for part, picture in zip(html.split('<section id="task-')[1:], ("Map of the plane", "ROC: the share"), strict=True):
        assert part.index(picture) < part.index("<table")
    assert html.index("Leaderboard") < html.index("shelf accept")
