import pytest
import torch
from torch.testing import assert_close

from uqgan.data.toy import OUTLIER_DISTANCE, TOYS, Gaussians, sample_outliers


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", TOYS)
def test_the_same_seed_draws_the_same_points(name: str) -> None:
    a, b, c = (TOYS[name].sample(100, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.y, b.y)
    assert not torch.equal(a.x, c.x)


@pytest.mark.parametrize("name", TOYS)
def test_classes_are_as_frequent_as_their_modes_and_come_in_random_order(name: str) -> None:
    y = TOYS[name].sample(900, generator()).y
    counts = y.bincount().tolist()
    assert max(counts) - min(counts) <= 1
    assert not torch.equal(y, y.sort().values)
    assert abs(float(y[:300].double().mean() - y[-300:].double().mean())) < 0.6


@pytest.mark.parametrize("name", TOYS)
def test_the_posterior_is_calibrated_on_samples(name: str) -> None:
    """Among samples whose true posterior of a class is near p, about a share p belongs to it."""
    data = TOYS[name].sample(60_000, generator())
    probs = TOYS[name].posterior(data.x)
    assert_close(probs.sum(1), torch.ones(len(data), dtype=torch.double))
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        near = (probs[:, 0] >= low) & (probs[:, 0] <= low + 0.2)
        if near.sum() > 300:
            share, expected = (data.y[near] == 0).double().mean(), probs[near, 0].mean()
            assert abs(share - expected) < 4 * (0.25 / near.sum()) ** 0.5


def test_the_overlapping_gaussians_have_the_posterior_of_the_closed_form() -> None:
    x = torch.tensor([[0.0, 3.0], [0.5, -1.0], [-2.0, 0.0]])
    assert_close(TOYS["gaussians-overlap"].posterior(x)[:, 0], torch.sigmoid(4 * x[:, 0]).double())


def test_the_grids_have_nine_modes_and_the_latin_square_of_classes() -> None:
    grid = TOYS["grid-3"]
    assert isinstance(grid, Gaussians)
    table = torch.tensor(grid.classes).reshape(3, 3)
    for line in (*table, *table.T):
        assert sorted(line.tolist()) == [0, 1, 2]
    assert grid.means[5] == (4.0, 8.0)


@pytest.mark.parametrize("name", TOYS)
def test_outliers_keep_their_distance_and_lie_on_all_sides(name: str) -> None:
    data = TOYS[name].sample(2000, generator())
    outliers = sample_outliers(TOYS[name], data.x, 3000, generator(1))
    assert len(outliers) == 3000
    assert TOYS[name].distance(outliers).min() > OUTLIER_DISTANCE
    for axis in (0, 1):
        assert outliers[:, axis].min() < data.x[:, axis].min()
        assert outliers[:, axis].max() > data.x[:, axis].max()


def test_moons_are_those_of_scikit_learn_without_noise() -> None:
    from sklearn.datasets import make_moons

    theirs, y = make_moons(400, shuffle=False, noise=None)
    ours = TOYS["moons"].distance(torch.tensor(theirs, dtype=torch.float))
    assert ours.max() < 0.1
    probs = TOYS["moons"].posterior(torch.tensor(theirs))
    assert (probs.argmax(1) == torch.tensor(y)).all()
