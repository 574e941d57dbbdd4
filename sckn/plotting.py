"""matplotlib, where it is installed: it is optional, slow to import, and so asked for only when something is drawn."""

from typing import Any

from sckn.extras import MissingPackageError

__all__ = ["figure_and_canvas"]


def figure_and_canvas(what: str, **settings: Any) -> tuple[Any, Any]:
    """A new figure and the canvas that writes it; `what` is for the sentence where matplotlib is missing.

    The canvas is made by itself, so that the program's own choice of a display is left alone.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError(f"drawing {what}", "matplotlib", "plots") from None
    figure = Figure(layout="constrained", **settings)
    return figure, FigureCanvasAgg(figure)
