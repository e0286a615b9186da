"""From files to rows: the same as predicting arrays, in order, within bounds, and gone on with where it was cut."""

import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import uqgan
from pictures import encoded, picture, write_folder
from test_contract import QUICK, same, small_task
from uqgan.config import load_config
from uqgan.data import inputs
from uqgan.data.decode import Outcome, decode, decoders, decoding
from uqgan.data.inputs import Sources, as_samples, batches_of, pixel_format_of, processes_for
from uqgan.data.preprocessing import PixelFormat
from uqgan.errors import UsageError
from uqgan.run import Run
from uqgan.scoring import PIECE, Summary, chunk_size, columns_of, numbers, rows_of, score, threads_beside
from uqgan.sorting import Folders, folder_name
from uqgan.tables import Row, Table, json_line

PIXEL_FORMAT = PixelFormat(32, 1)


def fitted(method: str) -> Run:
    return uqgan.fit(method, small_task("digits"), config=load_config("digits", overrides=QUICK["digits"]))


@pytest.fixture(scope="module")
def run() -> Run:
    return fitted("one-vs-all")


@pytest.fixture(scope="module")
def dropout() -> Run:
    return fitted("mc-dropout")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Pictures of several sizes and modes; the fourth of them is broken."""
    for k in range(9):
        picture(k, size=20 + 7 * k, channels=1 if k % 2 else 3).save(tmp_path / f"{k}.png")
    (tmp_path / "3.png").write_bytes(b"no picture")
    return [str(tmp_path / f"{k}.png") for k in range(9)]


def pieces(files: list[str], pixel_format: PixelFormat = PIXEL_FORMAT) -> Iterator[tuple[list[str], Outcome]]:
    return ((batch, decode(batch, pixel_format)) for batch in batches_of(files, PIECE))


def flat(chunks: Iterator[list[Row]]) -> list[Row]:
    return [row for rows in chunks for row in rows]


# ── what can be predicted


def test_files_and_pillow_images_are_predicted_like_their_decoded_arrays(run: Run, files: list[str]) -> None:
    whole = [file for file in files if not file.endswith("3.png")]
    x = torch.from_numpy(decode(whole, PIXEL_FORMAT)[0])
    expected = run.predict(x)
    assert same(run.predict(whole), expected)
    assert same(run.predict([Path(file) for file in whole]), expected)
    assert same(run.predict(tuple(Image.open(file) for file in whole)), expected)
    assert same(run.predict(Path(whole[0])), run.predict(x[:1]))
    assert same(run.predict(Image.open(whole[0])), run.predict(x[:1]))
    assert same(run.predict([whole[0], Image.open(whole[1])]), run.predict(x[:2]))


def test_a_jpeg_is_seen_alike_as_file_and_as_image_which_stays_as_it_was(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "large.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # held sideways
    smooth = Image.fromarray(np.add.outer(np.arange(300), np.arange(400)).astype(np.uint8) // 3)
    smooth.save(file, exif=exif)
    with Image.open(file) as image:
        for _ in range(2):
            assert same(run.predict(image), run.predict(file))
            assert image.size == (400, 300)
    assert not torch.equal(run.predict(file).probs, run.predict(smooth).probs)


def test_a_file_that_cannot_be_read_is_named(run: Run, files: list[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"3\.png: cannot be read, not a png, jpg, webp or bmp picture"):
        run.predict(files)
    with pytest.raises(UsageError, match=r"none\.png: cannot be read, no such file or directory \(and 1 more\)"):
        run.predict([tmp_path / "none.png", files[3]])
    with pytest.raises(UsageError, match="is a directory"):
        run.predict(tmp_path)
    with pytest.raises(UsageError, match="image 0 of x: cannot be read"):
        run.predict([Image.open(io.BytesIO(encoded(picture(0, 60))[:-900]))])


def test_pictures_and_arrays_are_not_mixed_and_points_are_no_pictures(run: Run, files: list[str]) -> None:
    with pytest.raises(UsageError, match="x holds pictures and a ndarray"):
        run.predict([files[0], np.zeros((1, 32, 32))])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="points in the plane, which no picture is"):
        as_samples(files[0], (2,))
    assert as_samples([[0.5, 1.0]], (2,)) == [[0.5, 1.0]]


# ── where they are


def test_folders_are_read_in_and_below_by_name_without_hidden_ones_and_loops(tmp_path: Path) -> None:
    for name in ("b/2.png", "b/1.JPG", "a.png", "b/.hidden.png", ".git/x.png", "b/notes.txt", "c/d/e.webp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "c" / "up").symlink_to(tmp_path)
    found = [os.path.relpath(file, tmp_path) for file in Sources([str(tmp_path)])]
    assert found == ["a.png", "b/1.JPG", "b/2.png", "c/d/e.webp"]
    assert [Path(f).name for f in Sources([f"{tmp_path}/b/*"])] == ["1.JPG", "2.png"]
    assert [Path(f).name for f in Sources([f"{tmp_path}/*"])] == ["a.png", "1.JPG", "2.png", "e.webp"]
    assert sorted(Path(f).name for f in Sources([f"{tmp_path}/b/**"])) == ["1.JPG", "2.png"]
    assert list(Sources([f"{tmp_path}/b/notes.txt"])) == [f"{tmp_path}/b/notes.txt"]  # named: tried


def test_a_name_with_signs_of_a_pattern_is_a_name_first(tmp_path: Path) -> None:
    (tmp_path / "a[1].png").touch()
    (tmp_path / "a1.png").touch()
    assert [Path(f).name for f in Sources([f"{tmp_path}/a[1].png"])] == ["a[1].png"]


def test_a_list_is_read_as_often_as_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.png").touch()
    with closing(Sources(["-"], io.BytesIO(f"one.png\r\n\n{tmp_path}/in\ntwo two.png".encode()))) as sources:
        assert list(sources) == list(sources) == ["one.png", f"{tmp_path}/in/x.png", "two two.png"]
        assert sources.count() == 3


def test_what_names_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\*: matches nothing"):
        Sources(["none*"]).count()
    with pytest.raises(UsageError, match="nowhere: no such file or folder"):
        Sources(["nowhere"]).count()
    with pytest.raises(UsageError, match=r"no pictures there \(png, jpg, webp or bmp\)"):
        Sources([str(tmp_path)]).count()


def test_processes_are_started_for_many_or_large_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs.joblib, "cpu_count", lambda: 3)
    assert processes_for(["none.png"] * 100) == 1
    assert processes_for(["none.png"] * 100_000) == 3
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(2**25)
    assert processes_for([str(tmp_path / "large.png")]) == 3


# ── how they stream


def test_rows_are_in_order_and_broken_files_have_a_reason(run: Run, files: list[str]) -> None:
    rows = flat(score(run, pieces(files)))
    columns = columns_of(run.class_names, False)
    assert [row[0] for row in rows] == files
    broken = dict(zip(columns, rows.pop(3), strict=True))
    assert broken.pop("error") == "not a png, jpg, webp or bmp picture"
    assert broken.pop("path") == files[3]
    assert set(broken.values()) == {None}
    whole = files[:3] + files[4:]
    expected, decided = run.predict(whole), run.decide(run.predict(whole))
    for k, row in enumerate(rows):
        values = dict(zip(columns, row, strict=True))
        assert values["label"] == run.class_names[expected.labels[k]]
        assert np.float32(values["probability"]) == expected.probs[k].max().numpy()
        for name in ("aleatoric", "epistemic", "foreignness"):
            assert np.float32(values[name]) == getattr(expected, name)[k].numpy()
        assert values["p_value"] == float(decided.p_value[k])
        assert values["decision"] == decided.words[k]
        assert values["set"] == [run.class_names[c] for c in decided.shown[k].nonzero()[:, 0].tolist()]
        assert values["error"] is None


def test_all_probabilities_are_columns_on_request(run: Run, files: list[str]) -> None:
    columns = columns_of(run.class_names, True)
    row = dict(zip(columns, flat(score(run, pieces(files[:1]), probabilities=True))[0], strict=True))
    probs = [row[f"probability_{name}"] for name in run.class_names]
    assert max(probs) == row["probability"]
    assert sum(probs) == pytest.approx(1, abs=1e-5)


def test_rows_without_decisions_have_none(run: Run, files: list[str]) -> None:
    columns = columns_of(run.class_names, False)
    row = dict(zip(columns, flat(score(run, pieces(files[:1]), decides=False))[0], strict=True))
    assert row["p_value"] is row["decision"] is row["set"] is None
    assert row["label"] in run.class_names


def test_files_of_which_none_can_be_read_are_rows_too(run: Run) -> None:
    rows = flat(score(run, pieces(["a.png", "b.png"])))
    assert [row[-1] for row in rows] == ["no such file or directory"] * 2


@pytest.mark.parametrize("processes", [1, 2])
def test_a_million_files_are_not_decoded_ahead(processes: int, files: list[str]) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for k in range(10**6):
            taken += 1
            yield files[k % 3]

    pixel_format = PixelFormat(256, 3)
    with decoders(processes) as pool, decoding(batches_of(endless(), PIECE), pixel_format, pool) as decoded:
        for _ in range(3):
            batch, (x, _) = next(decoded)
            assert x.shape == (len(batch), 3, 256, 256)
    bound = 2**25 / (3 * 256**2) + (3 + 1) * PIECE
    assert taken <= bound


def test_what_was_begun_ahead_is_given_up_at_once_and_in_silence(files: list[str]) -> None:
    """As by Ctrl-C; an exception in a thread of the pool would be an error here."""
    with decoders(2) as pool, decoding(batches_of(iter(files * 4000), 8), PIXEL_FORMAT, pool) as decoded:
        next(decoded)
        start = time.monotonic()
    assert time.monotonic() - start < 5


def test_worker_processes_give_what_this_one_gives_and_load_no_torch(files: list[str]) -> None:
    many = files * 40
    with decoders(2) as pool, decoding(batches_of(iter(many), 16), PIXEL_FORMAT, pool) as decoded:
        found = list(decoded)
    assert [file for batch, _ in found for file in batch] == many
    for batch, (x, broken) in found:
        expected, reasons = decode(batch, PIXEL_FORMAT)
        assert broken == reasons
        whole = np.delete(np.arange(len(batch)), list(broken))
        assert np.array_equal(x[whole], expected[whole])
    script = "import sys, uqgan.data.decode; print({'torch', 'pyarrow', 'sklearn', 'rich'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "set()\n"
    )


def test_if_a_worker_is_killed_this_process_decodes(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import joblib.externals.loky.process_executor as loky

    submit = loky.ProcessPoolExecutor.submit
    monkeypatch.setattr(loky.ProcessPoolExecutor, "submit", lambda pool, *_: submit(pool, os._exit, 1))
    with decoders(2) as pool, decoding(batches_of(iter(files), 2), PIXEL_FORMAT, pool) as decoded:
        found = list(decoded)
    assert [file for batch, _ in found for file in batch] == files


def test_a_pipe_named_like_a_picture_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    assert decode([str(tmp_path / "pipe.png"), "a\0b.png"], PIXEL_FORMAT)[1] == {
        0: "not a regular file",
        1: "embedded null byte",
    }


@pytest.mark.parametrize(("cores", "slow", "threads"), [(2, False, 1), (2, True, 2), (8, True, 8), (1, True, 1)])
def test_a_small_network_leaves_cores_to_decoding(
    run: Run, cores: int, slow: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**6)) if slow else iter(np.arange(0, 1, 1e-5))
    monkeypatch.setattr("uqgan.scoring.time.perf_counter", lambda: next(clock))
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    try:
        assert threads_beside(run, cores) == threads
        assert torch.get_num_threads() == 8
    finally:
        torch.set_num_threads(before)


def test_draws_follow_from_the_chunk_alone(dropout: Run, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert chunk_size(dropout) == PIECE
    many = [files[0]] * (2 * PIECE + 5)
    whole = list(score(dropout, pieces(many), seed=4))
    assert [len(rows) for rows in whole] == [PIECE, PIECE, 5]
    assert list(score(dropout, pieces(many[PIECE:]), seed=4, first=1)) == whole[1:]
    assert whole[0] != whole[1]  # masks differ from chunk to chunk
    first = dropout.predict(many[:PIECE], seed=4)
    assert [row[2] for row in whole[0]] == numbers(first.probs.amax(1))


def test_networks_that_draw_weights_are_the_same_for_all_chunks(files: list[str]) -> None:
    a, b, *_ = score(fitted("bayes"), pieces([files[0]] * 2 * PIECE))
    assert np.allclose(a[0][2], b[0][2], atol=1e-6)


def test_numbers_are_written_as_short_as_float32_allows() -> None:
    column = torch.tensor([0.1, 1 / 3, 1e-30, 0.0])
    found = numbers(column)
    assert found[0] == 0.1
    assert torch.equal(torch.tensor(found, dtype=torch.float32), column)


def test_a_summary_keeps_few_rows_of_any_number(run: Run) -> None:
    columns = columns_of(run.class_names, False)
    x = run.task.test.x
    found = run.predict(x)
    rows = rows_of([f"{k}.png" for k in range(len(x))], {}, found, run.decide(found), run.class_names, False)
    summary = Summary(columns, "epistemic", shown=3, pictures=2)
    summary.add(rows)
    summary.add(rows)
    assert summary.n == 2 * len(x) == sum(summary.counts.values())
    assert summary.first == rows[:3]
    word = summary.counts.most_common(1)[0][0]
    key = columns.index("aleatoric" if word == "ambiguous" else "epistemic")
    largest = max(row[key] for row in rows if row[columns.index("decision")] == word)
    assert [row[key] for row in summary.chosen(word)] == [largest] * 2
    assert list(summary.scores)[: len(x)] == pytest.approx(found.epistemic.tolist())
    assert run.drift(found).share == pytest.approx(run.drift(run.predict(torch.cat([x, x]))).share)
    assert f"{2 * len(x)} flagged" in summary.drift(run)


# ── what becomes of them

ROWS: list[list[Row]] = [
    [["a.png", "cat", 0.25, ["cat", "dog"], None], ['b, "c"\n.png', None, None, None, "broken"]],
    [["ü.png", "dog", 1e-9, [], None]],
]
COLUMNS = ["path", "label", "p_value", "set", "error"]


def table(file: Path, resume: bool = False, **facts: object) -> Table:
    return Table(file, COLUMNS, {"seed": 0} | facts, 2, resume)


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet", ".CSV"])
def test_every_format_gives_back_what_was_put_in(tmp_path: Path, ending: str) -> None:
    made = table(tmp_path / f"out{ending}")
    for rows in ROWS:
        made.append(rows)
    made.finish()
    made.close()
    assert [each.name for each in tmp_path.iterdir()] == [f"out{ending}"]
    expected = [dict(zip(COLUMNS, row, strict=True)) for rows in ROWS for row in rows]
    if ending == ".parquet":
        assert pq.read_table(tmp_path / "out.parquet").to_pylist() == expected
    elif ending == ".jsonl":
        assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == expected
    else:
        with (tmp_path / f"out{ending}").open(newline="", encoding="utf-8") as stream:
            found = list(csv.DictReader(stream))
        assert [each["path"] for each in found] == [each["path"] for each in expected]
        assert [each["p_value"] for each in found] == ["0.25", "", "1e-09"]
        assert [each["set"] for each in found] == ["cat|dog", "", ""]
        assert [each["error"] for each in found] == ["", "broken", ""]


@pytest.mark.parametrize("tail", [b"", b'["c.png", "ca', b'["c.png","cat",1,[],null]\n', b"\0\0\0"])
def test_what_a_killed_process_left_is_cut_to_whole_chunks(tmp_path: Path, tail: bytes) -> None:
    file = tmp_path / "out.jsonl"
    made = table(file)
    made.append(ROWS[0])
    made.close()
    with made.part.open("ab") as part:
        part.write(tail)
    with pytest.raises(UsageError, match=r"out.jsonl.part: holds 2 rows \(--resume to go on with them"):
        table(file)
    again = table(file, resume=True)
    assert list(again.rows()) == ROWS[0]
    again.append(ROWS[1])
    again.finish()
    again.close()
    lines = [json_line(COLUMNS, row) for rows in ROWS for row in rows]
    assert file.read_text() == "".join(lines)


def test_rows_made_otherwise_are_not_put_beside_them(tmp_path: Path) -> None:
    made = table(tmp_path / "out.csv")
    made.append(ROWS[0])
    with pytest.raises(UsageError, match="another process is writing it"):
        table(tmp_path / "out.csv", resume=True)
    made.close()
    with pytest.raises(UsageError, match=r"was begun with another seed: 0 instead of 7"):
        table(tmp_path / "out.csv", resume=True, seed=7)
    table(tmp_path / "out.csv", resume=True).close()


def test_nothing_that_was_kept_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "out.csv.part").write_bytes(b"torn")
    made = table(tmp_path / "out.csv")
    made.finish()
    made.close()
    assert (tmp_path / "out.csv").read_text() == ",".join(COLUMNS) + "\n"


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"out.txt: must end in .csv, .jsonl, .parquet"):
        table(tmp_path / "out.txt")


def test_copies_replace_nothing_and_are_made_once(tmp_path: Path) -> None:
    a, b = write_folder(tmp_path / "a") / "cat" / "0.png", write_folder(tmp_path / "b") / "cat" / "0.png"
    assert a.read_bytes() != b.read_bytes()
    for _ in range(2):  # as when a command is repeated
        folders = Folders(tmp_path / "out", [tmp_path / "a", tmp_path / "b"])
        folders.copy(str(a), "accept", "cat/1")
        folders.copy(str(b), "accept", "cat/1")
        folders.copy(str(a), "unknown", "cat/1")
    found = {str(each.relative_to(tmp_path / "out")): each.read_bytes() for each in (tmp_path / "out").rglob("*.png")}
    assert found == {
        "accept/cat_1/0.png": a.read_bytes(),
        "accept/cat_1/0-2.png": b.read_bytes(),
        "unknown/0.png": a.read_bytes(),
    }
    assert a.exists()
    assert b.exists()


def test_copies_are_not_put_where_pictures_are_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which is read"):
        Folders(tmp_path / "in" / "out", Sources([f"{tmp_path}/in"]).folders() or [tmp_path / "in"])


@pytest.mark.parametrize(("label", "name"), [("cat", "cat"), ("a/b", "a_b"), ("..", "_"), ("", "_"), ("a\0", "a_")])
def test_a_label_is_always_the_name_of_one_folder(label: str, name: str) -> None:
    assert folder_name(label) == name


def test_points_have_no_look() -> None:
    with pytest.raises(UsageError, match="points in the plane"):
        pixel_format_of((2,))
    assert pixel_format_of((3, 64, 64)) == PixelFormat(64, 3)
