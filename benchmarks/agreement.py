"""Does an accelerated iteration do what plain eager PyTorch does?

    python benchmarks/agreement.py [mnist cifar10] [--json FILE]

Both in float32, without TF32 and dropout, on the real task with its trained autoencoder, from the same weights and
with the same noise: the losses of the first three iterations, once step by step and once compiled and captured as a
CUDA graph. Needs a GPU, and the data (UQGAN_DATA).
"""

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
from torch import Tensor, nn

from uqgan.acceleration import WARM_UP, CapturedStep
from uqgan.config import load_config
from uqgan.data.tasks import Task, load_task
from uqgan.log import Log
from uqgan.methods import METHODS
from uqgan.methods.uqgan import Game, encode_all
from uqgan.models.gan import Critic
from uqgan.pretraining import pretrain
from uqgan.runs import describe, versions
from uqgan.training import set_lr

ITERATIONS = 3
LIMIT = 1e-3
"""Of the difference of two losses, relative to the larger of 1 and the loss."""
DEVICE = torch.device("cuda")


def pretrained(name: str, task: Task) -> dict[str, Tensor]:
    """The weights of the task's autoencoder, seed 0, as any run trains or finds them."""
    config = load_config(name)
    torch.manual_seed(0)
    predictor = METHODS["uqgan"].assemble(task.shape, task.n_classes, config).to(DEVICE)
    predictor.prepare(config)
    pretrain(predictor.shield.autoencoder, task, config, Log())
    return predictor.shield.autoencoder.state_dict()


def game_of(name: str, task: Task, weights: dict[str, Tensor], fast: bool) -> Game:
    config = load_config(name, overrides={"precision": "fp32", "compile": "always" if fast else "never"})
    torch.manual_seed(0)
    predictor = METHODS["uqgan"].assemble(task.shape, task.n_classes, config).to(DEVICE)
    predictor.prepare(config)
    nets = predictor.members[0]
    A = nets.shield.autoencoder.eval().requires_grad_(False)
    A.load_state_dict(weights)
    D = Critic(A.dim, task.n_classes).to(DEVICE)
    game = Game(nets.classifier, nets.shield.generator, D, A, task.train.class_frequencies(task.n_classes), config)
    set_lr(game.opt_C, config.uqgan.lr)
    set_lr(game.opt_G, config.uqgan.gan_lr)
    set_lr(game.opt_D, config.uqgan.gan_lr)
    return game


def losses(name: str, task: Task, weights: dict[str, Tensor], fast: bool) -> list[dict[str, float]]:
    """Of the first iterations, in the paper's order: critic, generator, classifier."""
    game = game_of(name, task, weights, fast)
    codes = encode_all(game.A, task)
    batches = list(task.train.batches(256, range(ITERATIONS + 1), seed=0))
    inputs = [(now.x, now.y, codes[now.view], then.y, codes[then.view]) for now, then in pairwise(batches)]
    iterate = CapturedStep(game.iterate, print) if fast else game.iterate
    before = {key: value.clone() for key, value in state(game)}
    for _ in range(WARM_UP):  # which the first captured iteration must not have seen
        iterate(*inputs[0])
    rewind(game, before)
    torch.manual_seed(1)
    _, y, z, _, _ = inputs[0]
    critic, found = float(game.train_critic(z, y)), []
    for each in inputs:
        then, generator, classifier = (float(value) for value in iterate(*each))
        found.append({"critic": critic, "generator": generator, "classifier": classifier})
        critic = then
    if fast and iterate.graph is None:
        raise SystemExit("the iteration was not captured")
    return found


def state(game: Game) -> list[tuple[tuple[int, str], Tensor]]:
    nets: list[nn.Module] = [game.C, game.G, game.D]
    return [((k, key), value) for k, net in enumerate(nets) for key, value in net.state_dict().items()]


@torch.no_grad()
def rewind(game: Game, before: dict[tuple[int, str], Tensor]) -> None:
    """Back to the start, where everything lies in memory as it does now."""
    for key, value in state(game):
        value.copy_(before[key])
    for optimizer in game.optimizers.values():
        for row in optimizer.state.values():
            for value in row.values():
                value.zero_()


def compare(name: str) -> dict[str, Any]:
    task = load_task(name).to(DEVICE)
    weights = pretrained(name, task)
    plain, fast = (losses(name, task, weights, fast) for fast in (False, True))
    worst = max(abs(a[key] - b[key]) / max(1, abs(a[key])) for a, b in zip(plain, fast, strict=True) for key in a)
    print(f"{name:10} largest difference {worst:.1e} (limit {LIMIT:.0e})")
    for a, b in zip(plain, fast, strict=True):
        print("   ", "  ".join(f"{key} {a[key]:.6f} / {b[key]:.6f}" for key in a))
    return {
        "task": name,
        "plain": plain,
        "fast": fast,
        "worst": worst,
        "device": describe(DEVICE),
        "versions": versions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=["mnist", "cifar10"])
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    torch._inductor.config.fallback_random = True  # the noise of eager PyTorch
    torch.backends.cudnn.allow_tf32 = False
    rows = [compare(name) for name in arguments.tasks]
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    if any(row["worst"] > LIMIT for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
