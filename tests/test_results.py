"""Every figure that README and docs show is the one that results/ gives."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import numpy
import pytest

import make_causes
import make_settings
import make_tables
from uqgan.errors import UsageError
from uqgan.evaluation import Outputs, raw_digest, scores
from uqgan.methods import METHODS
from uqgan.paper.results import check_origin

ROOT = Path(__file__).parent.parent
RESULTS = sorted(path for path in (ROOT / "results").rglob("*") if path.is_file())
RAW = [path for path in RESULTS if path.suffix == ".npz"]
RUNS = [path for path in RESULTS if path.name.startswith("seed-") and path not in RAW]
METHOD_PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))
GUIDES = ["index", "methods", "data", "decide", "predict", "reproduce", "report", "scale", "api"]
PAGES = [*(f"{name}.md" for name in GUIDES), *(f"methods/{path.name}" for path in METHOD_PAGES)]
MEASURED = re.compile(
    r"(accuracy|AUROC|ECE|FPR95|epistemic|aleatoric)\b[^.\n]{0,40}?\d\.\d"  # a score
    r"|\d ± \d"
    r"|\d ?(ms|MB|GB|TFLOP)\b|\d (s|min) on\b|\d\.\d+ ?(s|%)\B"  # a time, a size, a share
    r"|Expected"
)


def load_generator(name: str, folder: str = "docs") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_results, make_methods = load_generator("make_results"), load_generator("make_methods")
retrain = load_generator("retrain", "benchmarks")


def test_the_page_is_what_the_results_give() -> None:
    for page, text in make_results.pages().items():
        assert page.read_text() == text, "run `make results`"
    assert set((ROOT / "docs" / "results").glob("*.md")) <= set(make_results.pages())
    site = (ROOT / "mkdocs.yml").read_text()
    assert all(f"{page.relative_to(ROOT / 'docs')}\n" in site for page in make_results.pages())


def test_the_costs_that_the_package_holds_are_what_the_results_give() -> None:
    assert make_methods.COSTS.read_text() == make_methods.costs(), "run `make results`"


@pytest.mark.parametrize(("ratio", "shown"), [(0.3, 0.3), (0.72, 1), (1.34, 1), (2.73, 3), (9.6, 10), (28.5, 30)])
def test_costs_are_rounded_to_one_figure(ratio: float, shown: float) -> None:
    assert make_methods.rounded(ratio) == shown


def test_every_method_has_a_page_in_the_overview_and_in_the_navigation() -> None:
    assert {path.stem for path in METHOD_PAGES} == set(METHODS)
    overview, site = (ROOT / "docs" / "methods.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for name in METHODS:
        assert f"| [`{name}`](methods/{name}.md) |" in overview
        assert f"- methods/{name}.md" in site


@pytest.mark.parametrize("page", METHOD_PAGES, ids=lambda path: path.stem)
def test_the_tables_on_the_page_of_a_method_are_those_of_the_program(page: Path) -> None:
    text = page.read_text()
    assert text == make_methods.filled(page.stem, text), "run `make results`"
    assert ("| dropout rate | 0.5 |" in text) == (METHODS[page.stem].dropout == 0.5)
    for file in re.findall(r"`(src/[^`]+)`", text):
        assert (ROOT / file).exists(), file
    headings = re.findall(r"^## (.*)", text, re.M)
    for heading in ("When to use it", "What it returns and needs", "Cost", "Settings", "Source"):
        assert heading in headings


def test_the_tables_of_the_readme_are_what_the_results_give() -> None:
    text = (ROOT / "README.md").read_text()
    assert text == make_results.readme(text), "run `make results`"


@pytest.mark.parametrize("page", [*(f"docs/{name}" for name in PAGES), "README.md", "CONTRIBUTING.md"])
def test_other_text_carries_no_measured_figures(page: str) -> None:
    text = (ROOT / page).read_text()
    text = re.sub(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", "", text, flags=re.S)
    assert not MEASURED.search(text), MEASURED.search(text)


@pytest.mark.parametrize("path", sorted((ROOT / "src/uqgan/settings").glob("*.yaml")), ids=lambda path: path.stem)
def test_headers_of_settings_carry_no_measured_figures(path: Path) -> None:
    comments = "\n".join(re.findall(r"#.*", path.read_text()))
    assert not MEASURED.search(comments), MEASURED.search(comments)


@pytest.mark.parametrize(
    "words",
    ["uqgan accuracy 99.70, AUROC of all OoD sets 98.6", "275 s on one H200", "epistemic at most 0.40", "98.99 ± 0.44"],
)
def test_a_measured_figure_is_recognised(words: str) -> None:
    assert MEASURED.search(words)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: str(path.relative_to(ROOT / "results")))
def test_a_run_is_recorded_with_its_conditions(path: Path) -> None:
    record = json.loads(path.read_text())
    check_origin(path, record)
    assert path == ROOT / "results" / record["task"] / record["method"] / f"seed-{record['seed']}.json"
    for key in ("scores", "settings", "versions", "device", "command", "commit"):
        assert record[key], key
    assert record["samples"] == "test"


@pytest.mark.parametrize("path", RAW, ids=lambda path: str(path.relative_to(ROOT / "results")))
def test_raw_scores_are_those_of_the_run_beside_them(path: Path) -> None:
    record, outputs = json.loads(path.with_suffix(".json").read_text()), Outputs.read(path)
    assert raw_digest(outputs) == record["raw_sha256"]
    flat = {"accuracy": scores(outputs)["accuracy"], "ece": scores(outputs)["ece"]}
    flat |= {name: each["auroc"] for name, each in scores(outputs)["sets"].items()}
    written = {"accuracy": record["scores"]["accuracy"], "ece": record["scores"]["ece"]}
    written |= {name: each["auroc"] for name, each in record["scores"]["sets"].items()}
    assert flat == pytest.approx(written, abs=1e-6)


def test_results_stay_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS) < 15e6


@pytest.mark.parametrize(
    "path", [path for path in RESULTS if path not in RAW], ids=lambda path: str(path.relative_to(ROOT / "results"))
)
def test_a_result_parses_and_is_used(path: Path) -> None:
    """By the page, or by a decision record that names it."""
    json.loads(path.read_text())
    assert not re.search(r"/(work|tmp|home|root)/", path.read_text())
    make_results.pages()
    records = "\n".join(record.read_text() for record in (ROOT / "docs" / "decisions").glob("*.md"))
    assert path in make_results.used or f"`{path.relative_to(ROOT)}`" in records


@pytest.fixture
def other_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Folder that the pages are made from in place of results/: two seeds of one method, one of another."""
    for method, seeds in {"uqgan": (0, 1), "entropy": (0,), "uqgan-ensemble": (0,)}.items():
        (tmp_path / "mnist" / method).mkdir(parents=True)
        for seed in seeds:
            record = json.loads((ROOT / "results" / "mnist" / "uqgan" / f"seed-{seed}.json").read_text())
            file = tmp_path / "mnist" / method / f"seed-{seed}.json"
            file.write_text(json.dumps(record | {"method": method, "seed": seed}))
    monkeypatch.setattr(make_tables, "RESULTS", tmp_path)
    return tmp_path


def first_cells(page: str) -> list[list[str]]:
    return [line.split(" | ")[:3] for line in page.splitlines() if line.startswith("| ")]


def test_any_methods_and_seeds_become_rows(other_results: Path) -> None:
    rows = first_cells(make_settings.page("mnist"))
    for row in (["| UQGAN", "paper", ""], ["| ", "ours", "2"], ["| Entropy", "paper", ""], ["| ", "ours", "1"]):
        assert row in rows
    assert ["| Ensemble of UQGANs (ours)", "ours", "1"] in rows
    assert ["| GEN", "paper", ""] in rows
    assert first_cells(make_settings.summary("mnist"))[2] == ["| UQGAN", "paper", ""]
    assert "Not run yet: uqgan-mc, one-vs-all" in make_settings.page("mnist")
    assert "Fewer seeds than 3, of UQGANs 5: uqgan (2), entropy (1)." in make_settings.page("mnist")


def test_a_task_that_the_paper_does_not_have_is_not_measured_by_it() -> None:
    digits, cifar = make_settings.page("digits"), make_settings.page("cifar10")
    for words in ("`uqgan reproduce", "smaller than the authors'"):
        assert words not in digits
        assert words in cifar


def test_sections_without_their_files_are_left_out(other_results: Path) -> None:
    assert make_settings.tasks() == ["mnist"]
    assert "## Speed" not in make_results.results()
    assert "digits" not in make_results.readme(f"{make_results.BEGIN}{make_results.END}")
    assert "## From" not in make_results.practice()
    assert not make_results.toys()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("studies/digits-regulariser.json", "facts.command"),
        ("studies/digits-regulariser.json", "facts.commit"),
        ("speed/costs.json", "commit"),
        ("speed/iteration.json", "commit"),
        ("speed/evaluation.json", "command"),
        ("backbones/digits-batch-uqgan.json", "commit"),
        ("toys/moons.json", "commit"),
        ("toys/moons.json", "seconds"),
        ("decisions/folder.json", "command"),
        ("mnist/retrained.json", "raw_sha256"),
        ("cifar100/uqgan-mc/seed-4711.json", "imported"),
    ],
)
def test_no_kind_of_result_is_shown_that_does_not_say_how_it_was_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, key: str
) -> None:
    monkeypatch.setattr(make_tables, "RESULTS", tmp_path)
    *place, last = key.split(".")
    (tmp_path / name).parent.mkdir(parents=True)
    for value in (None, [None], "missing"):
        tree = json.loads((ROOT / "results" / name).read_text())
        record = tree[-1] if isinstance(tree, list) else tree[place[0]] if place else tree
        record[last] = value
        if value == "missing":
            del record[last]
        (tmp_path / name).write_text(json.dumps(tree))
        with pytest.raises(UsageError, match=f"{name}: .*{last}"):
            make_tables.read(tmp_path / name)


def test_a_new_study_has_the_digest_of_each_points_raw_scores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(make_tables, "RESULTS", tmp_path)
    tree = json.loads((ROOT / "results/studies/digits-regulariser.json").read_text())
    file = tmp_path / "studies" / "mnist-regulariser.json"
    file.parent.mkdir()
    file.write_text(json.dumps(tree))
    with pytest.raises(UsageError, match="has no raw_sha256"):
        make_tables.read(file)
    file.write_text(json.dumps(tree | {"points": [point | {"raw_sha256": "0" * 64} for point in tree["points"]]}))
    assert make_tables.read(file)["task"] == "digits"


@pytest.mark.parametrize("key", ["command", "commit", "seconds", "raw_sha256"])
def test_a_record_that_does_not_say_how_it_was_made_is_refused(other_results: Path, key: str) -> None:
    file = other_results / "mnist" / "uqgan" / "seed-1.json"
    record = json.loads(file.read_text())
    for changed in (record | {key: None}, {name: value for name, value in record.items() if name != key}):
        file.write_text(json.dumps(changed))
        make_settings._reproduction.cache_clear()
        with pytest.raises(UsageError, match=f"has no {key}"):
            make_settings.page("mnist")


def test_an_imported_record_says_where_it_comes_from(other_results: Path) -> None:
    file = other_results / "mnist" / "uqgan" / "seed-1.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"imported": True}))
    with pytest.raises(UsageError, match="must say in words where it comes from"):
        make_settings.page("mnist")
    file.write_text(json.dumps(record | {"imported": "made elsewhere"}))
    make_settings._reproduction.cache_clear()
    assert "uqgan seed 1: made elsewhere." in make_settings.page("mnist")


def test_what_is_below_the_paper_is_listed_with_its_cause(other_results: Path) -> None:
    assert "| Entropy | AUROC MNIST 5-9" not in make_settings.page("mnist")
    file = other_results / "mnist" / "entropy" / "seed-0.json"
    record = json.loads(file.read_text())
    record["scores"]["accuracy"] = 0.9
    file.write_text(json.dumps(record))
    make_settings._reproduction.cache_clear()
    assert "| accuracy 90.00 (99.87 ± 0.02); " in make_settings.page("mnist").replace("| Entropy ", "", 1)
    assert "| not looked into |" in make_settings.page("mnist")
    (other_results / "causes.json").write_text(json.dumps({"mnist": {"entropy": "not known"}}))
    assert "| not known |" in make_settings.page("mnist")


def test_every_row_below_the_paper_has_a_cause() -> None:
    for task in make_settings.tasks():
        assert make_causes.NO_CAUSE not in make_settings.page(task), task


def test_figures_of_causes_are_those_of_the_results(other_results: Path) -> None:
    found = make_settings.reproduction("mnist")
    figures = make_causes.Figures(found)
    records = [json.loads((other_results / f"mnist/uqgan/seed-{seed}.json").read_text())["scores"] for seed in (0, 1)]
    first, second = (100 * scores["sets"]["omniglot"]["auroc"] for scores in records)
    assert figures["uqgan auroc omniglot seed 1"] == second
    assert figures["uqgan auroc omniglot"] == pytest.approx((first + second) / 2)
    assert figures["uqgan auroc all seed 0"] == 100 * records[0]["sets"]["all"]["auroc"]
    assert figures["uqgan accuracy seed 0"] == 100 * records[0]["accuracy"]
    assert figures["uqgan fpr95_id_positive omniglot paper"] == 18.0
    assert figures["tiny-imagenet/mc-dropout ece paper"] == 2.79
    for wrong in ("uqgan accuracy seed 9", "uqgan auroc lsun", "uqgan-ensemble ece paper"):
        with pytest.raises(AssertionError, match="value"):
            figures[wrong]


def test_the_page_says_whether_the_papers_first_is_ours_too(other_results: Path) -> None:
    folder = other_results / "mnist" / "uqgan-mc"
    folder.mkdir()
    record = json.loads((ROOT / "results/mnist/uqgan/seed-0.json").read_text()) | {"method": "uqgan-mc"}
    record["scores"]["sets"]["all"]["auroc"] = 0.999
    record["scores"]["sets"]["all"]["fpr95_id_positive"] = 0.5
    (folder / "seed-0.json").write_text(json.dumps(record))
    said = make_causes.order(make_settings.reproduction("mnist"))
    assert "is ahead of all 2 other rows of ours without outliers on AUROC all." in said
    assert re.search(r"is behind UQGAN \([\d.]+ ± [\d.]+\), Entropy \([\d.]+\).* with 50.00 on FPR95 all", said)


def test_a_run_trained_again_is_shown_beside_its_record(other_results: Path) -> None:
    file = other_results / "mnist" / "retrained.json"
    record = json.loads((ROOT / "results/mnist/retrained.json").read_text())
    row = {"set": "omniglot", "metric": "auroc", "recorded": 0.9, "retrained": 0.95, "samples": [0.89, 0.91]}
    row |= {"inside_samples": False, "seeds": None, "inside_seeds": None}
    make_tables.read.cache_clear()
    file.write_text(json.dumps(record | {"rows": [row]}))
    assert "| Omniglot | AUROC | 90.00 | 95.00 | 89.00 to 91.00 (outside) | – |" in make_settings.page("mnist")
    make_tables.read.cache_clear()
    file.write_text(json.dumps(record | {"rows": [row | {"seeds": [-0.02, 1.03], "inside_seeds": True}]}))
    assert "| 0.00 to 100.00 |" in make_settings.page("mnist"), "no share is larger than all"
    make_tables.read.cache_clear()
    file.write_text(json.dumps(record | {"commit": None}))
    with pytest.raises(UsageError, match="has no commit"):
        make_settings.page("mnist")


def test_a_run_trained_again_is_held_against_both_intervals() -> None:
    """The run itself lies in its own intervals; that of a further seed is Student's, at which one in twenty is out."""
    file = ROOT / "results/mnist/max-softmax/seed-0.json"
    record = json.loads(file.read_text())
    alike = [json.loads(path.read_text()) for path in sorted(file.parent.glob("seed-[0-4].json"))]
    rows = retrain.compare(record, record["scores"], alike)
    assert len(rows) == 3 + 4 * 7
    assert all(row["inside_samples"] and row["inside_seeds"] for row in rows)
    assert not any(row["seeds"] for row in retrain.compare(record, record["scores"], alike[:2]))
    values = numpy.random.default_rng(0).normal(5, 3, (4000, 6))
    pairs = [retrain.of_a_further_run(row[:5].tolist()) for row in values]
    share = numpy.mean([low <= new <= high for (low, high), new in zip(pairs, values[:, 5], strict=True)])
    assert share == pytest.approx(0.95, abs=0.01)


def test_compared_methods_are_those_of_the_records() -> None:
    for row in json.loads((ROOT / "results/digits/uqgan-against-one-vs-all.json").read_text()):
        ours, theirs = (
            json.loads((ROOT / f"results/digits/{method}/seed-{row['seed']}.json").read_text())["scores"]["sets"]
            for method in ("uqgan", "one-vs-all")
        )
        difference = ours[row["set"]]["auroc"] - theirs[row["set"]]["auroc"]
        assert row["difference"]["estimate"] == pytest.approx(difference, abs=1e-6)


@pytest.mark.parametrize("path", sorted((ROOT / "docs/decisions").glob("*.md")), ids=lambda path: path.stem)
def test_a_decision_record_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 15
