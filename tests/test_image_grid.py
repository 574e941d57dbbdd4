"""Tiles in a picture: each where it belongs, enlarged pixel by pixel."""

import io

import numpy as np
from PIL import Image

from sckn.image_grid import filter_tiles, image_grid


def opened(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def test_every_tile_has_its_place() -> None:
    tiles = np.random.default_rng(0).integers(0, 255, (2, 3, 3, 4, 5), dtype=np.uint8)
    picture = opened(image_grid(tiles, zoom=3, gap=1))
    assert picture.shape == (2 * 13 + 1, 3 * 16 + 1, 3)
    for row, column in np.ndindex(2, 3):
        part = picture[1 + 13 * row :, 1 + 16 * column :][:12, :15]
        np.testing.assert_array_equal(part[::3, ::3].transpose(2, 0, 1), tiles[row, column])
        np.testing.assert_array_equal(part, part[::3, ::3].repeat(3, axis=0).repeat(3, axis=1))
    assert (picture[::13] == 255).all()
    assert (picture[:, ::16] == 255).all()


def test_one_channel_is_grey() -> None:
    picture = opened(image_grid(np.full((1, 1, 1, 2, 2), 7, np.uint8), gap=0))
    assert (picture == 7).all()


def test_filters_are_shown_around_grey() -> None:
    filters = np.zeros((3, 3, 2, 2))
    filters[0, 0, 0, 0], filters[1, 1, 1, 1] = 5.0, -0.01
    tiles = filter_tiles(filters, columns=2)
    assert tiles.shape == (2, 2, 3, 2, 2)
    assert tiles[0, 0, 0, 0, 0] == 255
    assert tiles[0, 1, 1, 1, 1] == 0
    assert set(np.unique(tiles[1, 0])) == {128}  # a filter of zeros
    assert (tiles[1, 1] == 255).all()  # no filter


def test_of_other_than_three_channels_the_mean_is_shown() -> None:
    filters = np.random.default_rng(0).normal(size=(4, 5, 3, 3))
    np.testing.assert_array_equal(filter_tiles(filters, 4), filter_tiles(filters.mean(axis=1, keepdims=True), 4))
