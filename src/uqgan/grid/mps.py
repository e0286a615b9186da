"""NVIDIA's Multi-Process Service (MPS): a daemon with which processes use a GPU concurrently instead of in turns.

Each grid starts a daemon with separate folders, and stops it. The daemon of a killed grid is stopped by the next grid.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from uqgan.data.dataset import Say
from uqgan.errors import RunFailed
from uqgan.files import cache_folder, write_json

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PATIENCE_SECONDS = 60.0
"""Time limit for an answer of the daemon, in seconds."""
IN_TURNS = "workers compute on the GPU in turns"
PROBE = """
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
raise SystemExit(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
"""
"""Program that fails if a process cannot use the GPU."""


@contextmanager
def shared(say: Say) -> Iterator[Mapping[str, str] | None]:
    """Environment variables with which processes share the GPU within the block; None if MPS is not available."""
    end_orphans(say)
    if not shutil.which(CONTROL):
        say(f"{CONTROL} is not installed: {IN_TURNS}")
        yield None
    elif _ask("get_server_list", {}):
        say("workers share the GPU, by the MPS daemon that runs here")
        yield {}
    else:
        with _own_daemon(say) as environment:
            yield environment


@contextmanager
def _own_daemon(say: Say) -> Iterator[Mapping[str, str] | None]:
    """Run a daemon within the block."""
    with ExitStack() as stack:
        # In the system's temporary folder, as paths of sockets must be short.
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="uqgan-mps-", ignore_cleanup_errors=True)))
        environment = {PIPES: str(place / "pipes"), LOGS: str(place / "logs")}
        note = _notes() / f"{os.getpid()}.json"
        try:
            write_json(note, {"folder": str(place)})
            stack.callback(note.unlink, missing_ok=True)
            stack.enter_context(FileLock(note.with_suffix(".lock")).acquire(blocking=False))
            stack.callback(note.with_suffix(".lock").unlink, missing_ok=True)
        except (OSError, RunFailed, Timeout):
            pass  # without the note the daemon works, but cannot be found after a kill
        why = _start(environment)
        if not why:
            stack.callback(_ask, "quit", environment)
            why = "" if _usable(environment) else "the GPU cannot be used under it"
        if why:
            say(f"MPS could not be started, {why}: {IN_TURNS}")
            stack.close()
            yield None
            return
        say("workers share the GPU, by an MPS daemon of their own")
        yield environment


def end_orphans(say: Say) -> None:
    """Stop the daemons of killed grids, recognised by their released locks."""
    for note in _notes().glob("*.json"):
        lock = FileLock(note.with_suffix(".lock"))
        try:
            with lock.acquire(blocking=False):
                place = Path(json.loads(note.read_bytes())["folder"])
                environment = {PIPES: str(place / "pipes"), LOGS: str(place / "logs")}
                if place.is_dir() and _ask("quit", environment):
                    say("ended the MPS daemon of a grid that was killed")
                elif place.is_dir() and _ask("get_server_list", environment):
                    continue  # it still has clients: the next grid will stop it
                shutil.rmtree(place, ignore_errors=True)
                note.unlink(missing_ok=True)
                note.with_suffix(".lock").unlink(missing_ok=True)
        except (Timeout, OSError, ValueError, KeyError, TypeError):
            continue


def _start(environment: Mapping[str, str]) -> str:
    """Start a daemon; returns the reason for a failure, empty on success."""
    for place in environment.values():
        Path(place).mkdir()
    try:
        done = subprocess.run(
            [CONTROL, "-d"],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = (done.stderr or done.stdout).strip().partition("\n")[0]
    return (said or f"status {done.returncode}") if done.returncode else ""


def _ask(command: str, environment: Mapping[str, str]) -> bool:
    """Whether a daemon is running and accepts a command."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [CONTROL],
            input=f"{command}\n",
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        return not done.returncode
    return False


def _usable(environment: Mapping[str, str]) -> bool:
    """Whether a process can use the GPU under the daemon."""
    with suppress(OSError, subprocess.TimeoutExpired):
        words = [sys.executable, "-c", PROBE]
        done = subprocess.run(
            words, env=os.environ | environment, capture_output=True, timeout=PATIENCE_SECONDS, check=False
        )
        return not done.returncode
    return False


def _notes() -> Path:
    """Folder of notes on running daemons, one per grid."""
    return cache_folder() / "mps"
