"""Our runs beside the paper's tables: which count, what is compared, what is best, and in which forms it is shown."""

import csv
import io
import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uqgan import paper
from uqgan.cli import main
from uqgan.data.tasks import TASKS, is_near
from uqgan.evaluation import Outputs, evaluate
from uqgan.paper.layouts import FORMATS, lines, runs_table, sentences, to_csv, to_html, to_latex, to_markdown
from uqgan.paper.reproduction import STATES, Column, Reproduction, bare, reproduce
from uqgan.paper.results import Found, Result, find_results, read_result
from uqgan.paper.ties import OVERLAP, PAIRED
from uqgan.uncertainty import Prediction

RESULTS = Path(__file__).parent.parent / "results"
FILES = sorted(file for task in paper.settings() for file in (RESULTS / task).glob("*/seed-*.json"))
CIFAR = RESULTS / "cifar10" / "uqgan" / "seed-0.json"


def copy_of(file: Path, folder: Path, **changes: Any) -> Path:
    record = json.loads(file.read_text()) | changes
    target = folder / record["task"] / record["method"] / f"seed-{record['seed']}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record))
    return target


def committed(task: str) -> Reproduction:
    return reproduce(task, find_results([RESULTS], task))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(RESULTS)))
def test_auroc_and_fpr_of_all_sets_follow_from_those_of_each(file: Path) -> None:
    """The very same numbers as those measured on all samples together, so that any group of sets may be worked out."""
    result = read_result(file)
    counts = paper.sizes(result.task)
    for metric in paper.AVERAGED:
        for score in ("sets", "foreignness"):
            rows = result.record["scores"][score]
            together = paper.pooled({name: rows[name][metric] for name in result.sets}, counts)
            assert together == pytest.approx(rows["all"][metric], abs=1e-9)


def test_a_group_of_sets_is_the_mean_over_their_samples() -> None:
    result, counts = read_result(CIFAR), paper.sizes("cifar10")
    rows = result.record["scores"]["sets"]
    expected = (100 * rows["svhn"]["auroc"] * 26032 + 100 * rows["mnist"]["auroc"] * 10000) / 36032
    assert counts["svhn"] == 26032
    assert result.ood("auroc", ("svhn", "mnist")) == pytest.approx(expected)
    assert result.ood("aupr_in", ("svhn", "mnist")) is None
    assert result.ood("aupr_in", ("svhn",)) == 100 * rows["svhn"]["aupr_in"]
    assert result.ood("auroc", ("lsun",)) is None


def test_near_are_the_other_classes_of_the_same_set() -> None:
    near = {"mnist": "mnist+5-9", "cifar10": "cifar10+5-9", "cifar10+0-2": "cifar10+3-9", "digits": "other-digits"}
    assert all(is_near(task, name) for task, name in near.items())
    assert not any(is_near(task, name) for task in ("mnist", "cifar10") for name in TASKS[task].ood)
    assert not is_near("photos", "drawings")


def test_every_printed_value_is_counted_once() -> None:
    for task in paper.settings():
        counts = committed(task).counts()
        assert list(counts) == list(STATES)
        assert sum(counts.values()) == 12 * (3 + 4 * (1 + len(paper.sizes(task))))
        assert min(counts.values()) >= 0
    assert committed("cifar10").counts()["not comparable"] == 12 * (4 + 2)  # LSUN's columns, and AUPR of all sets


def test_verdicts_are_those_of_the_printed_values() -> None:
    """By hand: 86.93 ± 0.27 beside 87.26 ± 0.29, 68.92 beside 72.26 ± 0.30, 68.21 beside 65.94 ± 0.29."""
    row = next(row for row in committed("cifar10").rows if row.method == "uqgan")
    near = ("cifar10+5-9",)
    assert row.cells[Column("accuracy")].verdict == "within"
    assert row.cells[Column("aupr_in", near)].verdict == "worse"
    assert row.cells[Column("auroc", near)].verdict == "better"
    assert str(row.cells[Column("accuracy")].ours) == "86.93 ± 0.27"


def test_without_results_there_is_the_paper_alone() -> None:
    found = reproduce("tiny-imagenet", Found(), seeds=[0])
    assert found.missing == paper.methods("tiny-imagenet")
    assert found.counts()["missing"] == 276
    assert {line.who for block in found.blocks for line in lines(found, block)} == {"paper"}


def test_seeds_and_methods_are_chosen(tmp_path: Path) -> None:
    found = find_results([RESULTS], "mnist", ["uqgan"], [0, 1, 9])
    table = reproduce("mnist", found, ["uqgan"], [0, 1, 9])
    assert [(row.method, row.seeds) for row in table.rows] == [("uqgan", [0, 1])]
    assert table.missing == ("uqgan (seed 9)",)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"test_set": {"n": 3}}, "tested on other pictures"),
        ({"samples": "validation"}, "its samples are validation, not test"),
        ({"settings": {"uqgan": {"lambda_reg": 99.0}}}, "uqgan.lambda_reg = 99.0, not 1.0"),
        ({"settings": {"classifier": "custom"}}, "classifier = custom, not resnet"),
        ({"method": "unheard-of"}, "damaged, or no record"),
        ({"scores": {}}, "damaged, or no record"),
    ],
)
def test_runs_that_are_no_reproduction_are_left_out_and_said(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    copy_of(CIFAR, tmp_path, **changes)
    found = find_results([tmp_path], "cifar10")
    assert not found.results
    assert why in found.notes[0]


def test_a_run_that_is_found_twice_counts_once(tmp_path: Path) -> None:
    copy_of(CIFAR, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = find_results([tmp_path / "a", tmp_path / "b"], "cifar10")
    assert [result.seed for result in found.of("uqgan")] == [0]
    assert "is the same method and seed" in found.notes[0]


def test_an_unfinished_run_does_not_count(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(CIFAR, run / "scores.json")
    about = {"finished": False, "stopped": "x", "device": "", "seconds": 1, "versions": {}, "command": ""}
    (run / "about.json").write_text(json.dumps(about))
    found = find_results([tmp_path], "cifar10")
    assert "has not finished" in found.notes[0]
    (run / "about.json").write_text(json.dumps(about | {"finished": True}))
    assert find_results([tmp_path], "cifar10").of("uqgan")


def test_only_sets_that_all_runs_have_are_together(tmp_path: Path) -> None:
    """A run with LSUN and runs without it are compared without it."""
    record = json.loads(CIFAR.read_text())
    copy_of(CIFAR, tmp_path)
    scores = record["scores"]
    sets = scores["sets"] | {"lsun": scores["sets"]["svhn"], "all": scores["sets"]["mnist"]}
    copy_of(CIFAR, tmp_path, method="entropy", scores=scores | {"sets": sets})
    table = reproduce("cifar10", find_results([tmp_path], "cifar10"))
    assert table.lacking == ("lsun",)
    column = Column("auroc", table.sets)
    assert len({row.cells[column].ours.mean for row in table.rows if row.cells[column].ours}) == 1  # type: ignore[union-attr]


def prediction(n: int, shift: float, noise: float) -> Prediction:
    score = torch.rand(n, generator=torch.Generator().manual_seed(n)) + shift
    score = score + noise * torch.rand(n)
    return Prediction(torch.rand(n, 5).softmax(1), torch.rand(n), score, score)


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    """Two methods that rank nearly alike, and one that ranks worse, with raw scores; all of one seed."""
    sizes = dict.fromkeys(paper.sizes("mnist"), 300)
    for method, noise in {"entropy": 0.0, "max-softmax": 0.01, "ensemble": 0.6}.items():
        ood = {name: prediction(n + k, 0.5, noise) for k, (name, n) in enumerate(sizes.items())}
        outputs = Outputs(torch.randint(5, (400,)), prediction(400, 0.0, noise), ood)
        folder = tmp_path / "runs" / "mnist" / method
        outputs.write(folder / "raw_scores.npz")
        facts = {"task": "mnist", "method": method, "seed": 0, "settings": {}}
        (folder / "scores.json").write_text(json.dumps(facts | evaluate(outputs, 50)))
    return tmp_path / "runs"


def best(table: Reproduction, column: Column) -> set[str]:
    return {row.method for row in table.rows if row.cells[column].best}


def test_ties_with_the_best_are_found_by_paired_bootstrap_of_raw_scores(evaluated: Path) -> None:
    """Noise of 0.6 costs more than the intervals tell apart; that of 0.01 is nothing."""
    found = find_results([evaluated], "mnist")
    column = Column("auroc", ("mnist+5-9",))
    raw = [found.of(name)[0].raw for name in ("entropy", "max-softmax", "ensemble")]
    assert all(raw)
    table = reproduce("mnist", found, resamples=50)
    assert best(table, column) == {"entropy", "max-softmax"}
    assert PAIRED in table.ties
    without = reproduce("mnist", found, resamples=0)
    assert without.ties == (OVERLAP,)
    assert best(table, column) <= best(without, column)


def test_raw_scores_of_another_evaluation_are_not_used(evaluated: Path) -> None:
    for file in evaluated.rglob("scores.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"raw_sha256": "0" * 64}))
    assert reproduce("mnist", find_results([evaluated], "mnist"), resamples=50).ties == (OVERLAP,)


def test_oracles_are_never_the_best_and_say_what_they_saw(tmp_path: Path) -> None:
    copy_of(CIFAR, tmp_path)
    copy_of(CIFAR, tmp_path, method="entropy")
    record = json.loads(CIFAR.read_text())
    copy_of(CIFAR, tmp_path, method="entropy-oracle", scores=record["scores"] | {"accuracy": 1.0})
    table = reproduce("cifar10", find_results([tmp_path], "cifar10"))
    assert best(table, Column("accuracy")) == {"uqgan", "entropy"}
    assert any("Oracles of ours trained with other pictures of" in sentence for sentence in sentences(table))
    assert "Entropy Oracle (sees outliers)" in to_markdown(table)


def test_an_oracle_is_held_against_its_method_without_outliers_set_by_set(tmp_path: Path) -> None:
    scores = json.loads(CIFAR.read_text())["scores"]
    copy_of(CIFAR, tmp_path, method="entropy")
    copy_of(CIFAR, tmp_path, method="one-vs-all")
    better = {name: found | {"auroc": 1.0} if name == "svhn" else found for name, found in scores["sets"].items()}
    copy_of(CIFAR, tmp_path, method="entropy-oracle", scores=scores | {"sets": better})
    table = reproduce("cifar10", find_results([tmp_path], "cifar10"))
    others = tuple(name for name in table.sets if name != "svhn")
    assert [(oracle.method, plain.method, behind) for oracle, plain, behind in table.oracles] == [
        ("entropy-oracle", "entropy", others)
    ]
    said = "The AUROC of Entropy Oracle is higher than that of Entropy on all but CIFAR10 5-9"
    assert any(sentence.startswith(said) for sentence in sentences(table))


def test_raw_scores_are_found_in_a_run_beside_a_record_and_in_a_folder_of_their_own(tmp_path: Path) -> None:
    file = copy_of(CIFAR, tmp_path)
    assert Result(file, json.loads(file.read_text())).raw is None
    place = tmp_path / "raw" / "cifar10" / "uqgan" / "seed-0.npz"
    for path in (place, file.with_suffix(".npz")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        assert Result(file, json.loads(file.read_text())).raw == path


def test_csv_has_every_value_and_loses_none() -> None:
    table = committed("cifar10")
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(rows) == sum(len(row.cells) for row in table.rows)
    one = next(row for row in rows if (row["method"], row["metric"]) == ("uqgan", "accuracy"))
    assert (one["paper"], one["paper_std"], one["n"], one["seeds"]) == ("87.2600", "0.2900", "3", "0 1 2")
    lows, values, highs = (list(map(float, one[key].split())) for key in ("lows", "values", "highs"))
    assert all(low < value < high for low, value, high in zip(lows, values, highs, strict=True))
    assert float(one["ours"]) - float(one["paper"]) == pytest.approx(float(one["difference"]), abs=2e-4)


def test_every_run_is_shown_with_its_intervals() -> None:
    """Accuracy of UQGAN's first seed on CIFAR10 as its record has it."""
    record = json.loads(CIFAR.read_text())
    value, (low, high) = 100 * record["scores"]["accuracy"], (100 * end for end in record["intervals"]["accuracy"])
    assert f"| UQGAN | 0 | {value:.2f} ({low:.2f} to {high:.2f}) |" in runs_table(committed("cifar10"))
    assert not runs_table(reproduce("cifar10", Found()))


def test_latex_is_balanced_and_has_the_best_in_bold() -> None:
    text = to_latex(committed("cifar10"))
    assert text.startswith("% needs \\usepackage{booktabs}\n% ")
    assert text.count("{") == text.count("}")
    assert r"\textbf{90.11\,(0.68)}" in text
    assert not {"±", "–", "▲"} & set("".join(line for line in text.splitlines() if not line.startswith("%")))


@pytest.mark.parametrize("task", paper.settings())
def test_latex_tables_are_laid_out_as_in_the_paper_and_fit_on_a_page(task: str) -> None:
    first, *others = re.findall(r"\\begin{table}.*?\\end{table}", to_latex(committed(task)), re.S)
    groups, _, titles = first.partition(r"\toprule")[2].partition(r"\midrule")[0].strip().splitlines()
    assert groups == r"&  & \multicolumn{3}{c}{In-Distribution} & \multicolumn{4}{c}{Out-of-Distribution} \\"
    assert r"\cmidrule(lr){3-5} \cmidrule(lr){6-9}" in first
    assert r"& Accuracy $\uparrow$ & AUROC S/F $\uparrow$ & ECE $\downarrow$ &" in titles
    parts = first.partition(r"\midrule")[2].split(r"\midrule")
    starts = [[line.split(" &")[0] for line in part.splitlines() if line[:1].isalpha()] for part in parts]
    assert [names[0] for names in starts] == ["UQGAN", "One-vs-All Baseline", "Entropy Oracle"]
    assert [len(names) for names in starts] == [2, 8, 2]
    for table in (first, *others):
        rows = [line for line in table.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
        assert {line.count("&") for line in rows} == {rows[0].count("&")}
        assert rows[0].count("&") <= 8
    labels = re.findall(r"\\label{(.*?)}", "".join((first, *others)))
    assert len(set(labels)) == len(others) + 1


def test_html_is_whole_and_colours_what_is_outside_of_the_papers_band() -> None:
    text, table = to_html(committed("cifar10")), committed("cifar10")
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag not in ("meta",):
                tags.append(tag)
            assert dict(attrs).get("src") is None

        def handle_endtag(self, tag: str) -> None:
            assert tags.pop() == tag

    Reader().feed(text)
    assert not tags
    shown = [row.cells[bare(column)].verdict for row in table.rows for b in table.blocks for column in b.columns]
    assert text.count('class="worse"') == 2 * shown.count("worse")  # ours and the difference
    assert text.count('class="better"') == 2 * shown.count("better")


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["uqgan", "reproduce", *words])
    try:
        main()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def test_the_command_prints_paper_ours_and_difference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(monkeypatch, capsys, "cifar10", "--runs", str(RESULTS), "--methods", "uqgan,uqgan-mc")
    assert not status
    worse = "Worse than the paper: UQGAN (AUPR-In CIFAR10 5-9); UQGAN with MC-Dropout (AUROC S/F)."
    for words in ("87.26±0.29", "86.93±0.27", "-0.33", "ours 3", "without LSUN", "are compared", worse):
        assert words in out
    assert max(map(len, out.splitlines()[:40])) <= 80


def test_a_dry_run_says_what_is_there_and_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for seed in range(3):
        shutil.copy(RESULTS / f"cifar10/uqgan/seed-{seed}.json", tmp_path)
    words = ("cifar10", "--runs", str(tmp_path), "--methods", "uqgan,entropy", "--seeds", "0-3", "--dry-run")
    status, out, _ = run(monkeypatch, capsys, *words)
    assert not status
    there = ["uqgan           3 seeds: 0, 1, 2", "entropy         no run", "missing: uqgan (seed 3), entropy"]
    assert out.splitlines()[:3] == there
    assert out.splitlines()[3].startswith(f"to train into {tmp_path}, no times of such runs on cpu are known")
    assert [line.split()[0] for line in out.splitlines()[4:]] == [
        *(f"cifar10/entropy/seed-{seed}" for seed in range(3)),
        "cifar10/uqgan/seed-3",
        "cifar10/entropy/seed-3",
    ]
    assert run(monkeypatch, capsys, *words, "--compare-only")[1].splitlines() == there


def test_a_dry_run_says_the_minutes_by_recorded_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    copy_of(CIFAR, tmp_path, device="cpu (x86_64)", seconds=600.0, stage_seconds={})
    words = ("cifar10", "--runs", str(tmp_path), "--methods", "uqgan", "--seeds", "0-2", "--device", "cpu")
    _, out, _ = run(monkeypatch, capsys, *words, "--dry-run")
    assert "about 20 min one after another on cpu:" in out
    assert out.splitlines()[-1].split() == ["cifar10/uqgan/seed-2", "10", "min"]


@pytest.fixture
def small_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The digits as if they were a setting of the paper, so that real trainings take seconds."""
    content = json.loads(json.dumps(paper._content()))
    value = {"accuracy": [99.0, 0.01], "auroc_sf": [90.0, 9.0], "ece": [1.0, 1.0]}
    content["settings"]["digits"] = {name: {"known": value} for name in ("max-softmax", "entropy")}
    monkeypatch.setattr(paper, "_content", lambda: content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_missing_is_trained_and_what_is_there_is_not(
    small_setting: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record of entropy's seed 0 counts; max-softmax is trained, stopped by the clock, and gone on with."""
    copy_of(RESULTS / "digits/entropy/seed-0.json", small_setting / "results")
    words = ("digits", "--device", "cpu", "--workers", "1")
    status, out, err = run(monkeypatch, capsys, *words, "--max-minutes", "0.0001")
    assert status == 3
    assert "1 run to train into runs: max-softmax seed 0" in err
    assert "about 3 s one after another on cpu, with 1 cell of unknown time" in err  # entropy's
    assert "1 of 1 cell unfinished (the same command goes on)" in err
    assert "Missing: max-softmax" in out
    assert "results" in {place.name for place in small_setting.iterdir()}
    status, out, err = run(monkeypatch, capsys, *words)
    assert not status
    record = json.loads((small_setting / "runs/digits/max-softmax/seed-0/scores.json").read_text())
    assert f"{100 * record['scores']['accuracy']:.2f}" in out
    assert "Missing" not in out
    assert not (small_setting / "runs/digits/entropy").exists()
    before = (small_setting / "runs/digits/max-softmax/seed-0/scores.json").stat().st_mtime_ns
    status, again, err = run(monkeypatch, capsys, *words)
    assert (status, again) == (0, out)
    assert "to train" not in err
    assert (small_setting / "runs/digits/max-softmax/seed-0/scores.json").stat().st_mtime_ns == before


def test_a_run_that_failed_is_said_with_its_log_and_not_tried_again(
    small_setting: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_setting / "runs/digits/max-softmax/seed-0"
    folder.mkdir(parents=True)
    (folder / "failed.log").write_text("Traceback\nValueError: no such thing\n")
    words = ("digits", "--methods", "max-softmax", "--device", "cpu", "--workers", "1", "--format", "csv")
    status, out, err = run(monkeypatch, capsys, *words)
    assert status == 1
    assert out.startswith("setting,method")
    assert "digits/max-softmax/seed-0 failed, see runs/digits/max-softmax/seed-0/failed.log: ValueError: no such" in err


@pytest.mark.parametrize("ending", [".md", ".csv", ".tex", ".html"])
def test_the_command_writes_what_the_files_name_says(
    ending: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / f"table{ending}"
    form = {".tex": "latex"}.get(ending, ending[1:])
    common = ("cifar10", "--runs", str(RESULTS), "--methods", "uqgan", "--seeds", "0-3", "--compare-only")
    assert not run(monkeypatch, capsys, *common, "-o", str(file))[0]
    status, out, _ = run(monkeypatch, capsys, *common, "--format", form)
    assert not status
    assert file.read_text() == out
    assert form in FORMATS


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cifr10"], "setting = cifr10: no such setting in the paper; did you mean cifar10?"),
        (["mnist", "--methods", "uqgan,entropie"], "--methods = entropie: no such method; did you mean entropy?"),
        (["mnist", "--seeds", "4-0"], "--seeds = 4-0: the smaller number comes first"),
        (["mnist", "--seeds", "a"], "--seeds = a: must look like 0-4 or 0,2"),
        (["mnist", "--format", "pdf"], "--format = pdf: must be one of md, csv, latex, html"),
        (["mnist", "-o", "table.pdf"], "--output = table.pdf: must end in .md, .csv, .tex, .html"),
        (["mnist", "--runs", "nowhere"], "--runs = nowhere: no such folder (make it"),
    ],
)
def test_what_a_person_can_mend_is_one_sentence(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run(monkeypatch, capsys, *words)
    assert (status, out) == (2, "")
    assert said in err
    assert not list(tmp_path.iterdir())


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_our_values_are_mean_and_deviation_over_the_seeds(values: list[float]) -> None:
    found = Found()
    for seed, value in enumerate(values):
        record = json.loads(CIFAR.read_text()) | {"seed": seed}
        record["scores"]["accuracy"] = value
        found.add(Result(Path(f"seed-{seed}.json"), record))
    cell = reproduce("cifar10", found, ["uqgan"], resamples=0).rows[0].cells[Column("accuracy")]
    tensor = 100 * torch.tensor(values, dtype=torch.double)
    assert cell.ours
    assert cell.ours.mean == pytest.approx(float(tensor.mean()), abs=1e-9)
    if len(values) > 1:
        assert cell.ours.std == pytest.approx(float(tensor.std()), abs=1e-9)
    else:
        assert cell.ours.std is None
