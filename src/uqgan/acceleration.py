"""Acceleration of training steps: device, bf16, channels-last, compiled objectives, one CUDA graph per iteration.

A recipe need not know of it. Its networks are prepared in place, its objectives and its step are wrapped:

- convolutional networks run channels-last, and in bf16 where the hardware supports it; their outputs are float32, and
  so are losses, readings and the gradient penalty;
- on CUDA an objective is compiled together with its networks, forward and backward;
- on CUDA the step is captured as one graph (`cuda_graph`). Two phases may run concurrently in the graph if neither
  writes what the other reads.
"""

import copy
import ctypes
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import MethodType
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Adam, RMSprop

from uqgan.cuda_graph import CapturedStep
from uqgan.errors import UsageError, first_line
from uqgan.models.fast import fast

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)
Precision = Literal["auto", "bf16", "fp32"]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's mallopt."""
COMPILER = "torch._dynamo"


def choose_device(name: str | torch.device = "auto") -> torch.device:
    """Device by name; `auto` is the fastest one available."""
    name = str(name)
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in available:
        raise UsageError(f"device = {name}: must be auto, cpu, cuda or mps")
    if not available[device.type]:
        raise UsageError(f"device = {name}: there is none on this machine (take auto or cpu)")
    if device.index is not None and device.type == "cuda":
        if device.index >= torch.cuda.device_count():
            raise UsageError(f"device = {name}: there are {torch.cuda.device_count()} (from cuda:0 on)")
        torch.cuda.set_device(device)  # streams and graphs are those of the current one
    return device


@contextmanager
def local_seed(device: torch.device, seed: int | None) -> Iterator[None]:
    """Seed the random number generators within the block, and restore their state afterwards; None changes nothing."""
    if seed is None:
        yield
        return
    on_mps = torch.mps.get_rng_state() if device.type == "mps" else None
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield
    finally:
        if on_mps is not None:
            torch.mps.set_rng_state(on_mps)


def prepare(net: nn.Module, precision: Precision = "auto", *names: str) -> None:
    """Make a network fast in place: its layers, and the memory format and precision of the named methods.

    Without names that is `forward`. Networks without convolutions stay in float32: they are small, and some need it.
    """
    fast(net)
    if not any(isinstance(module, nn.Conv2d | nn.ConvTranspose2d) for module in net.modules()):
        return
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    bf16 = in_bf16(precision, next(net.parameters()).device)
    for name in names or ("forward",):
        # A bound method, so that a deep copy of the network calls the copy.
        setattr(net, name, MethodType(_converted(getattr(type(net), name), bf16), net))


def in_precision(net: M, precision: Precision, *names: str) -> M:
    """View of a prepared network, with the same layers and weights, whose named methods run in another precision."""
    view = copy.copy(net)  # shares all layers; methods set by `prepare` are its own
    prepare(view, precision, *names)
    return view


def compiled(
    function: Callable[..., T], device: torch.device, on: bool = True, say: Callable[[str], None] = warnings.warn
) -> Callable[..., T]:
    """Function compiled on CUDA, unchanged on a CPU, where compiling saves no time.

    It is compiled for the largest batch it gets. Others, such as a smaller last one, run uncompiled: compiling for
    them would take longer than it saves. A failure of the compiler is reported, and the function runs uncompiled.
    """
    return Compiled(function, say) if on and device.type == "cuda" else function


class CompiledCalls:
    """Caller of functions that compiles each of them once, where `compiled` does."""

    def __init__(self, device: torch.device, on: bool, say: Callable[[str], None]) -> None:
        self.device, self.on, self.say = device, on, say
        self._made: dict[Callable[..., Any], Callable[..., Any]] = {}

    def __call__(self, function: Callable[..., T], *inputs: Tensor) -> T:
        if function not in self._made:
            self._made[function] = compiled(function, self.device, self.on, self.say)
        result: T = self._made[function](*inputs)
        return result


class Compiled(Generic[T]):
    """A function that is compiled for one set of shapes."""

    def __init__(self, function: Callable[..., T], say: Callable[[str], None]) -> None:
        self.function, self.say = function, say
        self.fast: Callable[..., T] | None = None
        self.shapes: list[torch.Size] = []
        self.failed = False

    def __call__(self, *inputs: Tensor) -> T:
        shapes = [tensor.shape for tensor in inputs]
        if not self.shapes or shapes[0][0] > self.shapes[0][0]:
            self.shapes = shapes
        if self.failed or shapes != self.shapes:
            return self.function(*inputs)
        import_module(COMPILER)  # slow, hence here; the package before its parts, as another thread may be importing it
        from torch._dynamo.exc import TorchDynamoException
        from torch._inductor.exc import InductorError

        try:
            self.fast = self.fast or compile_without_limit(self.function)
            return self.fast(*inputs)
        except (TorchDynamoException, InductorError) as error:
            self.failed = True
            self.say(f"this runs without being compiled: {first_line(error)} (compile = never leaves it out)")
            return self.function(*inputs)


def compile_without_limit(function: Callable[..., T]) -> Callable[..., T]:
    """`torch.compile` for functions that each run of a process creates again, without its limit of recompilations."""
    import_module(COMPILER)
    torch._dynamo.config.recompile_limit = 512
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # float32 is intended
    return torch.compile(function, dynamic=False)


def has_bf16(device: torch.device) -> bool:
    """Whether the hardware computes in bf16, rather than emulating it."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    features = ("_is_avx512_bf16_supported", "_is_amx_tile_supported") if device.type == "cpu" else ()
    return any(getattr(torch.cpu, name, bool)() for name in features)


def in_bf16(precision: Precision, device: torch.device) -> bool:
    """Whether this precision setting selects bf16 on the device."""
    return precision == "bf16" or (precision == "auto" and has_bf16(device))


def adam(
    net: nn.Module,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
    one_kernel: bool = False,
    undecayed: Sequence[nn.Parameter] = (),
    lr: float = 0.0,
) -> Adam:
    """Adam over a network's weights, with no weight decay on `undecayed` ones; `set_lr` changes its learning rate."""
    excluded = {id(weight) for weight in undecayed}
    decayed = [weight for weight in net.parameters() if id(weight) not in excluded]
    weights: list[dict[str, Any]] = [{"params": decayed}]
    if undecayed:
        weights.append({"params": list(undecayed), "weight_decay": 0.0})
    device = decayed[0].device
    if device.type != "cuda":
        return Adam(weights, lr, betas, weight_decay=weight_decay, fused=True)
    rate = torch.tensor(lr, device=device)
    if not one_kernel:
        return Adam(weights, rate, betas, weight_decay=weight_decay, fused=True, capturable=True)
    # One compiled kernel for all weights; the fused one assigns 65,536 weights to a block, which leaves most SMs idle.
    optimizer = Adam(weights, rate, betas, weight_decay=weight_decay, foreach=True, capturable=True)
    step = getattr(Adam.step, "__wrapped__", Adam.step)  # without the profiler's hook, which cannot be compiled
    optimizer.step = compile_without_limit(MethodType(step, optimizer))  # type: ignore[method-assign]
    return optimizer


def rmsprop(net: nn.Module, lr: float, weight_decay: float = 0.0) -> RMSprop:
    """RMSprop over a network's weights."""
    weights = list(net.parameters())
    if weights[0].device.type != "cuda":
        return RMSprop(weights, lr, weight_decay=weight_decay)
    rate = torch.tensor(lr, device=weights[0].device)
    return RMSprop(weights, rate, weight_decay=weight_decay, foreach=True, capturable=True)


def keep_freed_memory() -> None:
    """Keep the memory of freed tensors in the process (glibc); requesting it again takes a quarter of a step."""
    if sys.platform != "linux":
        return
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):  # glibc; older versions accept at most 32 MiB
        accepted = any(allocator.mallopt(M_MMAP_THRESHOLD, limit) for limit in (2**31 - 1, 2**25))
        if accepted:
            allocator.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def _converted(method: Callable[..., Tensor], bf16: bool) -> Callable[..., Tensor]:
    def run(net: nn.Module, x: Tensor, *rest: Tensor) -> Tensor:
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
            return method(net, x, *rest).float()

    return run


def overlapped(
    first: Callable[..., T],
    second: Callable[..., T],
    third: Callable[..., T],
    device: torch.device,
    say: Callable[[str], None],
) -> Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[T, T, T]]:
    """Iteration of three phases in which the third runs concurrently with the first phase of the next batch.

    The plain loop is first(b₀) second(b₀) third(b₀) first(b₁) … The returned function takes a batch and the next one
    and runs second(bₜ), then third(bₜ) and first(bₜ₊₁): concurrently on CUDA, elsewhere in this order. Neither of these
    two may write what the other reads. The caller runs first(b₀).
    """
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def iterate(*batches: Tensor) -> tuple[T, T, T]:
        size = len(batches) // 2
        now, following = batches[:size], batches[size:]
        from_second = second(*now)
        if stream is None:
            from_third = third(*now)
            return first(*following), from_second, from_third
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            from_third = third(*now)
        from_first = first(*following)
        torch.cuda.current_stream().wait_stream(stream)
        return from_first, from_second, from_third

    step = accelerate(iterate, device, say)
    return lambda now, following: step(*now, *following)


def accelerate(step: Callable[..., T], device: torch.device, say: Callable[[str], None]) -> Callable[..., T]:
    """Step captured as a CUDA graph on CUDA; elsewhere the step itself."""
    return CapturedStep(step, say) if device.type == "cuda" else step
