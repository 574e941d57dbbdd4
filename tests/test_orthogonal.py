"""Matrices made nearly orthogonal, against the singular value decomposition."""

import pytest
import torch

from sckn.training.orthogonal import orthogonalized


@pytest.mark.parametrize("shape", [(1, 5, 5), (3, 8, 20), (2, 20, 8), (1, 1, 7)])
def test_singular_vectors_stay_and_values_come_near_one(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, dtype=torch.float64)
    U, s, Vh = torch.linalg.svd(matrices, full_matrices=False)
    s = torch.logspace(0, -3, s.shape[1], dtype=torch.float64).expand_as(s)  # far apart
    s = s / s.norm(dim=1, keepdim=True)
    found = orthogonalized(7 * U @ torch.diag_embed(s) @ Vh)
    core = U.mT @ found @ Vh.mT  # diagonal, if the vectors are the same
    values = core.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(core, torch.diag_embed(values), rtol=0, atol=1e-10)
    assert float(values.min()) > 0.67
    assert float(values.max()) < 1.22


def test_zero_stays_zero_beside_others() -> None:
    matrices = torch.stack([torch.zeros(3, 4), torch.randn(3, 4)])
    found = orthogonalized(matrices)
    assert torch.equal(found[0], matrices[0])
    assert float(found[1].norm()) > 1


def test_under_autocast_values_stay_near_one_and_the_type_what_it_was() -> None:
    matrices = torch.randn(2, 16, 40)
    with torch.autocast("cpu", torch.bfloat16):
        found = orthogonalized(matrices)
    assert found.dtype == torch.float32
    difference = (found - orthogonalized(matrices)).norm() / found.norm()
    assert 1e-4 < float(difference) < 0.03  # bf16 keeps three digits: fewer than that were lost, but some
    assert float(torch.linalg.svdvals(found).min()) > 0.6
    assert float(torch.linalg.svdvals(found).max()) < 1.28
