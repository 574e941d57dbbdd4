"""Peak memory of encoding a data set on disk: it depends on the batch, not on the data set. Written to results/.

python benchmarks/encoding_memory.py

Each figure is the peak memory (Linux) of a process of its own that encodes images of the size of CIFAR-10 from a
file into another file, less that of one that only loads the libraries and encodes one image.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from sckn.layer import LayerConfig
from sckn.network import CKN, NetworkConfig
from sckn.results import write_result
from sckn.training.unsupervised import encoded_batches

IMAGE_BYTES = 3 * 32 * 32
NETWORK = NetworkConfig(3, (LayerConfig(32, 3, subsampling=2), LayerConfig(64, 3, subsampling=6)))


def read_batches(source: Path, batch_size: int) -> Iterator[np.ndarray]:
    """Images of a file of bytes, without mapping it: pages of a mapped file would count as memory of the process."""
    with source.open("rb") as file:
        while data := file.read(batch_size * IMAGE_BYTES):
            yield np.frombuffer(data, np.uint8).reshape(-1, 3, 32, 32)


def encode_file(source: Path, batch_size: int) -> None:
    """Encode `source` into a file beside it; print the peak memory of this process in MiB."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with source.with_suffix(".features").open("wb") as file:
        for batch in encoded_batches(CKN(NETWORK), read_batches(source, batch_size), batch_size=batch_size):
            batch.numpy().tofile(file)
    status = Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) / 1024)


def measure(folder: Path, images: int, batch_size: int) -> float:
    """Peak memory in MiB of a process that encodes so many images."""
    source = folder / "images.bytes"
    np.random.default_rng(0).integers(0, 256, images * IMAGE_BYTES, dtype=np.uint8).tofile(source)
    command = [sys.executable, __file__, "--encode", str(source), "--batch", str(batch_size)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encode", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=Path("results"))
    settings = parser.parse_args()
    if settings.encode:
        encode_file(settings.encode, settings.batch)
        return
    started = time.perf_counter()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        base = measure(Path(folder), 1, 1)
        for batch_size in (64, 256):
            for images in (1_000, 4_000, 16_000):
                extra = measure(Path(folder), images, batch_size) - base
                rows.append({"images": images, "batch_size": batch_size, "peak_mib": round(extra, 1)})
    path = write_result(
        settings.results,
        name="encoding-memory",
        dataset="synthetic",
        figures={"base_mib": round(base, 1), "rows": rows},
        config=NETWORK.to_dict(),
        seeds=[0],
        seconds=time.perf_counter() - started,
        command="python benchmarks/encoding_memory.py",
    )
    print("images  batch  peak MiB")
    for row in rows:
        print(f"{row['images']:6d}  {row['batch_size']:5d}  {row['peak_mib']:8.1f}")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
