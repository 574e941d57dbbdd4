"""Packages that are optional: the extras of pip, such as sckn[plots]."""

__all__ = ["MissingPackageError"]


class MissingPackageError(ValueError):
    """What was asked for needs packages that are not installed, and come with an extra."""

    def __init__(self, what: str, packages: str, extra: str) -> None:
        super().__init__(f"{what} needs {packages}; install it with pip install 'sckn[{extra}]'")
