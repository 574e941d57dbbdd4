"""The photographs of BSDS500, from which the paper's networks for super-resolution learn; the test sets are others."""

from pathlib import Path

from torch import Tensor
from tqdm import tqdm

from sckn.superres.photos import photo_files, read_luminance

__all__ = ["read_bsds500"]

FOLDERS = ("train", "val", "test")
# Where these are, in the folder given: the folder itself, or as the archive unpacks.
PLACES = (".", "BSDS500", "images", "BSDS500/data/images", "BSR/BSDS500/data/images")
# Shows what an image of Set14 shows.
LEFT_OUT = "train/302003.jpg"


def read_bsds500(folder: str | Path, *, progress: bool = True) -> dict[str, Tensor]:
    """Luminance (H, W) in bytes of each photograph, by names such as "train/2092.jpg", in the order of these."""
    folder = Path(folder)
    for place in PLACES:
        if all((folder / place / name).is_dir() for name in FOLDERS):
            files = [path for name in FOLDERS for path in photo_files(folder / place / name)]
            named = {f"{path.parent.name}/{path.name}": path for path in files}
            named.pop(LEFT_OUT, None)
            bar = tqdm(sorted(named.items()), desc="reading", unit="photo", disable=None if progress else True)
            return {name: read_luminance(path) for name, path in bar}
    raise ValueError(
        f"{folder} does not hold BSDS500: expected its folders {', '.join(FOLDERS)} there or in {', '.join(PLACES[1:])}; "
        "unpack it from https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/resources.html"
    )
