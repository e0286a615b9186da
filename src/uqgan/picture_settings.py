"""Default settings for user-supplied pictures, by their size and number."""

from typing import Any


def settings_for_pictures(shape: tuple[int, ...], n_train: int) -> dict[str, Any]:
    """Settings for user-supplied pictures: small networks if they are grey or few, less training if they are few."""
    channels, size, _ = shape
    few, many = n_train < 2_000, n_train >= 20_000
    small = size == 32 and (channels == 1 or few)
    batch_size, iterations, epochs = (64, 400, 50) if few else (256, 10_000, 200) if many else (256, 2_000, 100)
    if few:  # about 500 steps, as an epoch has only a few
        epochs = min(500, max(epochs, 500 * batch_size // n_train))
    supervised = {"epochs": epochs, "batch_size": batch_size}
    with_foreign = {"epochs": epochs // 2 if many else epochs, "batch_size": batch_size}
    weights = {} if small else {"lambda_cl": 4.0, "lambda_reg": 1.0}  # the paper's for MNIST, and for CIFAR
    return {
        "classifier": "lenet" if small else "resnet",
        "autoencoder": {"kind": "small" if small else "resnet", "dim": 32 if small else 128, **supervised},
        "uqgan": {"iterations": iterations, "batch_size": batch_size, "validate_every": 20 if few else 100} | weights,
        "one_vs_all": supervised,
        "cross_entropy": supervised,
        "mc_dropout": supervised,
        "bayes": supervised | {"kl_factor": 0.01},  # at 1 the prior would dominate few pictures
        "confident": with_foreign | ({"width": 64, "lr": 1e-3, "beta": 0.1} if small else {}),
        "gen": with_foreign | ({"width": 32, "autoencoder_steps": 2} if small else {"dim": 50 if size == 32 else 200}),
        "oracle": with_foreign | ({"lr": 1e-3} if few else {}),
    }
