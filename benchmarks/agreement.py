"""Does an accelerated iteration do what plain eager PyTorch does?

    python benchmarks/agreement.py [mnist cifar10] [--json FILE]

Both in float32, without TF32 and dropout, from the same weights and with the same noise: the losses of the
first three iterations, once step by step and once compiled and captured as a CUDA graph. Needs a GPU.
"""

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from iteration import made_up
from uqgan.acceleration import WARM_UP, CapturedStep
from uqgan.config import load_config
from uqgan.methods import METHODS
from uqgan.methods.uqgan import Game, encode_all
from uqgan.models.gan import Critic
from uqgan.runs import describe, versions
from uqgan.training import set_lr

ITERATIONS = 3
LIMIT = 1e-3
"""Of the difference of two losses, relative to the larger of 1 and the loss."""


def losses(name: str, fast: bool) -> list[dict[str, float]]:
    """Of the first iterations."""
    device = torch.device("cuda")
    config = load_config(name, overrides={"precision": "fp32", "compile": "always" if fast else "never"})
    torch.manual_seed(0)
    task = made_up(name).to(device)
    predictor = METHODS["uqgan"].assemble(task.shape, task.n_classes, config).to(device)
    predictor.prepare(config)
    nets = predictor.members[0]
    C, G, A = nets.classifier, nets.shield.generator, nets.shield.autoencoder.eval().requires_grad_(False)
    D = Critic(A.dim, task.n_classes).to(device)
    game = Game(C, G, D, A, task.train.class_frequencies(task.n_classes), config)
    set_lr(game.opt_C, config.uqgan.lr)
    for optimizer in (game.opt_G, game.opt_D):
        set_lr(optimizer, config.uqgan.gan_lr)
    codes = encode_all(A, task)
    batches = list(task.train.batches(256, range(ITERATIONS + 1), seed=0))
    inputs = [(now.x, now.y, codes[now.view], then.y, codes[then.view]) for now, then in pairwise(batches)]
    iterate = CapturedStep(game.iterate, print) if fast else game.iterate
    before = {key: value.clone() for net in (C, G, D) for key, value in keyed(net)}
    for _ in range(WARM_UP):  # which the first captured iteration must not have seen
        iterate(*inputs[0])
    with torch.no_grad():
        for net in (C, G, D):
            for key, value in keyed(net):
                value.copy_(before[key])
        for optimizer in game.optimizers.values():
            for state in optimizer.state.values():
                for value in state.values():
                    value.zero_()
    torch.manual_seed(1)
    critic = [float(game.train_critic(inputs[0][2], inputs[0][1]))]
    found = []
    for each in inputs:
        critic_then, *others = (float(value) for value in iterate(*each))
        found.append(dict(zip(("critic", "generator", "classifier"), (critic[-1], *others), strict=True)))
        critic.append(critic_then)
    if fast and iterate.graph is None:
        raise SystemExit("the iteration was not captured")
    return found


def keyed(net: torch.nn.Module) -> list[tuple[tuple[int, str], torch.Tensor]]:
    return [((id(net), key), value) for key, value in net.state_dict().items()]


def compare(name: str) -> dict[str, Any]:
    plain, fast = losses(name, fast=False), losses(name, fast=True)
    rows = [{key: abs(a[key] - b[key]) / max(1, abs(a[key])) for key in a} for a, b in zip(plain, fast, strict=True)]
    worst = max(max(row.values()) for row in rows)
    print(f"{name:10} largest difference {worst:.1e} (limit {LIMIT:.0e})")
    for a, b in zip(plain, fast, strict=True):
        print("   ", "  ".join(f"{key} {a[key]:.6f} / {b[key]:.6f}" for key in a))
    device = describe(torch.device("cuda"))
    return {"task": name, "plain": plain, "fast": fast, "worst": worst, "device": device, "versions": versions()}


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
