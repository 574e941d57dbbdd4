"""`sckn export`."""

from pathlib import Path
from typing import Annotated

import tyro

from sckn.checkpoint import load
from sckn.classifier import ImageClassifier
from sckn.data.catalog import megabytes
from sckn.export.onnx_file import checked_target, export_onnx
from sckn.training.run_files import model_file

__all__ = ["export"]


def export(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    output: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT.onnx")],
) -> None:
    """Write a model as ONNX, which runs without Python and PyTorch.

    Example: sckn export superres-x2 superres-x2.onnx

    Args:
        model: File, run folder (its first seed), or name.
        output: File to write; one that is there is replaced.
    """
    checked_target(output)
    loaded = load(model_file(model))
    path = export_onnx(loaded, output, name=loaded.name if isinstance(loaded, ImageClassifier) else Path(model).stem)
    print(f"{path}: {megabytes(path.stat().st_size)}, checked with onnxruntime")
