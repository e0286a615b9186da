from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from uqgan.config import Config, UqganConfig, load_config, parse, suggest
from uqgan.errors import UsageError


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({"uqgan": {"lamda_real": 1}}, "uqgan.lamda_real: unknown setting; did you mean lambda_real?"),
        ({"uqgan": {"lambda_real": 1.4}}, "uqgan.lambda_real = 1.4: must be at most 1.0"),
        ({"uqgan": {"iterations": "many"}}, "uqgan.iterations = 'many': must be a whole number"),
        ({"uqgan": {"iterations": 2.5}}, "uqgan.iterations = 2.5: must be a whole number"),
        ({"uqgan": {"batch_size": -3}}, "uqgan.batch_size = -3: must be at least 2"),
        ({"uqgan": {"lr": 0}}, "uqgan.lr = 0: must be greater than 0.0"),
        ({"uqgan": {"lr": float("nan")}}, "uqgan.lr = nan: must be finite"),
        ({"classifier": "lent"}, "classifier = 'lent': must be one of 'mlp', 'lenet', 'resnet' or 'custom'"),
        ({"uqgann": {}}, "uqgann: unknown setting; did you mean uqgan?"),
        ({"uqgan": 3}, "uqgan = 3: must be a section of settings"),
        ({"qqq": 1}, "qqq: unknown setting"),
    ],
)
def test_wrong_settings_are_named_with_their_value_and_rule(tree: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(tree)
    assert str(error.value) == sentence


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(UsageError, match=r"batch_size = 0: .*; .*lambda_gp = -1"):
        parse({"uqgan": {"batch_size": 0, "lambda_gp": -1}})


def test_networks_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(UsageError, match=r"classifier = lenet: does not go with autoencoder\.kind = identity"):
        parse({"classifier": "lenet"})


def test_a_file_changes_the_tasks_settings_and_overrides_change_the_files(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("uqgan:\n  lambda_real: 0.5\n  lambda_gp: 5\n  lr: 1e-3\n")
    config = load_config("gaussians", file, {"uqgan": {"lambda_gp": 7}})
    assert config.uqgan.iterations == 600  # the task's
    assert config.uqgan.lambda_real == 0.5  # the file's
    assert config.uqgan.lambda_gp == 7  # the override's
    assert config.uqgan.lr == 1e-3  # YAML reads 1e-3 as a string
    assert config.uqgan.critic_steps == 5  # the default


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("uqgan: [", "not valid YAML at line"),
        ("- 1\n", "must hold sections such as 'uqgan:', not a list"),
        ("uqgan:\n  lamda_cl: 1\n", "uqgan.lamda_cl: unknown setting; did you mean lambda_cl?"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        load_config("moons", file)
    assert sentence in str(error.value)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("")
    assert load_config("moons", file) == load_config("moons")


def test_a_missing_or_unreadable_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_config("moons", tmp_path / "none.yaml")
    with pytest.raises(UsageError, match=r"is a folder \(give a YAML file\)$"):
        load_config("moons", tmp_path)
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UsageError, match=rf"is a folder \(give {tmp_path / 'config.yaml'}\)$"):
        load_config("moons", tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        load_config("moons", tmp_path / "binary.yaml")


def test_settings_cannot_be_changed_once_made() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        UqganConfig().lr = 1.0  # type: ignore[misc]


def test_every_setting_has_a_help_text() -> None:
    for name, field in Config.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        for key, each in (inner or {name: field}).items():
            assert each.description, f"{name}.{key} needs a docstring"


def test_suggestions_come_only_where_something_is_near() -> None:
    assert suggest("moonz", ["moons", "digits"]) == "; did you mean moons?"
    assert suggest("xyz", ["moons", "digits"]) == ""
