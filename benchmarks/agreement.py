"""Agreement of accelerated iterations with plain eager PyTorch.

    python benchmarks/agreement.py [mnist cifar10]

Both in float32, without TF32 and dropout, on the real task with its trained autoencoder, from the same weights and
with the same noise: the losses of the first three iterations, once step by step and once compiled and captured as a
CUDA graph. Needs a GPU, and the data (UQGAN_DATA).
"""

import argparse
from contextlib import nullcontext
from itertools import pairwise

import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.optim import Optimizer

from iteration import without_graphs
from uqgan.acceleration import overlapped
from uqgan.config import Config, load_config
from uqgan.cuda_graph import WARM_UP
from uqgan.data.tasks import Task, load_task
from uqgan.log import Log
from uqgan.methods import METHODS
from uqgan.methods.uqgan import CodedBatch, JointTraining, ShieldedNetworks, encode_all
from uqgan.models.gan import Critic
from uqgan.pretraining import pretrain

ITERATIONS = 3
LIMIT = 1e-3
"""Limit of the difference of two losses, relative to the larger of 1 and the loss."""
DEVICE = torch.device("cuda")


def assemble(task: Task, config: Config) -> ShieldedNetworks:
    torch.manual_seed(0)
    nets = METHODS["uqgan"].assemble(task.shape, task.n_classes, config).to(DEVICE).networks[0]
    assert isinstance(nets, ShieldedNetworks)
    nets.make_fast(config)
    return nets


def pretrained(name: str, task: Task) -> dict[str, Tensor]:
    """Weights of the task's autoencoder, seed 0, trained or from the cache as in any run."""
    config = load_config(name)
    A = assemble(task, config).autoencoder
    pretrain(A, task, config, Log())
    return A.state_dict()


def stop(sentence: str) -> None:
    """Fail on a fallback to plain steps, which would agree trivially."""
    raise SystemExit(sentence)


def losses(name: str, task: Task, weights: dict[str, Tensor], fast: bool) -> list[dict[str, float]]:
    """Losses of the first iterations, in the paper's order: critic, generator, classifier."""
    config = load_config(name, overrides={"precision": "fp32", "compile": "always" if fast else "never"})
    nets = assemble(task, config)
    nets.autoencoder.load_state_dict(weights)
    nets.autoencoder.eval().requires_grad_(False)
    D = Critic(nets.autoencoder.dim, task.n_classes).to(DEVICE)
    joint = JointTraining(nets, D, task.train.class_frequencies(task.n_classes), config, stop)
    joint.set_learning_rates(0)
    codes = encode_all(joint.A, task)
    batches = [CodedBatch(x, y, codes[view]) for x, y, view in task.train.batches(256, range(ITERATIONS + 1), seed=0)]
    with nullcontext() if fast else without_graphs():
        iterate = overlapped(joint.train_critic, joint.train_generator, joint.train_classifier, DEVICE, stop)
    before = {key: value.clone() for key, value in state(joint)}
    for _ in range(WARM_UP):  # noise that the first captured iteration must not have used
        iterate(batches[0], batches[1])
    rewind(joint, before)
    torch.manual_seed(1)
    critic, found = float(joint.train_critic(*batches[0])), []
    for batch, following in pairwise(batches):
        then, generator, classifier = (float(value) for value in iterate(batch, following))
        found.append({"critic": critic, "generator": generator, "classifier": classifier})
        critic = then
    return found


def state(joint: JointTraining) -> list[tuple[tuple[int, str], Tensor]]:
    nets: list[nn.Module] = [joint.C, joint.G, joint.D]
    return [((k, key), value) for k, net in enumerate(nets) for key, value in net.state_dict().items()]


@torch.no_grad()
def rewind(joint: JointTraining, before: dict[tuple[int, str], Tensor]) -> None:
    """Reset weights and optimisers in place, as a captured graph holds their addresses."""
    for key, value in state(joint):
        value.copy_(before[key])
    optimizers: list[Optimizer] = [joint.opt_C, joint.opt_G, joint.opt_D]
    for optimizer in optimizers:
        for row in optimizer.state.values():
            for value in row.values():
                value.zero_()


def compare(name: str) -> float:
    """Largest difference between two losses."""
    task = load_task(name).to(DEVICE)
    weights = pretrained(name, task)
    plain, fast = (losses(name, task, weights, fast) for fast in (False, True))
    worst = max(abs(a[key] - b[key]) / max(1, abs(a[key])) for a, b in zip(plain, fast, strict=True) for key in a)
    print(f"{name:10} largest difference {worst:.1e} (limit {LIMIT:.0e})")
    for a, b in zip(plain, fast, strict=True):
        print("   ", "  ".join(f"{key} {a[key]:.6f} / {b[key]:.6f}" for key in a))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=["mnist", "cifar10"])
    chosen = parser.parse_args()
    torch._inductor.config.fallback_random = True  # the noise of eager PyTorch
    torch.backends.cudnn.allow_tf32 = False
    if max(compare(name) for name in chosen.tasks) > LIMIT:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
