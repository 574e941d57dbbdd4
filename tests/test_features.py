import torch

from sckn.features import VARIANCE_FLOOR, FeatureTransform


def correlated(n: int, d: int) -> torch.Tensor:
    return torch.randn(n, d, dtype=torch.float64) @ torch.randn(d, d, dtype=torch.float64) + 5


def test_all_features_equal_the_closed_form() -> None:
    features = correlated(200, 6)
    transform = FeatureTransform.fit(features, 6, norm=10.0)
    centred = features - features.mean(0)
    C = centred.T @ centred
    values, vectors = torch.linalg.eigh(C / C.diagonal().mean() + VARIANCE_FLOOR * torch.eye(6, dtype=torch.float64))
    expected = centred @ vectors @ torch.diag(values**-0.25) @ vectors.T
    expected *= 10 / expected.norm(dim=1).mean()
    torch.testing.assert_close(transform(features)[:, :-1], expected, rtol=1e-9, atol=1e-9)


def test_channels_are_decorrelated_at_each_position_by_the_same_matrix() -> None:
    maps = correlated(300, 4 * 9).view(300, 4, 3, 3)
    transform = FeatureTransform.fit(maps.flatten(1), 4)
    centred = maps - maps.mean(0)
    expected = torch.einsum("ab,nbhw->nahw", transform.matrix * transform.scale, centred)
    torch.testing.assert_close(transform(maps.flatten(1))[:, :-1], expected.flatten(1), rtol=1e-9, atol=1e-9)
    half = torch.linalg.inv(transform.matrix) @ torch.linalg.inv(transform.matrix)  # C^(1/2)
    C = torch.einsum("nahw,nbhw->ab", centred, centred)
    torch.testing.assert_close(
        half @ half, C / C.diagonal().mean() + VARIANCE_FLOOR * torch.eye(4, dtype=torch.float64), rtol=1e-8, atol=1e-8
    )


def test_mean_norm_and_constant() -> None:
    features = correlated(100, 5)
    transformed = FeatureTransform.fit(features, 5, norm=7.0)(features)
    torch.testing.assert_close(transformed[:, :-1].norm(dim=1).mean(), torch.tensor(7.0, dtype=torch.float64))
    assert (transformed[:, -1] == 7.0).all()


def test_new_samples_use_what_was_learned() -> None:
    features = correlated(100, 5)
    transform = FeatureTransform.fit(features[:60], 5)
    torch.testing.assert_close(transform(features)[:60], transform(features[:60]))
    torch.testing.assert_close(transform(features[60:]), transform(features)[60:])


def test_features_that_never_vary_stay_finite() -> None:
    features = torch.ones(10, 3)
    assert FeatureTransform.fit(features, 3)(features).isfinite().all()
