import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import uqgan
from uqgan.config import load_config
from uqgan.errors import RunFailed, UsageError
from uqgan.evaluation import evaluate
from uqgan.files import write_bytes, write_json
from uqgan.report.page import Chapter, write_report

QUICK = load_config("moons", overrides={"uqgan": {"iterations": 2, "batch_size": 8, "validate_every": 1}})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    uqgan.fit("uqgan", "moons", config=QUICK, folder=folder)
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(whole, tmp_path / "run"))


def test_a_run_holds_what_is_needed_and_nothing_pickled(run: Path) -> None:
    names = {file.name for file in run.iterdir() if file.name != "tensorboard"}
    assert names == {"config.yaml", "weights.safetensors", "log.jsonl", "calibration.npz", "about.json"}
    about = json.loads((run / "about.json").read_text())
    assert about["finished"]
    assert about["versions"]["torch"] == torch.__version__.partition("+")[0] or "+" in about["versions"]["torch"]


@pytest.mark.parametrize("name", ["config.yaml", "weights.safetensors", "about.json"])
def test_a_run_with_a_missing_file_is_refused_with_its_name(run: Path, name: str) -> None:
    (run / name).unlink()
    with pytest.raises(UsageError, match=f"not a whole run, {name} is missing"):
        uqgan.load(run)


def test_a_run_with_damaged_weights_is_refused(run: Path) -> None:
    file = run / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(UsageError, match=r"damaged, its sha256 is not the one in about\.json"):
        uqgan.load(run)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "task: moons\n"),
        ("config.yaml", "[1"),
        ("config.yaml", "3\n"),
        ("about.json", "{"),
    ],
)
def test_a_run_with_a_damaged_file_is_refused_with_its_name(run: Path, name: str, text: str) -> None:
    (run / name).write_text(text)
    with pytest.raises(UsageError, match=f"{name}: damaged"):
        uqgan.load(run)


@pytest.mark.parametrize(
    "damage",
    [
        '{"half',
        "[1, 2]\n",
        '{"loss": 1}\n',
        *(f'{{"stage": "uqgan", "step": 1, "accuracy": {value}}}\n' for value in ("null", '"abc"', '{"a": 1}', "NaN")),
        '{"stage": "uqgan", "step": true}\n',
        None,
    ],
)
def test_a_run_whose_log_is_damaged_or_gone_is_read_without_it(run: Path, damage: str | None, tmp_path: Path) -> None:
    whole, log = uqgan.load(run), run / "log.jsonl"
    assert whole.record.notes == ()
    log.unlink() if damage is None else log.write_text(damage)
    loaded = uqgan.load(run)
    assert loaded.record.log == []
    (note,) = loaded.record.notes
    assert note.endswith("the run is read without its log, so it has no curves")
    outputs = loaded.outputs()
    assert outputs.test.probs.equal(whole.outputs().test.probs)
    write_report([Chapter(loaded.record, loaded.task, outputs, evaluate(outputs, 0))], tmp_path / "page.html")


@pytest.mark.parametrize(
    ("was", "now"), [("noise: 128", "noise: 64"), ("- '1'", "- '1'\n- '2'"), ("- 2\n", "- 1\n- 8\n- 8\n")]
)
def test_weights_that_do_not_fit_a_changed_config_are_refused_with_the_reason(run: Path, was: str, now: str) -> None:
    text = (run / "config.yaml").read_text()
    assert was in text
    (run / "config.yaml").write_text(text.replace(was, now))
    with pytest.raises(
        UsageError, match=r"config\.yaml was changed after training \(put it back, or train it again\)$"
    ):
        uqgan.load(run)


@pytest.mark.parametrize(
    ("was", "now", "sentence"),
    [
        ("method: uqgan", "method: nope", "method = nope: no such method"),
        ("classifier: mlp", "classifier: lenet", "classifier = lenet: does not go with autoencoder.kind = identity"),
        ("classifier: mlp", "classifier: custom", "classifier = custom: custom_classifier, .* is missing"),
        ("noise: 128", "noises: 128", "uqgan.noises: unknown setting; did you mean noise"),
    ],
)
def test_a_wrong_value_in_the_config_of_a_run_is_named(run: Path, was: str, now: str, sentence: str) -> None:
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace(was, now, 1))
    with pytest.raises(UsageError, match=rf"config\.yaml: {sentence}.* \(changed by hand, or saved by another version"):
        uqgan.load(run)


def test_weights_of_another_versions_networks_are_refused_with_both_versions(run: Path) -> None:
    text = (run / "config.yaml").read_text().replace("noise: 128", "noise: 64")
    (run / "config.yaml").write_text(text)
    about = json.loads((run / "about.json").read_text())
    write_json(run / "about.json", about | {"versions": about["versions"] | {"uqgan": "0.0.9"}})
    fix = rf"it was written by uqgan 0\.0\.9, this is {uqgan.__version__} \(train it again\)"
    with pytest.raises(UsageError, match=rf"does not fit the networks of config\.yaml; {fix}"):
        uqgan.load(run)


def test_a_run_of_the_old_layout_is_one_sentence(run: Path) -> None:
    text = (run / "config.yaml").read_text().replace("  autoencoder:\n", "  autoencoder:\n    fresh: false\n")
    (run / "config.yaml").write_text(text)
    with pytest.raises(
        UsageError, match=r"autoencoder\.fresh: unknown setting \(changed by hand, or saved by .*train it again"
    ):
        uqgan.load(run)


def test_a_run_is_not_overwritten_by_accident(run: Path) -> None:
    with pytest.raises(UsageError, match="holds a run already"):
        uqgan.fit("uqgan", "moons", config=QUICK, folder=run)
    assert uqgan.load(run).record.about["finished"]


def test_a_run_is_not_resumed_with_other_settings(run: Path) -> None:
    other = load_config("moons", overrides={"uqgan": {"iterations": 3, "batch_size": 8, "validate_every": 1}})
    with pytest.raises(UsageError, match=r"other settings \(uqgan.iterations was 2, is 3\)"):
        uqgan.fit("uqgan", "moons", config=other, folder=run, resume=True)


def test_a_finished_run_resumed_is_the_same_run_and_no_file_is_touched(run: Path) -> None:
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in run.iterdir() if file.is_file()}
    again = uqgan.fit("uqgan", "moons", config=QUICK, folder=run, resume=True)
    assert {f.name: (f.read_bytes(), f.stat().st_mtime_ns) for f in run.iterdir() if f.is_file()} == before
    assert len(again.record.log) == 2


def test_overwrite_deletes_the_run_and_nothing_else(run: Path) -> None:
    (run / "thesis.txt").write_text("years of work")
    uqgan.fit("uqgan", "moons", config=QUICK, folder=run, overwrite=True)
    assert (run / "thesis.txt").read_text() == "years of work"
    assert uqgan.load(run).record.about["finished"]


def test_a_run_decides_without_its_data_as_it_did_after_training(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x = uqgan.load_task("moons").test.x[:200]
    trained = uqgan.fit("uqgan", "moons", config=QUICK)
    monkeypatch.setattr("uqgan.elsewhere.load_task", no_data)
    loaded = uqgan.load(run)
    assert loaded.decide(x).words == trained.decide(x).words
    assert torch.equal(loaded.decide(x).p_value, trained.decide(x).p_value)
    assert loaded.drift(x).verdict == trained.drift(x).verdict
    again = uqgan.load(loaded.save(tmp_path / "copy"))
    assert torch.equal(again.decide(x).sets, loaded.decide(x).sets)


def no_data(*_: object) -> None:
    raise AssertionError("the data were asked for")


def test_a_rule_is_kept_with_its_run_and_changes_what_is_decided(run: Path, tmp_path: Path) -> None:
    x = uqgan.load_task("moons").test.x[:500]
    loaded = uqgan.load(run)
    before = loaded.decide(x)
    rule = loaded.calibrate(0.4, coverage=0.6, score="foreignness", per_label=True, sets="aps")
    after = loaded.decide(x)
    assert after.flagged.sum() > before.flagged.sum()
    assert uqgan.load(run).rule == loaded.rule == rule
    assert uqgan.load(run).decide(x).words == after.words
    assert uqgan.load(loaded.save(tmp_path / "copy")).rule == rule
    with pytest.raises(UsageError, match="false_alarm = 0: must be a number above 0 and below 1"):
        loaded.calibrate(0)
    with pytest.raises(UsageError, match="false_alarm = 1e-06: needs 999,999 calibration samples, there are 10,000"):
        loaded.calibrate(1e-6)
    assert uqgan.load(run).rule == loaded.rule == rule, "what is refused changes nothing"


def test_an_older_run_without_calibration_makes_it_from_its_task_and_keeps_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = uqgan.load(run).calibration
    (run / "calibration.npz").unlink()
    loaded = uqgan.load(run)
    assert torch.equal(loaded.calibration.prediction.epistemic, made.prediction.epistemic)
    assert loaded.calibration.temperature == made.temperature
    assert not (run / "calibration.npz").exists(), "reading changes no folder"
    loaded.calibrate()
    monkeypatch.setattr("uqgan.elsewhere.load_task", no_data)
    assert torch.equal(uqgan.load(run).calibration.y, made.y)


def test_damaged_calibration_leaves_the_rest_of_a_run_usable(run: Path) -> None:
    (run / "calibration.npz").write_bytes(b"half")
    (run / "decisions.json").write_text("{")
    loaded = uqgan.load(run)
    x = torch.zeros(3, 2)
    assert loaded.predict(x).probs.shape == (3, 2)
    with pytest.raises(UsageError, match=r"calibration\.npz: damaged"):
        loaded.decide(x)
    with pytest.raises(UsageError, match=r"decisions\.json: damaged"):
        _ = loaded.rule


def test_overwrite_forgets_the_rule(run: Path) -> None:
    uqgan.load(run).calibrate(0.3)
    uqgan.fit("uqgan", "moons", config=QUICK, folder=run, overwrite=True)
    assert not (run / "decisions.json").exists()
    assert uqgan.load(run).rule.false_alarm == 0.05


def test_a_run_that_was_stopped_early_decides_too(tmp_path: Path) -> None:
    stopped = uqgan.fit(
        "uqgan", "moons", config=QUICK.model_copy(update={"fresh": True}), max_minutes=1e-9, folder=tmp_path / "run"
    )
    assert not stopped.record.about["finished"]
    assert len(uqgan.load(tmp_path / "run").decide(torch.zeros(3, 2)).words) == 3


def test_a_folder_with_a_config_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: my project\n")
    with pytest.raises(UsageError, match=r"config\.yaml: damaged, or no run's"):
        uqgan.fit("uqgan", "moons", config=QUICK, folder=tmp_path, overwrite=True)
    assert (tmp_path / "config.yaml").read_text() == "name: my project\n"


def test_a_run_that_fails_before_its_first_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RunFailed("out of luck")

    monkeypatch.setattr("uqgan.methods.uqgan.fit", broken)
    with pytest.raises(RunFailed, match="out of luck"):
        uqgan.fit("uqgan", "moons", config=QUICK.model_copy(update={"fresh": True}), folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("text", ["[]", "null", '{"finished": true}'])
def test_circumstances_that_are_not_whole_are_damage(run: Path, text: str) -> None:
    (run / "about.json").write_text(text)
    with pytest.raises(UsageError, match=r"about\.json: damaged"):
        uqgan.load(run)


def test_other_data_under_the_same_name_are_refused(run: Path) -> None:
    loaded = uqgan.load(run)
    loaded.record = replace(loaded.record, plan=replace(loaded.record.plan, class_names=("x", "y")))
    with pytest.raises(UsageError, match="its classes or shape are not those of the run"):
        loaded.evaluate()
    loaded = uqgan.load(run)
    loaded.record = replace(loaded.record, plan=replace(loaded.record.plan, digest="other"))
    with pytest.raises(UsageError, match="its pictures changed since the run was trained"):
        loaded.evaluate()


@pytest.mark.parametrize(
    ("task", "overrides"),
    [
        ("digits", {"classifier": "mlp", "autoencoder": {"kind": "identity"}}),
        ("moons", {"classifier": "lenet", "autoencoder": {"kind": "small"}}),
    ],
)
def test_networks_that_cannot_take_the_inputs_are_refused(task: str, overrides: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"does not take inputs of shape"):
        uqgan.fit("uqgan", task, **overrides)


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_seeds_out_of_range_are_refused(seed: int) -> None:
    with pytest.raises(UsageError, match=f"seed = {seed}: must be within 0 to 2147483647"):
        uqgan.fit("uqgan", "moons", seed=seed)


def test_a_link_is_followed_and_a_device_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"
    with pytest.raises(RunFailed, match="it is no plain file"):
        write_bytes(Path("/dev/null"), b"gone")
    with pytest.raises(RunFailed, match="it is no plain file"):
        write_bytes(tmp_path, b"gone")


def test_an_unfinished_run_says_how_to_go_on(run: Path) -> None:
    (run / "about.json").unlink()
    (run / "resume").mkdir()
    with pytest.raises(UsageError, match=r"has not finished .*--resume"):
        uqgan.load(run)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_bytes(file, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunFailed, match=r"file: could not be written, no space left on device \(free some space\)"):
        write_bytes(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_is_a_sentence() -> None:
    with pytest.raises(RunFailed, match="could not be written"):
        write_json(Path("/dev/full/x.json"), {})


def test_keywords_are_the_recipes_settings_or_whole_sections() -> None:
    run = uqgan.fit("uqgan", "moons", iterations=1, batch_size=8, validate_every=1, autoencoder={"lr": 0.5})
    assert run.record.plan.config.uqgan.iterations == 1
    assert run.record.plan.config.autoencoder.lr == 0.5
    with pytest.raises(UsageError, match="lamda_gp: unknown setting; did you mean lambda_gp"):
        uqgan.fit("uqgan", "moons", lamda_gp=3)
    with pytest.raises(UsageError, match="method = uqgam: no such method; did you mean uqgan"):
        uqgan.fit("uqgam", "moons")
    with pytest.raises(UsageError, match="iterations: give settings as keywords or as a Config, not both"):
        uqgan.fit("uqgan", "moons", config=QUICK, iterations=3)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"method": "uqgam"}, "method = uqgam: no such method"),
        ({"seed": -1}, "seed = -1: must be"),
        ({"device": "tpu"}, "device = tpu: must be"),
    ],
)
def test_method_seed_and_device_are_checked_before_the_data_are_loaded(
    wrong: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uqgan.api.load_task", lambda *_, **__: pytest.fail("the data were loaded"))
    with pytest.raises(UsageError, match=sentence):
        uqgan.fit(**{"method": "uqgan", "task": "moons"} | wrong)


def test_devices_that_are_not_there_are_refused() -> None:
    from uqgan.acceleration import choose_device

    assert choose_device("cpu").type == "cpu"
    with pytest.raises(UsageError, match="device = cpu:: must be"):
        choose_device("cpu:")
    with pytest.raises(UsageError, match="device = tpu: must be auto, cpu, cuda or mps"):
        choose_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="device = cuda: there is none on this machine"):
            choose_device("cuda")
