"""`uqgan train TASK --help`: the same page with the settings that the task has."""

from collections.abc import Sequence
from copy import copy
from types import FunctionType
from typing import Annotated, Any

from cyclopts import App, Group, Parameter
from pydantic import create_model

from uqgan.cli.work import train
from uqgan.config import Config, Settings, parse, task_settings


def show_help_of_task(words: Sequence[str]) -> bool:
    """Whether the command was to show help about training a task that has settings of its own; it is printed then."""
    if words[:1] != ["train"] or not {"--help", "-h"} & set(words):
        return False
    known = [word for word in words[1:] if not word.startswith("-") and task_settings(word)]
    if known:
        title = f"Settings (those of {known[0]})"
        page = App(name="uqgan train", help_format="plaintext", default_parameter=Parameter(negative=()))
        page.default(with_settings(parse(task_settings(known[0])), title))
        page.help_print([])
    return bool(known)


def with_settings(config: Config, title: str) -> FunctionType:
    """The command `train` with other defaults of its settings."""
    assert isinstance(train, FunctionType)
    command = FunctionType(train.__code__, train.__globals__, "train", train.__defaults__, train.__closure__)
    command.__kwdefaults__, command.__doc__ = train.__kwdefaults__, train.__doc__
    own: Any = Annotated[defaults(config) | None, Parameter(name="*", group=Group(title))]
    command.__annotations__ = train.__annotations__ | {"settings": own}
    return command


def defaults(settings: Settings) -> type[Settings]:
    """A class of settings whose defaults are these values."""
    fields: dict[str, Any] = {}
    for name, info in type(settings).model_fields.items():
        value = getattr(settings, name)
        field, section = copy(info), defaults(value) if isinstance(value, Settings) else None
        field.default = section() if section else value
        fields[name] = (section or info.annotation, field)
    return create_model(type(settings).__name__, __base__=type(settings), **fields)
