"""Settings chosen for user-supplied pictures serve every method."""

import pytest

from uqgan.config import Config, UqganConfig, check_networks, parse
from uqgan.methods import METHODS, Method
from uqgan.picture_settings import settings_for_pictures

SHAPES = [(1, 32, 32), (3, 32, 32), (3, 64, 64)]
SIZES = [60, 300, 5_000, 50_000]
"""Training pictures: a handful, few, some, many."""


def classifier_steps(method: Method, config: Config, n_train: int) -> int:
    own = getattr(config, method.section)
    if isinstance(own, UqganConfig):
        return own.iterations * own.classifier_steps
    known = own.batch_size // 2 if method.sees_ood else own.batch_size
    return own.epochs * -(-n_train // known)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n_train", SIZES)
@pytest.mark.parametrize("name", METHODS)
def test_all_sections_of_a_method_are_chosen_for_the_pictures(name: str, n_train: int, shape: tuple[int, ...]) -> None:
    tree, method = settings_for_pictures(shape, n_train), METHODS[name]
    assert set(method.sections) <= set(tree)
    config = parse(tree)
    check_networks(config, shape)
    for section in method.sections:
        assert {"batch_size"} < set(tree[section]) <= set(getattr(config, section).model_dump())
        assert getattr(config, section).batch_size <= 256


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n_train", SIZES)
@pytest.mark.parametrize("name", METHODS)
def test_a_training_is_neither_too_short_nor_endless(name: str, n_train: int, shape: tuple[int, ...]) -> None:
    config = parse(settings_for_pictures(shape, n_train))
    steps = classifier_steps(METHODS[name], config, n_train)
    assert 400 <= steps <= 50_000
    if "autoencoder" in METHODS[name].sections:
        assert 400 <= config.autoencoder.epochs * -(-n_train // config.autoencoder.batch_size) <= 50_000
        assert config.uqgan.iterations / config.uqgan.validate_every >= 20


@pytest.mark.parametrize("name", METHODS)
def test_more_pictures_are_trained_for_longer(name: str) -> None:
    steps = [classifier_steps(METHODS[name], parse(settings_for_pictures((3, 64, 64), n)), n) for n in SIZES[1:]]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]
