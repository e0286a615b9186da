"""The command `predict`: every way in, every way out, and what interrupts it."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import uqgan
from pictures import Cli, picture
from test_contract import QUICK, small_task
from uqgan.config import load_config
from uqgan.decisions import NO_FOREIGNNESS
from uqgan.run import Run

COLUMNS = ["path", "label", "probability", "aleatoric", "epistemic", "foreignness"]
COLUMNS += ["p_value", "decision", "reason", "set", "error"]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run; one-vs-all, so that it has a foreignness of its own."""
    place = tmp_path_factory.mktemp("predict") / "run"
    settings = load_config("digits", overrides=QUICK["digits"] | {"one_vs_all": {"epochs": 3}})
    return uqgan.fit("one-vs-all", "digits", config=settings, folder=place).save(place)


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return uqgan.load(folder)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Path:
    """30 digits that the run knows and 30 pictures of noise."""
    from PIL import Image

    root = tmp_path_factory.mktemp("photos")
    for k in range(30):
        Image.fromarray(run.task.test.x[k, 0].numpy()).save(root / f"known-{k:02}.png")
        picture(k, 32).save(root / f"noise-{k:02}.png")
    return root


def rows_in(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_a_folder_becomes_a_table_and_a_verdict(cli: Cli, folder: Path, photos: Path) -> None:
    status, out, err = cli("predict", folder, photos)
    assert status == 0
    assert "60 pictures, each turned by EXIF, short side fitted to 32 pixels, cropped to the middle 32 × 32, " in err
    lines = out.splitlines()
    assert lines[0].split() == ["path", "label", "prob.", "aleat.", "epist.", "foreign", "p", "decision", "set"]
    assert "known-00.png" in lines[1]
    assert "… and 40 more: -o FILE.csv" in lines
    assert re.search(r"accept \d+, ambiguous \d+, unknown \d+", out)
    assert re.search(r"as a whole: .*% of 60 flagged", out)


def test_a_file_holds_what_python_says(cli: Cli, folder: Path, run: Run, photos: Path, tmp_path: Path) -> None:
    status, out, err = cli("predict", folder, photos, "-o", tmp_path / "out.csv", "--probabilities")
    assert status == 0
    assert "prob." not in out
    assert f"wrote {tmp_path / 'out.csv'}" in err
    rows = rows_in(tmp_path / "out.csv")
    files = sorted(photos.iterdir())
    found, decided = run.predict(files), run.decide(files)
    assert [row["path"] for row in rows] == list(map(str, files))
    assert list(rows[0]) == [*COLUMNS[:3], *(f"probability_{name}" for name in run.class_names), *COLUMNS[3:]]
    for k, row in enumerate(rows):
        assert row["label"] == run.class_names[found.labels[k]]
        assert float(row["epistemic"]) == pytest.approx(float(found.epistemic[k]), abs=1e-7)
        assert float(row["probability_3"]) == pytest.approx(float(found.probs[k, 3]), abs=1e-7)
        assert float(row["p_value"]) == float(decided.p_value[k])
        assert row["decision"] == decided.words[k]
        assert row["set"].split("|") == [run.class_names[c] for c in decided.shown[k].nonzero()[:, 0].tolist()]


def test_all_formats_say_the_same(cli: Cli, folder: Path, photos: Path, tmp_path: Path) -> None:
    for ending in ("csv", "jsonl", "parquet"):
        assert cli("predict", folder, photos, "-o", tmp_path / f"out.{ending}", "-q")[0] == 0
    status, out, _ = cli("predict", folder, photos, "--json")
    assert status == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert list(lines[0]) == COLUMNS
    assert lines == [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == pq.read_table(tmp_path / "out.parquet").to_pylist()
    for line, row in zip(lines, rows_in(tmp_path / "out.csv"), strict=True):
        words = {key: "|".join(value) if isinstance(value, list) else str(value or "") for key, value in line.items()}
        numeric = [key for key, value in line.items() if isinstance(value, float)]
        assert [float(row.pop(key)) for key in numeric] == [line[key] for key in numeric]
        assert row == {key: word for key, word in words.items() if key not in numeric}


def test_files_patterns_and_a_list_on_standard_input(
    cli: Cli, folder: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def paths(*words: object) -> list[str]:
        status, out, _ = cli("predict", folder, *words, "--json")
        assert status == 0
        return [Path(json.loads(line)["path"]).name for line in out.splitlines()]

    assert paths(photos / "noise-02.png", photos / "known-01.png") == ["noise-02.png", "known-01.png"]
    assert paths(f"{photos}/known-0[12].png") == ["known-01.png", "known-02.png"]
    listed = io.TextIOWrapper(io.BytesIO(f"{photos}/noise-05.png\n{photos}/known-04.png\n".encode()))
    monkeypatch.setattr(sys, "stdin", listed)
    assert paths("-") == ["noise-05.png", "known-04.png"]


def test_broken_files_are_told_and_counted_and_the_rest_is_predicted(
    cli: Cli, folder: Path, photos: Path, tmp_path: Path
) -> None:
    for k in range(25):
        (tmp_path / f"broken-{k:02}.png").write_bytes(b"no picture")
    status, _, err = cli("predict", folder, tmp_path, photos, "-o", tmp_path / "out.csv")
    assert status == 1
    assert f"{tmp_path}/broken-00.png: not a png, jpg, webp or bmp picture" in err
    assert "… and 5 more that could not be read" in err
    assert "uqgan: 25 of 85 pictures could not be read" in err
    rows = rows_in(tmp_path / "out.csv")
    assert [bool(row["error"]) for row in rows] == [True] * 25 + [False] * 60
    assert all(row["label"] for row in rows[25:])


def test_pictures_are_copied_by_decision(cli: Cli, folder: Path, photos: Path, tmp_path: Path) -> None:
    for _ in range(2):  # a second time nothing is added
        assert cli("predict", folder, photos, "-o", tmp_path / "o.csv", "--copy-to", tmp_path / "out")[0] == 0
        found = {each.name: each.relative_to(tmp_path / "out") for each in (tmp_path / "out").rglob("*.*")}
        rows = rows_in(tmp_path / "o.csv")
        assert len(found) == len(rows) == len(list((tmp_path / "out").rglob("*.*")))
        for row in rows:
            parts = [row["decision"], *([row["label"]] if row["decision"] == "accept" else [])]
            assert found[Path(row["path"]).name].parent == Path(*parts)
    assert len(list(photos.iterdir())) == 60


def test_a_file_whose_name_is_no_text_is_copied_under_it(cli: Cli, folder: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    odd = tmp_path / "in" / os.fsdecode(b"b\xff.png")
    odd.write_bytes((photos / "noise-00.png").read_bytes())
    words = ("predict", folder, tmp_path / "in", "-o", tmp_path / "o.csv", "--copy-to", tmp_path / "out")
    assert cli(*words)[0] == 0
    (copied,) = (each for each in (tmp_path / "out").rglob("*") if each.is_file())
    assert (copied.name, copied.read_bytes()) == (odd.name, odd.read_bytes())
    assert rows_in(tmp_path / "o.csv")[0]["path"].endswith("b\ufffd.png")


class Images(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [dict(attrs)["src"] or ""] if tag == "img" else []


def test_a_page_shows_pictures_of_each_decision_alone(cli: Cli, folder: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "<b>&.png").write_bytes((photos / "noise-00.png").read_bytes())
    page = tmp_path / "page.html"
    assert cli("predict", folder, photos, tmp_path / "in", "--page", page, "-o", tmp_path / "o.csv")[0] == 0
    text = page.read_text()
    images = Images()
    images.feed(text)
    assert len(images.sources) == 61
    assert all(source.startswith("data:image/png;base64,") for source in images.sources)
    assert "://" not in text
    assert "&lt;b&gt;&amp;.png" in text
    assert "<b>&.png" not in text
    for row in rows_in(tmp_path / "o.csv")[:-1]:
        assert "/".join(Path(row["path"]).parts[-2:]) in text, "the name and that of its folder"


def test_the_page_names_what_could_not_be_read_and_says_why_nothing_flagged_is_ambiguous(
    cli: Cli, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    run = uqgan.fit("entropy", small_task("digits"), config=load_config("digits", overrides=QUICK["digits"]))
    run.calibrate(false_alarm=0.9, coverage=0.5)
    words = [run.save(tmp_path / "run"), photos, tmp_path / "broken.png", "--page", tmp_path / "page.html"]
    status, out, _ = cli("predict", *words)
    text = (tmp_path / "page.html").read_text()
    assert status == 1
    assert NO_FOREIGNNESS in out
    assert NO_FOREIGNNESS.capitalize() in text
    assert "broken.png: not a png, jpg, webp or bmp picture" in text


def test_galleries_are_bounded(
    cli: Cli, folder: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uqgan.scoring.PICTURES", 2)
    assert cli("predict", folder, photos, "--page", tmp_path / "page.html")[0] == 0
    assert 1 <= (tmp_path / "page.html").read_text().count("<img") <= 6


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere.png"], "nowhere.png: no such file or folder"),
        (["nowhere*.png"], "nowhere*.png: matches nothing"),
        (["{empty}"], "no pictures there (png, jpg, webp or bmp)"),
        (["{photos}", "{empty}"], "no pictures there (png, jpg, webp or bmp)"),
        (["{photos}", "-o", "out.txt"], "output = out.txt: must end in .csv, .jsonl, .parquet"),
        ([""], "an empty word: no such file or folder"),
        (["{photos}", "--page", "page.txt"], "--page = page.txt: must end in .html"),
        (["{photos}", "--page", "{empty}/folder.html"], "folder.html: is a folder (choose another name)"),
        (["{photos}", "--resume"], "resume: needs --output, the file to go on with"),
        (["{photos}", "--seed", "-1"], "seed = -1: must be within 0"),
        (["{photos}", "--device", "tpu"], "device = tpu: must be"),
        (["{photos}", "--copy-to", "{photos}/sorted"], "which is read (choose a folder outside of it)"),
        (["{photos}/*.png", "--copy-to", "{photos}/sorted"], "which is read (choose a folder outside of it)"),
        ([], "paths"),
    ],
)
def test_a_mistake_is_one_sentence_with_status_2(
    cli: Cli, folder: Path, photos: Path, tmp_path: Path, words: list[str], sentence: str
) -> None:
    (tmp_path / "folder.html").mkdir()
    status, out, err = cli("predict", folder, *(word.format(photos=photos, empty=tmp_path) for word in words))
    assert status == 2
    assert out == ""
    assert sentence in err.lower() if sentence == "paths" else sentence in err
    assert not (photos / "sorted").exists()


def test_an_output_that_cannot_be_written_is_said_so(cli: Cli, folder: Path, photos: Path) -> None:
    status, _, err = cli("predict", folder, photos, "-o", "/proc/out.csv", "-q")
    assert status == 1
    assert "/proc/out.csv: could not be written" in err


def test_a_run_on_points_takes_no_files(cli: Cli, photos: Path, tmp_path: Path) -> None:
    small = {"iterations": 2, "batch_size": 8, "validate_every": 1}
    uqgan.fit("uqgan", "moons", folder=tmp_path / "run", uqgan=small)
    status, _, err = cli("predict", tmp_path / "run", photos)
    assert status == 2
    assert "takes points in the plane" in err


def test_a_run_that_cannot_decide_predicts_and_says_why(
    cli: Cli, folder: Path, photos: Path, tmp_path: Path, run: Run
) -> None:
    few = uqgan.load(folder).save(tmp_path / "run")
    (few / "decisions.json").write_text('{"false_alarm": 1e-05}')
    status, out, err = cli("predict", few, photos, "--json")
    assert status == 0
    assert "calibration samples" in err
    assert "without p-values, decisions and sets" in err
    row = json.loads(out.splitlines()[0])
    assert row["decision"] is row["p_value"] is row["set"] is None
    assert row["label"] in run.class_names
    assert cli("predict", few, photos, "--copy-to", tmp_path / "out")[0] == 2


def test_without_a_terminal_progress_is_a_line_now_and_then(
    cli: Cli, folder: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uqgan.progress.LINE_SECONDS", 0.0)
    monkeypatch.setattr("uqgan.scoring.CHUNK", 16)
    monkeypatch.setattr("uqgan.scoring.PIECE", 16)
    _, _, err = cli("predict", folder, photos)
    assert re.search(r"predicting: picture 16 of 60, \d+ s left", err)
    assert "predicting" not in cli("predict", folder, photos, "-q")[2]


# ── interrupted

PATCHED = """
import os, signal, sys, uqgan.scoring as scoring
from uqgan.cli import main
scoring.CHUNK = scoring.PIECE = 16
chunks, score = 0, scoring.score
def counted(*words, **named):
    for rows in score(*words, **named):
        yield rows
        global chunks
        chunks += 1
        if chunks == int(os.environ["AFTER"]):
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))
scoring.score = counted
main()
"""


def in_a_process(words: list[object], sent: int, after: int) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"SIGNAL": str(int(sent)), "AFTER": str(after)}
    command = [sys.executable, "-c", PATCHED, "predict", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_resumed_command_gives_the_same_bytes(
    cli: Cli, folder: Path, photos: Path, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "broken.png").write_bytes(b"no picture")
    method = uqgan.fit("mc-dropout", small_task("digits"), config=load_config("digits", overrides=QUICK["digits"]))
    stochastic = method.save(tmp_path / "stochastic")
    words = ["predict", stochastic, tmp_path / "in", photos, "-q"]
    monkeypatch.setattr("uqgan.scoring.CHUNK", 16)
    monkeypatch.setattr("uqgan.scoring.PIECE", 16)
    whole, cut = tmp_path / f"whole.{ending}", tmp_path / f"cut.{ending}"
    _, expected, _ = cli(*words, "-o", whole)
    from uqgan import scoring

    score = scoring.score

    def stopped(*given: object, **named: object) -> object:
        for k, rows in enumerate(score(*given, **named)):  # type: ignore[arg-type]
            if k == 2:
                raise KeyboardInterrupt
            yield rows

    monkeypatch.setattr(scoring, "score", stopped)
    status, _, err = cli(*(word for word in words if word != "-q"), "-o", cut)
    assert status == 130
    assert "32 of 61 pictures kept; the same command with --resume goes on" in err
    assert not cut.exists()
    monkeypatch.setattr(scoring, "score", score)
    status, _, err = cli(*words, "-o", cut)
    assert status == 2
    assert "holds 32 rows (--resume to go on with them" in err
    status, found, err = cli(*words, "-o", cut, "--resume")
    assert status == 1  # for the broken file
    assert cut.read_bytes() == whole.read_bytes()
    assert found == expected
    assert {each.name for each in tmp_path.iterdir() if each.is_file()} == {whole.name, cut.name}


def test_a_killed_command_loses_a_chunk_at_most(folder: Path, photos: Path, tmp_path: Path) -> None:
    words = [folder, photos, "-o", tmp_path / "out.csv"]
    assert in_a_process(words, signal.SIGKILL, 3).returncode == -signal.SIGKILL
    assert not (tmp_path / "out.csv").exists()
    done = in_a_process([*words, "--resume"], signal.SIGINT, -1)
    assert done.returncode == 0, done.stderr
    assert "going on after 48 pictures" in done.stderr
    assert [row["path"] for row in rows_in(tmp_path / "out.csv")] == list(map(str, sorted(photos.iterdir())))
    assert [each.name for each in tmp_path.iterdir()] == ["out.csv"]


def test_a_resumed_command_copies_pictures_that_were_predicted_before(
    folder: Path, photos: Path, tmp_path: Path
) -> None:
    words = [folder, photos, "-o", tmp_path / "out.csv"]
    assert in_a_process(words, signal.SIGKILL, 3).returncode == -signal.SIGKILL
    assert in_a_process([*words, "--resume", "--copy-to", tmp_path / "sorted"], signal.SIGINT, -1).returncode == 0
    copied = sorted(file.name for file in (tmp_path / "sorted").rglob("*.png"))
    assert copied == sorted(file.name for file in photos.iterdir())


def test_ctrl_c_finishes_the_chunk_and_says_how_to_go_on(folder: Path, photos: Path, tmp_path: Path) -> None:
    done = in_a_process([folder, photos, "-o", tmp_path / "out.csv"], signal.SIGINT, 1)
    assert done.returncode == 130
    assert "32 of 60 pictures kept; the same command with --resume goes on" in done.stderr
    assert "Traceback" not in done.stderr


def test_resume_says_so_where_nothing_was_kept(cli: Cli, folder: Path, photos: Path, tmp_path: Path) -> None:
    status, _, err = cli("predict", folder, photos, "-o", tmp_path / "o.csv", "--resume")
    assert (status, "o.csv.part: nothing was kept there, so this begins with the first picture" in err) == (0, True)


def test_other_pictures_are_not_gone_on_with(cli: Cli, folder: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert in_a_process([folder, photos, "-o", out], signal.SIGKILL, 3).returncode == -signal.SIGKILL
    pattern = f"{photos}/noise*"
    assert cli("predict", folder, pattern, "-o", out)[0] == 2
    done = in_a_process([folder, pattern, "-o", out, "--resume"], signal.SIGINT, -1)
    assert done.returncode == 2
    assert "the pictures have changed, there was" in done.stderr
    done = in_a_process([folder, photos, "-o", out, "--resume", "--seed", "3"], signal.SIGINT, -1)
    assert done.returncode == 2
    assert "begun with another seed: 0 instead of 3" in done.stderr


def test_workers_of_a_killed_command_end_too(folder: Path, photos: Path, tmp_path: Path) -> None:
    """Or they would wait for ever."""
    script = PATCHED.replace("main()", "import uqgan.data.inputs as i; i.processes_for = lambda _: 2\nmain()", 1)
    words = ["predict", str(folder), str(photos), "-o", str(tmp_path / "out.csv")]
    environment = os.environ | {"SIGNAL": str(int(signal.SIGSTOP)), "AFTER": "1"}
    process = subprocess.Popen([sys.executable, "-c", script, *words], env=environment, stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("no /proc here")
    deadline = time.monotonic() + 60
    while "T" not in Path(f"/proc/{process.pid}/stat").read_text().split(")")[1][:3] and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = [int(child) for child in children.read_text().split()]
    process.kill()
    process.wait()
    assert len(workers) >= 2
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
