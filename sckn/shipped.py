"""Models that come with sckn, by name: the small ones in the package, the large one in the repository alone.

A model called NAME is the file NAME.safetensors in one of these folders, the first that has it: those that the environment
variable SCKN_MODELS names, `models` inside the package, `models` of the repository where sckn is run from one.
"""

import os
import re
from pathlib import Path

__all__ = [
    "CLASSIFIER",
    "FACTORS",
    "IN_PACKAGE",
    "IN_REPOSITORY",
    "PACKAGED",
    "SHIPPED",
    "UPSCALERS",
    "find_shipped",
    "upscaler_name",
]

IN_PACKAGE = Path(__file__).parent / "models"
IN_REPOSITORY = Path(__file__).parents[1] / "models"

CLASSIFIER = "cifar10"
# Models that make photographs larger: one a factor, and one as fast as a processor needs it.
FACTORS = (2, 3, 4)
UPSCALERS = tuple(f"superres-x{factor}{form}" for factor in FACTORS for form in ("", "-fast"))
PACKAGED = (CLASSIFIER, *UPSCALERS)

# What is expected to be there, and what to do where it is not.
SHIPPED = {
    CLASSIFIER: "install sckn again, or train one with sckn train experiments/cifar10-128.toml",
    "cifar10-512": (
        "it is too large for the package: get models/cifar10-512.safetensors from the repository of sckn, and give its path, "
        "or set SCKN_MODELS to the folder it is in"
    ),
    **{name: f"install sckn again, or train one with sckn train experiments/{name}.toml" for name in UPSCALERS},
}


def find_shipped(name: str) -> Path | None:
    """The file of a model, if there is one of this name."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        return None
    files = (folder / f"{name}.safetensors" for folder in _folders())
    return next((file for file in files if os.path.isfile(file)), None)


def upscaler_name(factor: float, *, fast: bool = False) -> str:
    """The model for a factor: the next larger one, or the largest, which is then used several times."""
    scale = next((each for each in FACTORS if each >= factor), FACTORS[-1])
    return f"superres-x{scale}{'-fast' if fast else ''}"


def _folders() -> list[Path]:
    chosen = [Path(folder) for folder in os.environ.get("SCKN_MODELS", "").split(os.pathsep) if folder]
    # where sckn is installed, the folder beside the package is not ours
    repository = [IN_REPOSITORY] if (IN_REPOSITORY.parent / "pyproject.toml").is_file() else []
    return [*chosen, IN_PACKAGE, *repository]
