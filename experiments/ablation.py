"""What each ingredient of the training gives, and how the error falls with the number of filters: CIFAR-10, validation.

The network is that of experiments/cifar10-128-paper.toml, the reference a recipe of today's habits; one setting at a time
is changed, but for the paper's recipe as a whole. The test set is not scored. Without labels features are decorrelated, and
the error is that of the best of eight lambdas on the same images; with labels lambda is 1/n.

    python experiments/ablation.py run --data DIR --run runs/ablation --jobs 3    # on a GPU; goes on where it stopped
    python experiments/ablation.py collect runs/ablation/measurements.json        # writes results/ and the plots
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import tyro

from sckn.files import written_whole
from sckn.kernels import Exponential
from sckn.layer import LayerConfig
from sckn.network import NetworkConfig
from sckn.results import code_version, machine, write_result
from sckn.training.experiment import Experiment
from sckn.training.recipe import Recipe
from sckn.training.run_files import read_history
from sckn.training.with_labels import run_with_labels
from sckn.training.without_labels import run_without_labels

HERE = Path(__file__).parent
BASE = HERE / "cifar10-128-paper.toml"
REFERENCE = Recipe(learning_rate=0.05, schedule="cosine", weights="sgd", weights_learning_rate=0.002, active_set=False)
EXPONENT = 0  # lambda = 2^EXPONENT/n

Change = Callable[[Experiment], Experiment]


def recipe(**settings: Any) -> Change:
    def change(experiment: Experiment) -> Experiment:
        assert experiment.recipe is not None
        return replace(experiment, recipe=replace(experiment.recipe, **settings))

    return change


def layers(change: Callable[[LayerConfig], LayerConfig]) -> Change:
    def changed(experiment: Experiment) -> Experiment:
        network = NetworkConfig(experiment.network.in_channels, tuple(map(change, experiment.network.layers)))
        return replace(experiment, network=network)

    return changed


def filters(count: int) -> Change:
    return layers(lambda layer: replace(layer, filters=count))


# What the table compares: the name, what it changes in words, and the change.
INGREDIENTS: dict[str, tuple[str, Change]] = {
    "reference": ("reference (cosine, W by SGD, TF32)", lambda experiment: experiment),
    "paper-gradient": ("the paper's gradient of A", layers(lambda layer: replace(layer, gradient="paper"))),
    "moving-frame": (
        "moving frame instead of the symmetric root",
        layers(lambda layer: replace(layer, inverse_root="moving_frame")),
    ),
    "preconditioner-weak": ("preconditioner, damping 0.01", recipe(preconditioner=0.01)),
    "preconditioner-strong": ("preconditioner, damping 1", recipe(preconditioner=1.0)),
    "halving": ("the paper's halving and back-tracking", recipe(schedule="halving")),
    "paper": (
        "the paper's recipe: halving, W by the solver, active set",
        recipe(schedule="halving", weights="solver", active_set=True, learning_rate=0.1),
    ),
    "active-set": ("active set", recipe(active_set=True)),
    "learned-alpha": (
        "learned alpha",
        layers(lambda layer: replace(layer, kernel=Exponential(alpha=4.0, learnable=True))),
    ),
    "augmentation": ("flips and shifts by up to 4 pixels", recipe(flip=True, shift=4)),
    "averaging": ("running mean of the iterates, decay 0.99", recipe(averaging=0.99)),
    "solver": ("W by the convex solver after each epoch", recipe(weights="solver")),
    "bf16": ("convolutions and products in bf16", recipe(precision="medium")),
    "fp32": ("convolutions and products in fp32", recipe(precision="highest")),
}
FILTERS = {f"filters-{count}": (f"{count} filters", filters(count)) for count in (32, 64, 256, 512)}
UNSUPERVISED = {
    f"unsupervised-{count}": (f"{count} filters, without labels", filters(count)) for count in (32, 64, 128, 256, 512)
}
VARIANTS = INGREDIENTS | FILTERS | UNSUPERVISED


def experiment_of(variant: str, seed: int, epochs: int) -> Experiment:
    base = Experiment.from_toml(BASE)
    reference = replace(REFERENCE, epochs=epochs)
    base = replace(base, name="ablation", recipe=reference, seeds=(seed,), lambda_exponents=(EXPONENT,))
    changed = VARIANTS[variant][1](base)
    if variant in UNSUPERVISED:
        exponents = tuple(range(-4, 11, 2))
        return replace(changed, recipe=None, lambda_exponents=exponents, decorrelation="channels")
    return changed


def one(variant: str, seed: int, data: Path, run: Path, epochs: int, device: str) -> None:
    """A single training, in a process of its own."""
    started = perf_counter()
    experiment, folder = experiment_of(variant, seed, epochs), run / f"{variant}-{seed}"
    measured: dict[str, Any] = {"variant": variant, "seed": seed, "config": experiment.to_dict(), "epochs": epochs}
    if experiment.recipe is None:
        report = run_without_labels(experiment, data, torch.device(device), test=False)[0]
        measured |= {"validation_error": report.validation_errors[report.lambda_exponent], "exponent": report.lambda_exponent}
    else:
        run_with_labels(experiment, data, torch.device(device), folder, resume=True, test=False)
        history = read_history(folder / f"seed-{seed}" / f"lambda-2^{EXPONENT}")
        last = [record for record in history if record["accepted"]][-1]
        names = ("objective", "train_error", "validation_error", "sample_gradients")
        measured |= {name: last[name] for name in names}
        measured["validation_errors"] = [record["validation_error"] for record in history]
        measured["objectives"] = [record["objective"] for record in history]
        phases = sorted({phase for record in history for phase in record["seconds"]})
        measured["seconds_of"] = {
            phase: round(sum(record["seconds"].get(phase, 0) for record in history), 2) for phase in phases
        }
    measured |= {"seconds": round(perf_counter() - started, 1), "code_version": code_version(), "machine": machine()}
    with written_whole(run / f"{variant}-{seed}.json") as temporary:
        temporary.write_text(json.dumps(measured))


def run(
    data: Path,
    run: Path = Path("runs/ablation"),
    variants: tuple[str, ...] = tuple(VARIANTS),
    seeds: tuple[int, ...] = (0, 1),
    epochs: int = 20,
    jobs: int = 1,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
    seconds: float = 1e9,
) -> None:
    """Train every variant with every seed, `jobs` at a time; those that were done before are not done again, and none is
    begun after `seconds`."""
    started = perf_counter()
    unknown = sorted(set(variants) - set(VARIANTS))
    if unknown:
        raise SystemExit(f"unknown variant {unknown[0]}; expected some of {', '.join(VARIANTS)}")
    run.mkdir(parents=True, exist_ok=True)
    for path in run.glob("*-*.json"):
        found = json.loads(path.read_text())
        if found["epochs"] != epochs:
            raise SystemExit(f"{path} was made with {found['epochs']} epochs, not {epochs}; choose another folder")
    todo = [(variant, seed) for seed in seeds for variant in variants if not (run / f"{variant}-{seed}.json").exists()]

    def train(item: tuple[str, int]) -> None:
        if perf_counter() - started > seconds:
            return
        variant, seed = item
        command = [sys.executable, __file__, "one", "--variant", variant, "--seed", str(seed), "--data", str(data)]
        command += ["--run", str(run), "--epochs", str(epochs), "--device", device]
        begun = perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "4"})
        path = run / f"{variant}-{seed}.json"
        figure = f"{json.loads(path.read_text())['validation_error']:.2f} %" if path.exists() else done.stderr[-1500:]
        print(f"{variant} {seed}: {figure} ({perf_counter() - begun:.0f} s)", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(train, todo))
    measurements = [json.loads(path.read_text()) for path in sorted(run.glob("*-*.json"))]
    with written_whole(run / "measurements.json") as temporary:
        temporary.write_text(json.dumps(measurements))
    print(f"{len(measurements)} trainings in {run / 'measurements.json'}")
    missing = [f"{variant}-{seed}" for variant, seed in todo if not (run / f"{variant}-{seed}.json").exists()]
    if missing:
        raise SystemExit(f"not done: {', '.join(missing)}; run this again to go on")


def collect(
    measurements: tyro.conf.Positional[tuple[Path, ...]], results: Path = Path("results"), figures: Path = Path("docs/figures")
) -> None:
    """Write results/ablation.json and results/filters.json and draw them."""
    found = [item for path in measurements for item in json.loads(path.read_text())]
    for name, wanted in (
        ("ablation", INGREDIENTS),
        ("filters", {"reference": INGREDIENTS["reference"]} | FILTERS | UNSUPERVISED),
    ):
        rows = {variant: [item for item in found if item["variant"] == variant] for variant in wanted}
        table = {variant: _row(wanted[variant][0], items) for variant, items in rows.items() if items}
        if set(table) <= {"reference"}:
            continue
        used = [item for items in rows.values() for item in items]
        if len({item["epochs"] for item in used}) > 1:
            raise SystemExit("trainings of different lengths do not compare; collect those of one length")
        machines = [machine for machine in (item["machine"] for item in used) if machine != used[0]["machine"]]
        if machines:
            raise SystemExit(f"measured on different machines, {used[0]['machine']} and {machines[0]}: times do not compare")
        write_result(
            results,
            name=name,
            dataset="cifar10",
            figures={"table": table},
            config=experiment_of("reference", used[0]["seed"], used[0]["epochs"]).to_dict(),
            seeds=sorted({item["seed"] for item in used}),
            seconds=sum(item["seconds"] for item in used),
            command="python experiments/ablation.py run --data DIR && python experiments/ablation.py collect "
            "runs/ablation/measurements.json",
            measured_by="; ".join(sorted({item["code_version"] for item in used})),
            measured_on=used[0]["machine"],
        )
        for variant, row in table.items():
            deviation = "       " if row["deviation"] is None else f" ± {row['deviation']:.2f}"
            print(f"{variant:24s} {row['validation_error']:6.2f}{deviation}   {row['what']}")
        _draw(name, table, figures / f"{name}.png")


UNCOMPARABLE = ("config", "machine", "seconds", "seconds_of")


def _row(what: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "what": what,
        "runs": [{k: v for k, v in item.items() if k not in UNCOMPARABLE} for item in items],
    }
    # no seconds: several trainings share the GPU, and one that was interrupted knows those after it alone
    for name in ("validation_error", "train_error", "sample_gradients"):
        values = [item[name] for item in items if item.get(name) is not None]
        row[name] = round(statistics.mean(values), 4) if len(values) == len(items) else None
    errors = [item["validation_error"] for item in items]
    row["deviation"] = round(statistics.stdev(errors), 3) if len(errors) > 1 else None
    return row


def _draw(name: str, table: dict[str, dict[str, Any]], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    if name == "ablation":
        order = sorted(table, key=lambda variant: table[variant]["validation_error"], reverse=True)
        for height, variant in enumerate(order):
            row = table[variant]
            color = "tab:orange" if variant == "reference" else "tab:blue"
            axes.barh(height, row["validation_error"], color=color, alpha=0.6)
            axes.plot([run["validation_error"] for run in row["runs"]], [height] * len(row["runs"]), "k.")
        axes.set_yticks(range(len(order)), [table[variant]["what"] for variant in order])
        least = min(row["validation_error"] for row in table.values())
        axes.set_xlim(left=max(0, least - 3))
        axes.set_xlabel("validation error (%), points are seeds")
    else:
        curves = {"with labels": ("reference", "filters-"), "without labels": ("unsupervised-",)}
        for label, prefixes in curves.items():
            points = sorted(
                (128 if variant == "reference" else int(variant.split("-")[1]), row["validation_error"])
                for variant, row in table.items()
                if variant.startswith(prefixes)
            )
            axes.plot(*zip(*points, strict=True), "o-", label=label)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("filters in each of the nine layers")
        axes.set_ylabel("validation error (%)")
        axes.legend()
    FigureCanvasAgg(figure)
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=110)


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": run, "one": one, "collect": collect}, description=__doc__)
