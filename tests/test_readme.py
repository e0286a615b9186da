"""What the README shows must run."""

import re
import shlex
import sys
from pathlib import Path

import pytest

import uqgan
from pictures import write_folder
from uqgan.cli import app, main
from uqgan.methods import METHODS
from uqgan.run import Run

README = (Path(__file__).parent.parent / "README.md").read_text()
SMALL = {
    "uqgan": {"iterations": 2, "batch_size": 16, "validate_every": 1},
    "autoencoder": {"epochs": 1, "batch_size": 64},
}


def blocks(language: str) -> list[str]:
    return [text for name, text in re.findall(r"^```(\w*)\n(.*?)^```", README, re.S | re.M) if name == language]


def test_the_python_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fit = uqgan.fit

    def quick(method: str, task: str, seed: int) -> Run:
        return fit(method, task, seed=seed, **SMALL)

    monkeypatch.setattr(uqgan, "fit", quick, raising=False)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    (example,) = blocks("python")
    exec(example, names)
    assert (tmp_path / "runs" / "mine" / "weights.safetensors").exists()


def commands() -> list[str]:
    lines = [line for block in blocks("") for line in block.splitlines() if line.startswith("uqgan ")]
    return [re.sub(r"\s{2,}.*|\s+\[.*", "", part) for line in lines for part in line.split(" · ")]


def test_the_readme_shows_commands() -> None:
    assert len(commands()) >= 6


@pytest.mark.parametrize("line", commands())
def test_every_command_shown_can_be_parsed(line: str) -> None:
    words = shlex.split(line)[1:]
    app.parse_args(words, print_error=False, exit_on_error=False)


def test_the_commands_about_a_run_work_on_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    uqgan.fit("uqgan", "digits", folder="runs/digits/uqgan/seed-0", **SMALL)
    for line in commands():
        if "runs/digits" in line:
            monkeypatch.setattr(sys, "argv", shlex.split(line))
            main()
    assert (tmp_path / "report.html").exists()


def test_the_commands_from_a_folder_to_decisions_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", n=130)
    write_folder(tmp_path / "new", n=3)
    small = {"classifier": "lenet"} | SMALL | {"autoencoder": SMALL["autoencoder"] | {"kind": "small"}}
    monkeypatch.setattr("uqgan.api.settings_for_pictures", lambda *_: small)
    monkeypatch.chdir(tmp_path)
    lines = [line for line in commands() if "photos" in line]
    assert [shlex.split(line)[1] for line in lines] == ["train", "calibrate", "predict", "report"]
    for line in lines:
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        main()
    assert len((tmp_path / "decisions.csv").read_text().splitlines()) == 1 + 6
    assert (tmp_path / "decisions.html").exists()
    assert (tmp_path / "report.html").exists()


def test_every_method_is_named() -> None:
    listed = README[README.index("All twelve methods") : README.index("## Two commands")]
    assert set(re.findall(r"`([a-z-]+)`", listed)) == set(METHODS)


@pytest.mark.parametrize("target", ["demo", "test", "check", "docs", "results", "bench", "clean"])
def test_every_make_target_is_there(target: str) -> None:
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, re.M)


def test_every_file_and_link_named_is_there() -> None:
    root = Path(__file__).parent.parent
    paths = re.findall(r"`((?:src|docs|benchmarks|results)/[^`\s]*|ARCHITECTURE\.md)`", README)
    links = re.findall(r"\]\(((?!http)[^)]+)\)", README)
    assert paths
    for path in paths + links:
        assert (root / path).exists(), path


def test_the_functions_that_a_batch_passes_exist() -> None:
    text = (Path(__file__).parent.parent / "ARCHITECTURE.md").read_text()
    way = text.partition("## The way of a batch")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d\. .*?(?=^\d\. |^$)", way, re.S | re.M)
    source = "\n".join(file.read_text() for file in Path(uqgan.__file__).parent.rglob("*.py"))
    names = {name for step in steps for name in re.findall(r"`([\w.]+)`", step)}
    assert len(names) > 30
    for name in names:
        last = name.rpartition(".")[2]
        is_file = (Path(uqgan.__file__).parent / f"{name.replace('.', '/')}.py").exists()
        is_module = is_file or any(Path(uqgan.__file__).parent.rglob(f"{last}.py"))
        assert is_module or re.search(rf"\b(def|class) {last}\b", source), name
