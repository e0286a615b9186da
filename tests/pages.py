"""Pages taken apart, and runs that were never trained to make them of."""

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from typing import Any

import torch

from uqgan.config import load_config
from uqgan.data.tasks import Task, load_task
from uqgan.environment import circumstances
from uqgan.evaluation import evaluate, predict_task
from uqgan.report.page import Chapter
from uqgan.runs import Plan, Record

VOID = {"meta", "img", "br", "link", "input", "hr"}
LOG = [
    {"stage": "autoencoder", "step": 5, "reconstruction": 0.7, "validation": 0.6},
    {"stage": "uqgan", "step": 20, "critic": -1.0, "generator": 2.0, "classifier": 0.3, "accuracy": 0.5},
    {"stage": "uqgan", "step": 40, "critic": -0.5, "generator": 1.0, "classifier": 0.2, "accuracy": 0.7},
]


class Page(HTMLParser):
    """Tags, addresses, table rows and words of a page; fails where a tag is not closed by its own kind.

    `texts` are the words in pieces, each with whether it is explained where it stands: by the title of an abbreviation.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.headings: list[str] = []
        self.rows: list[list[str]] = []
        self.missing_alt = 0
        self.words = ""
        self.texts: list[tuple[str, bool]] = []
        self.explained: list[bool] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
            self.explained.append(tag == "abbr" and bool(dict(attrs).get("title")))
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "action")]
        self.missing_alt += tag == "img" and not dict(attrs).get("alt")
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag in ("h2", "h3"):
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.explained.pop()

    def handle_data(self, data: str) -> None:
        self.words += data
        if "body" in self.open:
            self.texts.append((data, any(self.explained)))
        if self.open and self.open[-1] in ("td", "th", "b") and self.rows and "table" in self.open:
            self.rows[-1][-1] += data
        if {"h2", "h3"} & set(self.open):
            self.headings[-1] += data


@cache
def small(name: str, n: int = 60) -> Task:
    task = load_task(name)
    return replace(task, test=task.test[torch.arange(n)], ood={key: x[:40] for key, x in task.ood.items()})


def chapter(method: str, task: Task, seed: int = 0, resamples: int = 50, **sections: Any) -> Chapter:
    """A run that was never trained."""
    torch.manual_seed(seed)
    config = load_config(task.name, overrides=sections)
    plan = Plan(task.name, method, seed, task.shape, task.class_names, config)
    record = Record(plan, plan.assemble(), LOG, circumstances(torch.device("cpu"), 1.5, None, {}))
    outputs = predict_task(record.predictor, task, seed)
    return Chapter(record, task, outputs, evaluate(outputs, resamples))
