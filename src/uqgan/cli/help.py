"""Help of `uqgan train TASK`, with the settings of the task."""

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any

from cyclopts import App, Group, Parameter
from pydantic import create_model

from uqgan.cli.app import Voice
from uqgan.cli.work import train
from uqgan.config import Config, Settings, parse, task_settings
from uqgan.errors import UsageError


def show_help_of_task(words: Sequence[str]) -> bool:
    """Whether the command requests help about training a task with particular settings, which is then printed."""
    if words[:1] != ["train"] or not {"--help", "-h"} & set(words):
        return False
    names = [word for word in words[1:] if not word.startswith("-")]
    known = next(((name, parse(task_settings(name))) for name in names if task_settings(name)), None)
    known = known or next(filter(None, (settings_of_pictures(name, words) for name in names)), None)
    if known:
        name, config = known
        page = App(name="uqgan train", help_format="plaintext", default_parameter=Parameter(negative=()))
        page.default(with_settings(config, f"Settings (those of {name})"))
        page.help_print([])
    return known is not None


def settings_of_pictures(name: str, words: Sequence[str]) -> tuple[str, Config] | None:
    """Settings for user-supplied pictures, by their size and number; None if there are none."""
    if not Path(name).exists():
        return None
    from uqgan import api
    from uqgan.data.tasks import is_user_data

    sizes = [size for option, size in pairwise(words) if option == "--image-size" and size.isdecimal()]
    try:
        if is_user_data(name):
            size = int(sizes[0]) if sizes else None
            return name, api.settings_of(api.load_task(name, image_size=size, skip_broken=True, say=Voice().say))
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
