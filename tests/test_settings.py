from importlib import resources

import pytest
import yaml

from uqgan.config import load_config
from uqgan.data.tasks import TASKS

FILES = sorted(file.name for file in (resources.files("uqgan") / "settings").iterdir() if file.name.endswith(".yaml"))


@pytest.mark.parametrize("file", FILES)
def test_every_settings_file_parses_and_belongs_to_a_task(file: str) -> None:
    name = file.removesuffix(".yaml")
    assert name in TASKS
    load_config(name)


@pytest.mark.parametrize("file", FILES)
def test_every_settings_file_says_what_it_is_for_and_changes_something(file: str) -> None:
    text = (resources.files("uqgan") / "settings" / file).read_text()
    assert text.startswith("# ")
    assert yaml.safe_load(text)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_settings(name: str) -> None:
    assert f"{name}.yaml" in FILES
