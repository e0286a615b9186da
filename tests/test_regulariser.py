import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from uqgan.regulariser import REGULARISERS, block_layout, cosine_loss, spread_loss


def slow_spread_loss(z: Tensor, z_fake: Tensor, y: Tensor) -> Tensor:
    """Eqs. 10 and 11 word by word."""
    classes = []
    for c in y.unique():
        codes, generated = z[y == c], z_fake[y == c]
        if len(codes) < 2:
            continue
        i, k = torch.triu_indices(len(codes), len(codes), 1)
        terms = []
        for code in codes:
            direction = F.normalize(generated - code, dim=1)
            cosine = (direction[i] * direction[k]).sum(1).clamp(-1 + 1e-6, 1 - 1e-6)
            terms.append(-torch.log(cosine.arccos() / math.pi).mean())
        classes.append(torch.stack(terms).mean())
    return torch.stack(classes).mean()


@pytest.mark.parametrize(("n_classes", "dim", "batch"), [(2, 2, 20), (5, 32, 40), (30, 3, 40)])
def test_l_r_and_its_gradient_are_those_of_the_formula(n_classes: int, dim: int, batch: int) -> None:
    y = torch.randint(n_classes, (batch,))
    z = torch.randn(batch, dim, dtype=torch.double) + 7
    z_fake = (torch.randn(batch, dim, dtype=torch.double) + 7).requires_grad_()
    ours, theirs = spread_loss(z, z_fake, y), slow_spread_loss(z, z_fake, y)
    assert_close(ours, theirs)
    assert_close(*(torch.autograd.grad(loss, z_fake)[0] for loss in (ours, theirs)))


def test_l_r_counts_classes_alike_however_unbalanced_the_batch() -> None:
    y = torch.tensor([0] * 12 + [1] * 3)
    z, z_fake = torch.randn(15, 2), torch.randn(15, 2)
    apart = [spread_loss(z[y == c], z_fake[y == c], y[y == c]) for c in (0, 1)]
    assert_close(spread_loss(z, z_fake, y), (apart[0] + apart[1]) / 2)


def test_classes_seen_once_are_skipped_and_none_seen_twice_gives_0() -> None:
    z, z_fake = torch.randn(5, 2), torch.randn(5, 2, requires_grad=True)
    assert_close(
        spread_loss(z, z_fake, torch.tensor([0, 0, 0, 1, 2])), spread_loss(z[:3], z_fake[:3], torch.zeros(3).long())
    )
    loss = spread_loss(z, z_fake, torch.arange(5))
    assert loss == 0
    assert (torch.autograd.grad(loss, z_fake)[0] == 0).all()


def test_a_fixed_layout_changes_nothing_but_the_shapes() -> None:
    y, z, z_fake = torch.randint(4, (24,)), torch.randn(24, 3), torch.randn(24, 3)
    assert_close(spread_loss(z, z_fake, y, (6, 24)), spread_loss(z, z_fake, y))


def test_members_beyond_a_fixed_block_are_left_out() -> None:
    y, z, z_fake = torch.zeros(9, dtype=torch.long), torch.randn(9, 3), torch.randn(9, 3)
    assert_close(spread_loss(z, z_fake, y, (1, 5)), spread_loss(z[:5], z_fake[:5], y[:5]))


@given(turn=st.floats(0, 6.28), scale=st.floats(0.1, 10), shift=st.floats(-5, 5))
def test_l_r_does_not_change_when_all_codes_turn_move_or_grow_together(turn: float, scale: float, shift: float) -> None:
    y = torch.randint(2, (16,))
    z, z_fake = torch.randn(16, 2, dtype=torch.double), 3 * torch.randn(16, 2, dtype=torch.double)
    c, s = math.cos(turn), math.sin(turn)
    matrix = scale * torch.tensor([[c, -s], [s, c]], dtype=torch.double)
    moved = spread_loss(z @ matrix + shift, z_fake @ matrix + shift, y)
    assert_close(moved, spread_loss(z, z_fake, y), rtol=1e-6, atol=1e-6)


def test_a_ring_beats_a_clump() -> None:
    angle, y = torch.linspace(0, 2 * math.pi, 33)[:-1], torch.zeros(32, dtype=torch.long)
    z = 0.1 * torch.randn(32, 2)
    ring = torch.stack([angle.cos(), angle.sin()], 1)
    clump = torch.tensor([2.0, 0.0]) + 0.1 * torch.randn(32, 2)
    assert spread_loss(z, 2 * ring, y) < 0.5 * spread_loss(z, clump, y)


def test_coinciding_codes_give_a_finite_l_r_and_gradient() -> None:
    y, z = torch.zeros(4, dtype=torch.long), torch.zeros(4, 2)
    z_fake = torch.zeros(4, 2, requires_grad=True)
    loss = spread_loss(z, z_fake, y)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, z_fake)[0].isfinite().all()


def slow_loss(kind: str, z: Tensor, z_fake: Tensor, y: Tensor) -> Tensor:
    """What the paper tried beside Eq. 10, pair by pair."""
    order = {"l1": 1.0, "l2": 2.0, "linf": math.inf}
    classes = []
    for c in y.unique():
        codes, generated = z[y == c], z_fake[y == c]
        i, k = torch.triu_indices(len(codes), len(codes), 1)
        if kind == "cosine":
            angles = [F.cosine_similarity(generated[i] - code, generated[k] - code).mean() for code in codes]
            classes.append(torch.stack(angles).mean())
        else:
            classes.append(-torch.linalg.vector_norm(generated[i] - generated[k], order[kind], 1).log().mean())
    return torch.stack(classes).mean()


@pytest.mark.parametrize("kind", ["cosine", "l1", "l2", "linf"])
@pytest.mark.parametrize(("n_classes", "dim", "batch"), [(2, 2, 20), (4, 32, 40)])
def test_the_others_and_their_gradients_are_those_of_their_formulas(
    kind: str, n_classes: int, dim: int, batch: int
) -> None:
    y = torch.arange(batch) % n_classes
    z = torch.randn(batch, dim, dtype=torch.double) + 7
    z_fake = (torch.randn(batch, dim, dtype=torch.double) + 7).requires_grad_()
    ours, theirs = REGULARISERS[kind](z, z_fake, y), slow_loss(kind, z, z_fake, y)
    assert_close(ours, theirs)
    assert_close(*(torch.autograd.grad(loss, z_fake)[0] for loss in (ours, theirs)))


@pytest.mark.parametrize("kind", REGULARISERS)
def test_every_gradient_is_the_slope_of_its_loss(kind: str) -> None:
    y = torch.tensor([0, 0, 0, 1, 1, 2])
    z, z_fake = (torch.randn(6, 3, dtype=torch.double) for _ in range(2))
    assert torch.autograd.gradcheck(lambda made: REGULARISERS[kind](z, made, y), z_fake.requires_grad_())


@pytest.mark.parametrize("kind", REGULARISERS)
def test_a_fixed_layout_changes_no_regulariser_and_classes_seen_once_are_skipped(kind: str) -> None:
    loss = REGULARISERS[kind]
    y, z, z_fake = torch.randint(4, (24,)), torch.randn(24, 3), torch.randn(24, 3)
    layout = block_layout(torch.full((6,), 1 / 6), 24)
    assert_close(loss(z, z_fake, y, (6, 24)), loss(z, z_fake, y))
    assert loss(z, z_fake, y, layout).isfinite()
    assert loss(z[:4], z_fake[:4], torch.arange(4), (4, 3)) == 0


@pytest.mark.parametrize("kind", REGULARISERS)
def test_coinciding_codes_give_every_regulariser_a_finite_value_and_gradient(kind: str) -> None:
    y, z, z_fake = torch.zeros(4, dtype=torch.long), torch.zeros(4, 2), torch.zeros(4, 2, requires_grad=True)
    loss = REGULARISERS[kind](z, z_fake, y)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, z_fake)[0].isfinite().all()


@pytest.mark.parametrize("kind", REGULARISERS)
def test_a_step_along_the_gradient_moves_generated_codes_apart(kind: str) -> None:
    y, z = torch.zeros(12, dtype=torch.long), 0.1 * torch.randn(12, 2, dtype=torch.double)
    z_fake = (torch.tensor([2.0, 0.0]) + 0.2 * torch.randn(12, 2)).double().requires_grad_()
    loss = REGULARISERS[kind](z, z_fake, y)
    moved = z_fake - 0.01 * torch.autograd.grad(loss, z_fake)[0]
    assert REGULARISERS[kind](z, moved, y) < loss
    assert cosine_loss(z, moved, y) < cosine_loss(z, z_fake, y)


@given(scale=st.floats(0.1, 10), shift=st.floats(-5, 5))
def test_distances_in_other_units_give_another_loss_but_codes_moved_together_do_not(scale: float, shift: float) -> None:
    y, z, z_fake = torch.arange(12) % 2, torch.randn(12, 3, dtype=torch.double), torch.randn(12, 3, dtype=torch.double)
    for kind, loss in REGULARISERS.items():
        expected = loss(z, z_fake, y) - (math.log(scale) if kind.startswith("l") else 0)
        assert_close(loss(scale * z + shift, scale * z_fake + shift, y), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", REGULARISERS)
def test_with_a_layout_no_value_is_looked_at_as_a_cuda_graph_needs(kind: str) -> None:
    """Tensors on the meta device have shapes only: code that looks at a value fails on them."""
    y = torch.zeros(24, dtype=torch.long, device="meta")
    z, z_fake = torch.zeros(24, 3, device="meta"), torch.zeros(24, 3, device="meta", requires_grad=True)
    torch.autograd.grad(REGULARISERS[kind](z, z_fake, y, (4, 9)), z_fake)


COMPILED = """
import torch
from uqgan.regulariser import REGULARISERS

z, z_fake, y = torch.randn(24, 3), torch.randn(24, 3, requires_grad=True), torch.randint(4, (24,))
for loss in REGULARISERS.values():
    objective = lambda *batch: loss(*batch, (4, 9))
    compiled = torch.compile(objective, backend="aot_eager", fullgraph=True, dynamic=False)
    ours, plain = (torch.autograd.grad(each(z, z_fake, y), z_fake)[0] for each in (compiled, objective))
    torch.testing.assert_close(ours, plain)
"""


def test_with_a_layout_all_are_compiled_as_one_graph_with_the_same_result() -> None:
    """In a process without the checks of shapes, which can't be compiled."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True)
