"""Connection to a Ray cluster, and the resources of its nodes."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from uqgan.errors import UsageError, first_line

KNOCK_SECONDS = 10.0
"""Time limit for an answer of the cluster, in seconds."""
MISSING = 'Ray is not installed (pip install "uqgan[cluster]")'
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def ray_module() -> Any:
    """Import Ray, with usage reports disabled."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UsageError(f"--ray: {MISSING}") from None
    return ray


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connection to the cluster at an address within the block; `auto` is the cluster of this machine."""
    ray = ray_module()
    if ray.is_initialized():
        yield ray
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with _messages_on_stderr():
        try:
            _knock(address)
            ray.init(address, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError, RuntimeError, ImportError, AssertionError) as error:
            found = "no Ray cluster is there" if isinstance(error, OSError) else first_line(error)
            how = "start one with ray start --head, and see docs/scale.md"
            raise UsageError(f"--ray = {address}: {found} ({how})") from None
        finally:
            _restore(before)
        try:
            yield ray
        finally:
            ray.shutdown()
            _restore(before)


@contextmanager
def _messages_on_stderr() -> Iterator[None]:
    """Within the block Ray prints messages about dead processes on standard error; standard output is for results."""
    worker: Any = sys.modules.get("ray._private.worker")
    prints = getattr(worker, "print_to_stdstream", None)
    if prints is None:  # another version of Ray
        yield
        return
    worker.print_to_stdstream = lambda data, *rest, **more: prints({**data, "is_err": True}, *rest, **more)
    try:
        yield
    finally:
        worker.print_to_stdstream = prints


def _knock(address: str) -> None:
    """Refuse HOST:PORT without a server, for which Ray would wait."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        if not port.isdecimal():
            raise ValueError("must be auto, or HOST:PORT")
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()
    elif address != "auto":
        raise ValueError("must be auto, or HOST:PORT")


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    """Restore signal handlers, which Ray replaces."""
    with suppress(ValueError):  # only the main thread handles signals
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def alive_nodes(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


@dataclass(frozen=True)
class Needs:
    """Resources of a process on a node."""

    cpus: int = 1
    gpus: float | None = None
    """Number of GPUs, or a share of one; None for one if there are any."""

    def of(self, ray: Any, device: str) -> "Needs":
        """Resources with the number of GPUs filled in."""
        if self.gpus is not None:
            return self
        there = ray.cluster_resources().get("GPU", 0) > 0
        return replace(self, gpus=1.0 if there and device != "cpu" else 0.0)

    def room(self, ray: Any) -> int:
        """Number of such processes that fit on the nodes."""
        nodes = [node["Resources"] for node in alive_nodes(ray)]
        wanted = {"CPU": self.cpus, "GPU": self.gpus or 0.0}
        return sum(min(int(node.get(kind, 0) / n + 1e-9) for kind, n in wanted.items() if n) for node in nodes)

    @property
    def options(self) -> dict[str, Any]:
        return {"num_cpus": self.cpus, "num_gpus": self.gpus or 0}
