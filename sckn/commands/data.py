"""`sckn data`."""

from pathlib import Path
from typing import Annotated

import tyro

from sckn.commands.options import Flag, MaybeDataset
from sckn.data.catalog import OFFICIAL, DatasetName, Inventory, megabytes, take_inventory
from sckn.data.download import download as fetch

__all__ = ["data"]


def data(
    name: Annotated[MaybeDataset, tyro.conf.Positional] = None,
    *,
    data: Path,
    download: Flag = False,
    extra: Flag = False,
) -> None:
    """Tell which data sets a folder holds, and fetch what is missing.

    Example: sckn data cifar10 --data DIR --download

    Args:
        name: cifar10, cifar100, svhn, or folder for any folder with one sub-folder a class; else the first three.
        data: Folder to look into, as for sckn train.
        download: Fetch what is missing from the official site.
        extra: Fetch the extra images of SVHN, too.
    """
    if download and name in (None, "folder"):
        raise ValueError("say which data set to download: sckn data cifar10, cifar100 or svhn, with --download")
    if extra and not (download and name == "svhn"):
        raise ValueError("--extra goes with sckn data svhn --download; leave it out")
    for each in OFFICIAL if name is None else (name,):
        inventory = take_inventory(each, data)
        if download:
            for file in (*inventory.downloads, *(inventory.optional if extra else ())):
                fetch(file, data)
            inventory = take_inventory(each, data)
        _print_inventory(each, inventory, data)
    if name is None:
        print("folder: any folder with one sub-folder a class; sckn data folder --data DIR looks into one")


def _print_inventory(name: DatasetName, inventory: Inventory, folder: Path) -> None:
    print(f"{name}: {inventory.title}")
    for line in inventory.found:
        print(f"  found    {line}")
    for line in inventory.missing:
        print(f"  missing  {line}")
    for word, files in (("get", inventory.downloads), ("optional", inventory.optional)):
        for file in files:
            print(f"  {word:8} {file.address}  {megabytes(file.size)}")
    if inventory.downloads:
        print(f"           or: sckn data {name} --data {folder} --download")
