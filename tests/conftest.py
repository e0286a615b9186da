"""Shapes and types of the pure core are checked at run time here, and every test runs on one thread."""

import os
import signal
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

from jaxtyping import install_import_hook

install_import_hook(["uqgan.losses", "uqgan.regulariser", "uqgan.uncertainty", "uqgan.models"], "beartype.beartype")

import pytest
import torch
from hypothesis import settings

settings.register_profile("uqgan", deadline=None, database=None, derandomize=True)
settings.load_profile("uqgan")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or fills the user's cache."""
    monkeypatch.setenv("UQGAN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _ctrl_c_as_before() -> Iterator[None]:
    """A command that was stopped leaves Ctrl-C to end the process; the tests' own process goes on."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)
