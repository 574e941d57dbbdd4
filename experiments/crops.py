"""Details of photographs made three times larger, side by side: the truth, bicubic interpolation, a model.

    python experiments/crops.py superres-x3 --data FOLDER --output crops

The photographs and the details are those of the figures in the paper's appendix; FOLDER holds Set5, Set14 and Kodak. Each
detail becomes one PNG file. As in the paper the model does the luminance, and bicubic interpolation the colours. The report
of a run shows what is in its folder `crops` (--output RUN/crops, then sckn report RUN).
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import tyro

from sckn.checkpoint import load_upscaler
from sckn.files import written_whole
from sckn.image_grid import image_grid
from sckn.superres.photos import open_photo
from sckn.superres.side_by_side import three_forms
from sckn.training.run_files import model_file


class Detail(NamedTuple):
    """A photograph, and how many of its pixels are cut off on each side."""

    photo: str
    left: int
    bottom: int
    right: int
    top: int


# In the order of the figures; the numbers are in that of LaTeX's trim.
DETAILS = (
    Detail("Set5/baby.png", 115, 280, 300, 155),
    Detail("Set5/bird.png", 120, 170, 70, 35),
    Detail("Set5/butterfly.png", 40, 20, 100, 120),
    Detail("Set14/comic.png", 160, 140, 0, 130),
    Detail("Kodak/kodim05.png", 320, 200, 280, 200),
    Detail("Kodak/kodim06.png", 270, 350, 360, 50),
    Detail("Kodak/kodim09.png", 250, 610, 210, 100),
    Detail("Kodak/kodim20.png", 40, 130, 510, 210),
    Detail("Kodak/kodim22.png", 150, 340, 400, 20),
)


def crops(
    model: tyro.conf.Positional[str], data: Path, output: Path, scale: int = 3, zoom: int = 3, device: str = "cpu"
) -> None:
    """Write the details.

    Args:
        model: File, run folder, or name of a model; one for another factor is used as the paper does.
        data: Folder with Set5, Set14 and Kodak.
        output: Folder for the PNG files.
        scale: By which photographs are made smaller, and larger again.
        zoom: Pixels of the PNG file along a side of one of the photograph.
        device: Where to compute.
    """
    upscaler = load_upscaler(model_file(model), torch.device(device))
    for detail in DETAILS:
        forms = three_forms(upscaler, pixels_of(data / detail.photo), scale)
        tiles = np.stack([cut_out(form.numpy(), detail) for form in forms])
        path = output / f"{Path(detail.photo).stem}-x{scale}.png"
        with written_whole(path) as temporary:
            temporary.write_bytes(image_grid(tiles[None], zoom))
        print(path)


def pixels_of(path: Path) -> torch.Tensor:
    """(3, H, W) in bytes."""
    return torch.from_numpy(np.array(open_photo(path).convert("RGB"))).permute(2, 0, 1)


def cut_out(image: np.ndarray, detail: Detail) -> np.ndarray:
    height, width = image.shape[1:]
    part = image[:, detail.top : height - detail.bottom, detail.left : width - detail.right]
    if 0 in part.shape:
        raise ValueError(f"{detail.photo} has {width} x {height} pixels, which leaves nothing of its detail; get the original")
    return part


if __name__ == "__main__":
    tyro.cli(crops)
