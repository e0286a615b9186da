import subprocess
import sys
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from uqgan import acceleration
from uqgan.acceleration import Compiled, accelerate, adam, compiled, local_seed, overlapped, prepare
from uqgan.config import parse
from uqgan.data.dataset import equal_chunks
from uqgan.methods import METHODS
from uqgan.methods.method import COMPILED_FROM
from uqgan.models.autoencoders import make_autoencoder
from uqgan.models.classifiers import make_classifier
from uqgan.regulariser import block_layout
from uqgan.training import set_lr
from uqgan.uncertainty import Prediction

CPU = torch.device("cpu")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_a_prepared_network_says_the_same_in_float32() -> None:
    net, x = make_classifier("resnet", (3, 32, 32), 5), torch.rand(4, 3, 32, 32)
    before, state = net(x), {key: value.clone() for key, value in net.state_dict().items()}
    prepare(net, "fp32")
    assert_close(net(x), before, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())


def test_bf16_comes_close_and_gives_float32_back() -> None:
    net, x = make_classifier("lenet", (1, 32, 32), 5), torch.rand(4, 1, 32, 32)
    before = net(x)
    prepare(net, "bf16")
    assert net(x).dtype == torch.float32
    assert not torch.equal(net(x), before)
    assert_close(net(x), before, rtol=0.1, atol=0.02)


def test_named_methods_are_prepared_and_the_whole_still_works() -> None:
    A, x, y = make_autoencoder("small", (1, 32, 32), 3, 8), torch.rand(4, 1, 32, 32), torch.tensor([0, 1, 2, 0])
    before = A(x, y)
    prepare(A, "fp32", "encode", "decode_logits")
    assert_close(A(x, y), before, rtol=1e-4, atol=1e-4)
    assert A.decode(A.encode(x, y), y).shape == x.shape


def test_networks_without_convolutions_are_left_alone() -> None:
    net = make_classifier("mlp", (2,), 3)
    prepare(net, "bf16")
    assert "forward" not in vars(net)


def test_on_a_cpu_a_step_stays_as_it_is_and_nothing_is_compiled() -> None:
    def step(x: Tensor) -> Tensor:
        return x + 1

    assert accelerate(step, CPU, print) is step
    assert compiled(step, CPU) is step


def test_overlapped_phases_come_in_the_order_of_the_plain_loop() -> None:
    done: list[str] = []

    def phase(name: str) -> object:
        return lambda batch: done.append(f"{name}{int(batch)}")

    first, second, third = (phase(name) for name in "DGC")
    iterate = overlapped(first, second, third, CPU, print)  # type: ignore[arg-type]
    batches = [(torch.tensor(k),) for k in range(4)]
    first(*batches[0])  # type: ignore[operator]
    for now, following in pairwise(batches):
        iterate(now, following)
    assert done == [f"{name}{k}" for k in range(3) for name in "DGC"] + ["D3"]


@pytest.mark.parametrize("n", [1, 5, 6, 12, 13])
def test_chunks_are_of_one_size_and_hold_all_samples_in_order(n: int) -> None:
    x = torch.arange(n, dtype=torch.float)[:, None].expand(-1, 2)
    chunks = list(equal_chunks(x, size=6))
    assert len({len(chunk) for chunk in chunks}) == 1
    assert torch.equal(torch.cat(chunks)[:n], x)
    assert (torch.cat(chunks)[n:] == 0).all()


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.2] * 5, [0.7, 0.2, 0.1]])
def test_a_class_hardly_ever_overruns_its_block(shares: list[float]) -> None:
    prior = torch.tensor(shares)
    classes, rows = block_layout(prior, 256)
    assert classes == len(shares)
    drawn = torch.multinomial(prior, 256 * 2000, replacement=True).reshape(2000, 256)
    largest = torch.nn.functional.one_hot(drawn, classes).sum(1).amax(1)
    assert (largest > rows).double().mean() < 0.005
    assert rows < 256 or max(shares) > 0.9


@on_gpu
def test_a_captured_step_does_what_the_step_does() -> None:
    def make() -> tuple[Tensor, object]:
        total = torch.zeros(3, device="cuda")

        def step(x: Tensor) -> Tensor:
            total.add_(x)
            return total.clone()

        return total, step

    (_, plain), (_, captured) = make(), make()
    fast = accelerate(captured, torch.device("cuda"), print)  # type: ignore[arg-type]
    for k in range(8):
        x = torch.full((3,), float(k), device="cuda")
        assert_close(fast(x), plain(x))  # type: ignore[operator]


@on_gpu
def test_a_step_that_cannot_be_captured_runs_all_the_same_and_says_why() -> None:
    said: list[str] = []

    def step(x: Tensor) -> Tensor:
        return x * float(x.sum()) + 0 * torch.rand(2, device="cuda")  # looks at a value, and draws

    fast = accelerate(step, torch.device("cuda"), said.append)
    for _ in range(6):
        assert_close(fast(torch.ones(2, device="cuda")), torch.full((2,), 2.0, device="cuda"))
    assert len(said) == 1
    assert "runs without a CUDA graph" in said[0]


@on_gpu
def test_a_compiled_adam_steps_as_the_fused_one_does() -> None:
    def trained(one_kernel: bool) -> list[Tensor]:
        torch.manual_seed(0)
        net = make_classifier("mlp", (2,), 3).cuda()
        optimizer = adam(net, one_kernel=one_kernel)
        set_lr(optimizer, 1e-3)
        for _ in range(3):  # the same gradients for both: near 0 a step has the gradient's sign, however small it is
            for weight in net.parameters():
                weight.grad = torch.randn_like(weight)
            optimizer.step()
        return [weight.detach() for weight in net.parameters()]

    assert_close(trained(True), trained(False), rtol=0, atol=5e-7)


COMPILED_LOSS = """
import sys
import torch
from torch._inductor import config
from torch.testing import assert_close
from uqgan.acceleration import compiled
from uqgan.losses import classifier_loss

n_classes, in_one_go = int(sys.argv[1]), sys.argv[2] == "True"
device = torch.device("cuda")
prior, y = torch.full((n_classes,), 1 / n_classes, device=device), torch.randint(n_classes, (256,), device=device)
start = torch.randn(512, n_classes, device=device)

def objective(logits):
    return classifier_loss(*logits.chunk(2), y, prior, lambda_real=0.6)

def told_and_slope(loss):
    logits = start.clone().requires_grad_()
    told = loss(logits)
    return told, torch.autograd.grad(told, logits)[0]

config.triton.persistent_reductions = in_one_go
fast = compiled(objective, device, say=sys.exit)
assert_close(told_and_slope(fast), told_and_slope(objective))
print("alike")
"""


@on_gpu
@pytest.mark.parametrize("in_one_go", [True, False])
@pytest.mark.parametrize("n_classes", [5, 20])
def test_a_compiled_loss_is_told_right_and_learnt_from_alike(n_classes: int, in_one_go: bool) -> None:
    """In a process of its own: a compiler stumbles over the checks of shapes that tests put into the package."""
    words = [sys.executable, "-c", COMPILED_LOSS, str(n_classes), str(in_one_go)]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert run.stdout == "alike\n", run.stderr


@on_gpu
def test_every_method_trains_compiled_and_captured() -> None:
    script = Path(__file__).parent.parent / "benchmarks" / "compiled.py"
    run = subprocess.run([sys.executable, script, "--device", "cuda"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


@on_gpu
def test_overlapped_phases_are_done_when_the_iteration_is() -> None:
    device = torch.device("cuda")

    def slow(x: Tensor) -> Tensor:
        power = x
        for _ in range(50):
            power = power @ x
        return power

    iterate = overlapped(lambda x: x + 1, lambda x: x + 2, slow, device, print)
    for k in range(6):
        factor = 1 + k / 1000
        x = factor * torch.eye(512, device=device)
        first, second, third = iterate((x,), (2 * x,))
        assert_close(first + second + third, 2 * x + 1 + x + 2 + factor**50 * x)


def test_a_copy_of_a_prepared_network_is_a_network_of_its_own() -> None:
    net, x = make_classifier("lenet", (1, 32, 32), 3), torch.rand(2, 1, 32, 32)
    prepare(net, "fp32")
    copy = deepcopy(net)
    with torch.no_grad():
        for weight in copy.parameters():
            weight.zero_()
    assert (copy(x) == 0).all()
    assert not (net(x) == 0).all()


def test_local_seed_repeats_and_leaves_no_trace() -> None:
    before = torch.get_rng_state()
    with local_seed(CPU, 3):
        first = torch.rand(4)
    with local_seed(CPU, 3):
        assert torch.equal(torch.rand(4), first)
    assert torch.equal(torch.get_rng_state(), before)
    with local_seed(CPU, None):
        torch.rand(1)
    assert not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("sizes", [[8, 64, 64, 8, 64], [64, 64, 8, 64]])
def test_only_the_largest_batch_is_compiled(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "compile_without_limit", lambda step: lambda x: step(x) + 100)
    fast = Compiled(len, print)
    found = [fast(torch.zeros(size, 2)) for size in sizes]
    largest = [max(sizes[: k + 1]) for k in range(len(sizes))]
    assert found == [size + 100 * (size == most) for size, most in zip(sizes, largest, strict=True)]


def test_what_cannot_be_compiled_runs_as_it_is_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.exc import TorchDynamoException

    def fails(*_: object) -> None:
        raise TorchDynamoException("no compiler\nhere")

    monkeypatch.setattr(acceleration, "compile_without_limit", lambda _: fails)
    said: list[str] = []
    fast = Compiled(len, said.append)
    assert [fast(torch.zeros(3)), fast(torch.zeros(3))] == [3, 3]
    assert said == ["this runs without being compiled: no compiler (compile = never leaves it out)"]


def test_what_is_never_called_imports_no_compiler() -> None:
    made = "import sys; from uqgan.acceleration import Compiled; Compiled(len, print)"
    script = f"{made}; print('torch._dynamo' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


@pytest.mark.parametrize(("passes", "is_compiled"), [(COMPILED_FROM // 4 - 1, False), (COMPILED_FROM // 4, True)])
def test_prediction_is_compiled_only_where_it_pays(passes: int, is_compiled: bool) -> None:
    predictor = METHODS["uqgan"].assemble((2,), 2, parse({}))
    called: list[str] = []
    predictor.passes, predictor.reading = passes, lambda logits, prior: predictor_says
    predictor_says = Prediction(*(torch.zeros(4, 2), *(torch.zeros(4) for _ in range(3))))
    predictor._logits = lambda x: called.append("plain")  # type: ignore[method-assign, return-value, assignment]
    predictor._fast = lambda x: called.append("compiled")  # type: ignore[assignment, return-value]
    predictor.predict(torch.zeros(4, 2))
    assert set(called) == {"compiled" if is_compiled else "plain"}


@pytest.mark.parametrize(("classifier", "autoencoder"), [("lenet", "small"), ("resnet", "resnet")])
def test_precision_auto_is_bf16_where_the_hardware_has_it(
    classifier: str, autoencoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uqgan.acceleration.has_bf16", lambda _: False)
    assert not in_bf16(classifier, autoencoder, "auto")
    assert in_bf16(classifier, autoencoder, "bf16")
    monkeypatch.setattr("uqgan.acceleration.has_bf16", lambda _: True)
    assert in_bf16(classifier, autoencoder, "auto")
    assert not in_bf16(classifier, autoencoder, "fp32")


def in_bf16(classifier: str, autoencoder: str, precision: str) -> bool:
    """Whether the logits of a prepared predictor are other than those of float32."""
    config = parse({"classifier": classifier, "autoencoder": {"kind": autoencoder}, "precision": precision})
    predictor, x = METHODS["uqgan"].assemble((1, 32, 32), 3, config), torch.rand(4, 1, 32, 32)
    plain = predictor.members[0].classifier(x)
    predictor.make_fast(config)
    return not torch.allclose(predictor.members[0].classifier(x), plain, rtol=1e-4, atol=1e-4)
