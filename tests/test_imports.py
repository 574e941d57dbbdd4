"""The layering of the package: imports point one way, and only the command line prints."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import sckn

PACKAGE = Path(sckn.__file__).parent

# From the bottom up; a module imports nothing from a higher row. A package stands for those of its modules not named.
LAYERS = (
    (
        "version",
        "settings",
        "files",
        "clock",
        "extras",
        "freed_memory",
        "cache",
        "capture",
        "fused",
        "precision",
        "processes",
        "shipped",
        "published",
        "image_files",
        "image_grid",
        "lack_of_memory",
        "pixels",
    ),
    ("plotting",),
    (
        "superres.colour",
        "superres.deep_image",
        "superres.detail",
        "superres.imresize",
        "superres.picture",
        "superres.print_colours",
        "superres.quality",
    ),
    ("superres.assembly", "superres.consistency", "superres.photos", "superres.tiles"),
    ("kernels", "pooling", "patches", "whitening", "data", "training.orthogonal"),
    ("inverse_root", "kmeans", "results", "preparation", "tables", "training.sphere"),
    ("nystrom", "features", "losses", "moving_frame"),
    ("lbfgs", "miso"),
    ("linear",),
    ("layer",),
    ("network",),
    ("model",),
    ("classifier", "superres.upscaler"),
    ("gram", "checkpoint", "training.unsupervised", "evaluation", "classification", "export"),
    ("confusion",),
    ("training",),
    ("superres",),
    ("estimators", "demo", "modelcard", "web"),
    ("commands",),
    ("cli",),
    ("__main__",),
)
RANKS = {name: rank for rank, row in enumerate(LAYERS) for name in row}
MAY_IMPORT_CLI = {"sckn", "sckn.__main__", "sckn.cli"}


def module_name(path: Path) -> str:
    parts = ["sckn", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in PATHS.items()}


def nodes(tree: ast.AST, *, in_functions: bool) -> Iterator[ast.AST]:
    """All parts of a module, with or without what runs only when a function is called."""
    for child in ast.iter_child_nodes(tree):
        if in_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from nodes(child, in_functions=in_functions)


def imports(name: str, *, in_functions: bool = True) -> set[str]:
    """The modules of the package that a module imports."""
    found = set()
    for node in nodes(TREES[name], in_functions=in_functions):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = name.split(".") if PATHS[name].name == "__init__.py" else name.split(".")[:-1]
            start = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                below = f"{origin}.{alias.name}"
                found.add(below if below in PATHS else origin)
    return {target for target in found if target in PATHS} - {name}


def unit(name: str) -> str:
    """`training` for sckn.training.unsupervised."""
    return name.split(".")[1] if "." in name else "sckn"


def place(name: str) -> str:
    """The entry of LAYERS for a module: its own or that of its package. The package sckn, which gathers all, has none."""
    own = name.removeprefix("sckn.")
    return own if own in RANKS else unit(name)


def test_every_module_has_a_place() -> None:
    assert {place(name) for name in PATHS} - {"sckn"} == set(RANKS)


def test_the_imports_are_found() -> None:
    """The tests below see something."""
    assert imports("sckn.layer") >= {"sckn.inverse_root", "sckn.kernels", "sckn.nystrom", "sckn.patches", "sckn.pooling"}
    assert "sckn.kernels" in imports("sckn.network")  # from sckn import kernels
    assert "sckn.commands.train" in imports("sckn.cli")
    assert "sckn.data.batches" in imports("sckn.training.unsupervised")
    assert {"kernels", "pooling", "patches", "inverse_root", "kmeans", "nystrom", "layer", "network"} <= set(map(unit, PATHS))


def test_imports_point_down() -> None:
    up = [
        f"{name} imports {target}"
        for name in PATHS
        for target in imports(name)
        if "sckn" not in (name, target) and RANKS[place(target)] > RANKS[place(name)]
    ]
    assert not up


def test_the_network_knows_nothing_of_training_data_or_estimators() -> None:
    """Directly or through what it imports."""
    reached, todo = set(), ["sckn.network"]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo.extend(imports(name))
    assert not {unit(name) for name in reached} & {
        "training",
        "data",
        "features",
        "linear",
        "lbfgs",
        "losses",
        "estimators",
        "demo",
        "commands",
        "cli",
    }
    assert "sckn.inverse_root" in reached


def test_data_and_tools_know_nothing_of_training_or_estimators() -> None:
    tools = {"data", "features", "files", "lbfgs", "linear", "losses", "results", "whitening"}
    wrong = [
        f"{name} imports {target}"
        for name in PATHS
        for target in imports(name)
        if unit(name) in tools and unit(target) in {"training", "estimators", "demo", "commands", "cli"}
    ]
    assert not wrong


def test_only_the_entry_points_import_the_command_line() -> None:
    assert not [name for name in PATHS if "sckn.cli" in imports(name) and name not in MAY_IMPORT_CLI]


def test_there_are_no_cycles() -> None:
    """A cycle raises graphlib.CycleError, which names it."""
    order = list(TopologicalSorter({name: imports(name, in_functions=False) for name in PATHS}).static_order())
    assert set(order) == set(PATHS)
    assert order.index("sckn.kernels") < order.index("sckn.layer") < order.index("sckn.network")


def test_the_library_prints_nothing() -> None:
    calls = [
        f"{PATHS[name].name}:{node.lineno}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        if unit(name) not in ("cli", "commands")
    ]
    assert not calls
