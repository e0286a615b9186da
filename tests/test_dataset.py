"""Splits, subsets, batches and flips never mix, lose or double a sample."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uqgan.data import duplicates
from uqgan.data.dataset import Dataset, as_input, epoch_views, outlier_batches, permutation, split_indices
from uqgan.data.duplicates import first_copies
from uqgan.data.splits import cut, cut_by_class, cut_ood, split_task
from uqgan.errors import UsageError

sizes = st.integers(5, 400)
seeds = st.integers(0, 2**31 - 1)


def numbered_set(n: int, n_classes: int = 5, start: int = 0) -> Dataset:
    """Picture k holds the number k in its pixels, in a way that a flip leaves readable."""
    number = torch.arange(start, start + n)
    low, high = number % 256, number // 256
    x = torch.stack([low, high, low, high], 1).to(torch.uint8).reshape(n, 1, 2, 2).permute(0, 1, 3, 2)
    return Dataset(x.contiguous(), number % n_classes)


def numbers(x: torch.Tensor) -> list[int]:
    return (x[:, 0, 0, 0].long() + 256 * x[:, 0, 1, 0].long()).tolist()


@given(n=sizes, seed=seeds)
def test_a_split_loses_and_doubles_no_sample(n: int, seed: int) -> None:
    rest, part = numbered_set(n).split(0.2, seed)
    assert sorted(numbers(rest.x) + numbers(part.x)) == list(range(n))
    assert len(part) == int(0.2 * n)


@given(n=sizes, seed=seeds)
def test_train_validation_and_calibration_are_disjoint_and_complete(n: int, seed: int) -> None:
    parts = cut(n, seed)
    assert torch.cat(parts).sort().values.tolist() == list(range(n))


@given(n=st.integers(20, 200), n_classes=st.integers(2, 6), seed=seeds, share=st.floats(0.05, 0.6))
def test_a_cut_by_class_takes_the_same_part_of_every_class(n: int, n_classes: int, seed: int, share: float) -> None:
    y = torch.arange(n) % n_classes
    rest, part = cut_by_class(y, share, seed)
    assert torch.cat([rest, part]).sort().values.tolist() == list(range(n))
    for k in range(n_classes):
        count = int((y == k).sum())
        assert int((y[part] == k).sum()) == max(1, round(share * count))


@given(n=sizes, seed=seeds, known=st.sets(st.integers(0, 4), min_size=2, max_size=4))
def test_a_task_keeps_every_sample_once_and_with_its_label(n: int, seed: int, known: set[int]) -> None:
    data, test = numbered_set(n), numbered_set(50, start=1000)
    others = sorted(set(range(5)) - known)
    task = split_task(
        "t",
        "t",
        tuple(map(str, sorted(known))),
        data,
        test,
        {"rest": data.keep(others).x},
        {"rest": test.x},
        seed,
        known,
    )
    parts = [task.train, task.validation, task.calibration]
    seen = [k for part in parts for k in numbers(part.x)]
    foreign = numbers(task.outliers["rest"]) + numbers(task.ood_validation["rest"])
    assert sorted(seen + foreign) == list(range(n))
    order = sorted(known)
    for part in (*parts, task.test):
        assert part.y.tolist() == [order.index(k % 5) for k in numbers(part.x)]


@given(n=st.integers(100, 400), seed=seeds, copies=st.lists(st.integers(0, 99), max_size=20))
def test_a_copy_of_a_sample_is_in_no_second_part_whatever_the_seed(n: int, seed: int, copies: list[int]) -> None:
    data, test = numbered_set(n), numbered_set(50, start=1000)
    index = torch.cat([torch.arange(n), torch.tensor(copies, dtype=torch.long)])
    leaked = Dataset(torch.cat([data.x[index], test.x[:7]]), torch.cat([data.y[index], test.y[:7]]))
    foreign = {"rest": leaked.keep([4]).x}
    task = split_task("t", "t", tuple("0123"), leaked, test, foreign, {"rest": test.keep([4]).x}, seed, range(4))
    parts = [task.train.x, task.validation.x, task.calibration.x, task.test.x, task.ood["rest"]]
    found = [set(numbers(x)) for x in (*parts, task.outliers["rest"], task.ood_validation["rest"])]
    assert sum(map(len, found)) == len(set().union(*found)) == n + 50
    assert sum(int(n) for note in task.notes for n in re.findall(r"(\d+) equal a test picture", note)) == 7


def test_training_pictures_that_are_all_test_pictures_are_refused() -> None:
    data = numbered_set(50)
    with pytest.raises(UsageError, match="every training picture of 0, 1, 2, 3, 4 is a test picture too"):
        split_task("t", "t", tuple("01234"), data, data, {}, {}, 0)


def test_equal_hashes_alone_do_not_make_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbered_set(20).x
    sets = [x, torch.cat([x[5:7], numbered_set(3, start=50).x])]
    expected = [*range(20), 5, 6, 22, 23, 24]
    assert first_copies(sets).tolist() == expected
    monkeypatch.setattr(duplicates, "_hash", lambda rows: rows[:, 0].astype("uint64") * 0)
    assert first_copies(sets).tolist() == expected


@given(n=sizes, seed=seeds)
def test_what_oracles_see_is_never_what_studies_see(n: int, seed: int) -> None:
    outliers, ood_validation = cut_ood({"set": numbered_set(n).x}, seed)
    assert sorted(numbers(outliers["set"]) + numbers(ood_validation["set"])) == list(range(n))
    assert len(ood_validation["set"]) == int(0.3 * n)


@given(n=sizes, classes=st.sets(st.integers(0, 4), min_size=1))
def test_a_subset_holds_all_of_its_classes_renumbered_in_order(n: int, classes: set[int]) -> None:
    kept = numbered_set(n).keep(classes)
    order = sorted(classes)
    assert numbers(kept.x) == [k for k in range(n) if k % 5 in classes]
    assert kept.y.tolist() == [order.index(k % 5) for k in numbers(kept.x)]


@given(n=st.integers(5, 100), batch_size=st.integers(2, 40), seed=seeds, flip=st.booleans())
def test_an_epoch_of_batches_shows_each_sample_once_flipped_or_not(
    n: int, batch_size: int, seed: int, flip: bool
) -> None:
    data = numbered_set(n)
    steps = range(data.steps_per_epoch(batch_size, drop_last=False))
    batches = list(data.batches(batch_size, steps, seed, drop_last=False, flip=flip))
    shown = [k for batch in batches for k in numbers((batch.x * 255).round())]
    assert sorted(shown) == list(range(n))
    assert [k % 5 for k in shown] == torch.cat([batch.y for batch in batches]).tolist()


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4), batch_size=st.integers(1, 40), seed=seeds)
def test_outlier_batches_share_equally_and_pass_through_each_set(
    lengths: list[int], batch_size: int, seed: int
) -> None:
    sets = [numbered_set(n, start=100 * k).x for k, n in enumerate(lengths)]
    batches = list(outlier_batches([*sets, sets[0][:0]], batch_size, range(12), seed))
    shown: list[list[int]] = [[] for _ in sets]
    for batch in batches:
        members = [[i for i in numbers((batch * 255).round()) if i // 100 == k] for k in range(len(sets))]
        counts = [len(each) for each in members]
        assert sum(counts) == batch_size
        assert max(counts) - min(counts) <= 1
        for whole, each in zip(shown, members, strict=True):
            whole.extend(each)
    for k, n in enumerate(lengths):
        for start in range(0, len(shown[k]), n):
            epoch = shown[k][start : start + n]
            assert len(set(epoch)) == len(epoch)
            assert set(epoch) <= set(range(100 * k, 100 * k + n))
    resumed = list(outlier_batches(sets, batch_size, range(7, 12), seed))
    assert all(torch.equal(a, b) for a, b in zip(batches[7:], resumed, strict=True))


def test_outliers_are_shuffled_anew_in_each_epoch_and_by_each_seed() -> None:
    x = numbered_set(50).x
    first, second = (numbers((batch * 255).round()) for batch in outlier_batches([x], 50, range(2), 0))
    (other,) = (numbers((batch * 255).round()) for batch in outlier_batches([x], 50, range(1), 1))
    assert len({tuple(each) for each in (first, second, other, range(50))}) == 4


def test_a_flip_mirrors_left_to_right_about_half_of_the_images() -> None:
    images = torch.arange(6, dtype=torch.uint8).reshape(1, 1, 2, 3).repeat(4000, 1, 1, 1)
    x, seen = as_input(images), Dataset(images, torch.zeros(4000, dtype=torch.long))
    (batch,) = seen.batches(4000, range(1), seed=0, flip=True)
    mirrored = (batch.x == x.flip(3)).flatten(1).all(1)
    assert ((batch.x == x).flatten(1).all(1) | mirrored).all()
    assert torch.equal(mirrored, batch.view >= 4000)
    assert 1800 < int(mirrored.sum()) < 2200


def test_flips_leave_the_order_of_an_epoch_as_it_is() -> None:
    assert torch.equal(epoch_views(50, 3, 2, flip=True) % 50, epoch_views(50, 3, 2, flip=False))
    assert torch.equal(epoch_views(50, 3, 2, flip=False), permutation(50, 3, 2))


def test_the_same_seed_shuffles_alike_on_every_platform() -> None:
    assert permutation(20, 0).tolist() == FIXED_ORDER
    assert split_indices(10, 0.3, 7)[1].tolist() == FIXED_PART


FIXED_ORDER = [4, 5, 13, 19, 7, 14, 3, 6, 9, 17, 11, 2, 16, 18, 10, 12, 15, 8, 1, 0]
FIXED_PART = [5, 9, 4]
