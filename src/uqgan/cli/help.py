"""Help of `uqgan train TASK`, with the settings of the task."""

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter
from pydantic import ValidationError, create_model

from uqgan.cli.app import Voice, app
from uqgan.cli.work import Pictures, train
from uqgan.config import Config, Settings, parse, task_settings
from uqgan.errors import UsageError


def show_help_of_task(words: Sequence[str]) -> bool:
    """Whether the command requests help about training a task with particular settings, which is then printed."""
    if words[:1] != ["train"] or not {"--help", "-h"} & set(words):
        return False
    name, pictures = requested([word for word in words if word not in ("--help", "-h")])
    named = task_settings(name)
    config = parse(named) if named else settings_of_pictures(name, pictures.image_size)
    if config:
        page = App(name="uqgan train", help_format="plaintext", default_parameter=Parameter(negative=()))
        page.default(with_settings(config, f"Settings (those of {name})"))
        page.help_print([])
    return config is not None


def requested(words: Sequence[str]) -> tuple[str, Pictures]:
    """Task of a training, and the options for its pictures; an empty name if the words are no whole command."""
    try:
        given = app.parse_args(words, print_error=False, exit_on_error=False)[1].arguments
    except (CycloptsError, ValidationError):
        return "", Pictures()
    return given["task"], given.get("pictures", Pictures())


def settings_of_pictures(name: str, size: int | None) -> Config | None:
    """Settings for user-supplied pictures, by their size and number; None if there are none."""
    if not (name and Path(name).exists()):
        return None
    from uqgan import api
    from uqgan.data.tasks import is_user_data

    try:
        if is_user_data(name):
            return api.settings_of(api.load_task(name, image_size=size, skip_broken=True, say=Voice().say))
    except UsageError:  # training will report it
        pass
    return None


def with_settings(config: Config, title: str) -> FunctionType:
    """The command `train` with other default settings."""
    assert isinstance(train, FunctionType)
    command = FunctionType(train.__code__, train.__globals__, "train", train.__defaults__, train.__closure__)
    command.__kwdefaults__, command.__doc__ = train.__kwdefaults__, train.__doc__
    own: Any = Annotated[defaults(config) | None, Parameter(name="*", group=Group(title))]
    command.__annotations__ = train.__annotations__ | {"settings": own}
    return command


def defaults(settings: Settings) -> type[Settings]:
    """Class of settings with these values as defaults."""
    fields: dict[str, Any] = {}
    for name, info in type(settings).model_fields.items():
        value = getattr(settings, name)
        field, section = copy(info), defaults(value) if isinstance(value, Settings) else None
        field.default = section() if section else value
        fields[name] = (section or info.annotation, field)
    return create_model(type(settings).__name__, __base__=type(settings), **fields)
