"""The paper's tables: its figures as it prints them, ours from results/, in three formats."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sckn.published import CLASSIFICATION, MEASURES, SETS, SUPERRES_PSNR, SUPERRES_SSIM, Measured, Row, Table, score_field
from sckn.superres.evaluation import EvaluationReport, ImageReport, Quality
from sckn.superres.experiment import UpscalingExperiment, is_upscaling_experiment
from sckn.superres.scores import set_figures
from sckn.tables import FORMATS, TABLES, render_table
from sckn.training.experiment import Experiment

ROOT = Path(__file__).parents[1]

SMALL = Table(
    key="small",
    title="Errors & more",
    columns=("A", "B_1"),
    groups=((Row("others", ("1.5", None)),), (Row("ours", (Measured("here"), Measured("absent"))),)),
    notes=("100 % ± nothing.",),
)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "here.json").write_text(json.dumps({"test_error": 12.345, "deviation": 0.126}))
    return tmp_path


def test_as_text(results: Path) -> None:
    assert render_table(SMALL, results).splitlines() == [
        "Errors & more",
        "",
        "                   A  B_1",
        "-------------------------",
        "others           1.5    -",
        "-------------------------",
        "ours    12.35 ± 0.13    -",
        "-------------------------",
        "100 % ± nothing.",
    ]


def test_as_markdown(results: Path) -> None:
    assert render_table(SMALL, results, "markdown").splitlines() == [
        "**Errors & more**",
        "",
        "|  | A | B_1 |",
        "| --- | ---: | ---: |",
        "| others | 1.5 | - |",
        "| ours | 12.35 ± 0.13 | - |",
        "",
        "100 % ± nothing.",
    ]


def test_as_latex(results: Path) -> None:
    text = render_table(SMALL, results, "latex")
    assert r"\caption{Errors \& more. 100 \% $\pm$ nothing.}" in text
    assert r"\begin{tabular}{lrr}" in text
    assert r" & A & B\_1 \\" in text
    assert r"others & 1.5 & -- \\" in text
    assert r"ours & 12.35 $\pm$ 0.13 & -- \\" in text
    begun, ended = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
    assert begun == ended[::-1] == ["table", "tabular"]


def test_a_single_seed_has_no_deviation(results: Path) -> None:
    (results / "here.json").write_text(json.dumps({"test_error": 12.345, "deviation": None}))
    assert "| ours | 12.35 | - |" in render_table(SMALL, results, "markdown")
    (results / "here.json").write_text(json.dumps({"test_error": 12}))
    assert "| ours | 12.0 | - |" in render_table(replace(SMALL, decimals=1), results, "markdown")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "cannot be read"),
        ("[]", "is not a result of sckn train: it is no table"),
        ("{}", "has no number 'test_error'"),
        ('{"test_error": "12"}', "has no number 'test_error'"),
        ('{"test_error": NaN}', "has no number 'test_error'"),
        ('{"test_error": true}', "has no number 'test_error'"),
        ("[" * 100_000, "cannot be read"),
    ],
    ids=lambda text: text[:20],
)
def test_a_damaged_result_is_named(content: str, reason: str, results: Path) -> None:
    (results / "here.json").write_text(content)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(results))}/here\.json ") as caught:
        render_table(SMALL, results)
    assert reason in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere is no folder; give the folder with the results"):
        render_table(SMALL, tmp_path / "nowhere")


def test_the_figures_of_table_1() -> None:
    """As the paper prints them, its columns here the rows."""
    rows = [row.figures for row in CLASSIFICATION.groups[0]]
    assert [row[0] for row in rows] == ["15.13", "11.68", "10.41", "9.69", "7.62"]
    assert [row[1] for row in rows] == ["2.80", "2.47", "2.35", "1.92", "1.69"]
    assert [row.figures for row in CLASSIFICATION.groups[1]] == [("10.20", "2.04"), ("11.95", "2.15"), ("14.2", None)]


def test_the_figures_of_the_tables_on_super_resolution() -> None:
    """As the paper prints them, its columns here the rows; those of bicubic interpolation were measured, too."""
    psnr, ssim = ([row.figures[:6] for row in table.groups[0]] for table in (SUPERRES_PSNR, SUPERRES_SSIM))
    assert [row[0] for row in psnr] == ["33.66", "35.78", "35.83", "36.54", "36.34", "36.66", "36.93", "37.07"]
    assert [row[4] for row in psnr] == ["27.54", "28.67", "28.65", "29.13", "29.00", "29.29", "29.41", "29.50"]
    assert [row[2] for row in ssim] == ["0.8684", "0.8990", "0.9007", "0.9075", "0.9043", "0.9068", "0.9104", "0.9146"]
    assert [row[5] for row in ssim] == ["0.7768", "0.8066", "0.8084", "0.8175", "0.8109", "0.8174", "0.8222", "0.8283"]
    measured = json.loads((ROOT / "results" / "superres-bicubic.json").read_text())["sets"]
    assert [f"{each['psnr']:.2f}" for each in measured] == list(psnr[0])
    assert [f"{each['ssim']:.4f}" for each in measured] == list(ssim[0])


def test_the_scores_of_an_upscaler_are_found_by_the_tables(tmp_path: Path) -> None:
    """The one that writes them and the ones that read them mean the same fields."""
    ours, plain = Quality(37.123456, 0.956789), Quality(33.5, 0.93)
    reports = {name: EvaluationReport(name, 2, (ImageReport("a.png", ours, plain),)) for name in SETS}
    figures = set_figures(reports)
    fields = [score_field(f"{prefix}{measure}", name) for prefix in ("", "bicubic_") for measure in MEASURES for name in SETS]
    assert [f"{measure}.{name}" for measure, table in figures.items() for name in table] == fields
    (tmp_path / "superres-x4.json").write_text(json.dumps(figures))
    (tmp_path / "superres-x2-paper.json").write_text(json.dumps({"validation": {"psnr": 1}, "x3": figures}))
    text = render_table(SUPERRES_PSNR, tmp_path, "markdown")
    assert "| Bicubic | 33.66 | 30.23 | 30.84 | 30.39 | 27.54 | 28.43 | 33.50 | 33.50 | 33.50 |" in text
    assert "x2 twice | - | - | - | 37.12 | 37.12 | 37.12 | - | - | - |" in text
    assert "| sckn, a model for each factor | - | - | - | - | - | - | 37.12 | 37.12 | 37.12 |" in text
    assert "0.9568" in render_table(SUPERRES_SSIM, tmp_path)


@pytest.mark.parametrize("content", [{"psnr": {}}, {"psnr": 3}, {"psnr": {"Set5": None}}, {"psnr": {"Set5": {"mean": 3}}}])
def test_scores_that_are_not_there_or_no_numbers_are_named(content: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "superres-x2.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"superres-x2\.json has no number 'psnr\.Set5'"):
        render_table(SUPERRES_PSNR, tmp_path)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.key)
def test_the_tables_with_the_committed_results(table: Table, form: str) -> None:
    text = render_table(table, ROOT / "results", form)  # pyright: ignore[reportArgumentType]
    for path in (ROOT / "results").glob("*.json"):
        measured = [figure for rows in table.groups for row in rows for figure in row.figures if figure == Measured(path.stem)]
        if measured:
            assert f"{json.loads(path.read_text())['test_error']:.2f}" in text


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.key)
def test_tables_are_whole_and_every_result_in_them_has_its_experiment(table: Table) -> None:
    rows = [row for group in table.groups for row in group]
    assert {len(row.figures) for row in rows} == {len(table.columns)}
    for figure in (figure for row in rows for figure in row.figures if isinstance(figure, Measured)):
        path = ROOT / "experiments" / f"{figure.result}.toml"
        kind = UpscalingExperiment if is_upscaling_experiment(path) else Experiment
        assert kind.from_toml(path).name == figure.result


CLASSIFYING = [path for pattern in ("cifar10-*.toml", "svhn-*.toml") for path in sorted((ROOT / "experiments").glob(pattern))]


@pytest.mark.parametrize("path", CLASSIFYING, ids=lambda path: path.stem)
def test_every_experiment_is_read_and_has_the_name_of_its_file(path: Path) -> None:
    experiment = Experiment.from_toml(path)
    assert experiment.name == path.stem
    pooled_whole = path.stem in ("cifar10-512", "cifar10-augmented", "cifar10-best")  # elsewhere as in the paper
    last_map = (1, 1) if pooled_whole else (3, 3)
    assert experiment.network.output_size(32, 32) == last_map


@pytest.mark.parametrize(("name", "filters"), [("cifar10-512", 512), ("svhn-128", 128), ("svhn-512", 512)])
def test_the_experiments_of_the_table_have_its_networks(name: str, filters: int) -> None:
    experiment = Experiment.from_toml(ROOT / "experiments" / f"{name}.toml")
    assert [layer.filters for layer in experiment.network.layers] == [filters] * 9
    assert all(getattr(layer.kernel, "learnable", False) for layer in experiment.network.layers)
    assert experiment.recipe is not None
    assert (experiment.recipe.flip, experiment.recipe.shift) == (False, 0)  # the table is one without augmentation
    assert not experiment.extra  # 73,257 training images of SVHN


def test_the_deep_experiments_are_one_network_with_augmentation_and_without() -> None:
    augmented, best = (Experiment.from_toml(ROOT / "experiments" / f"cifar10-{name}.toml") for name in ("augmented", "best"))
    layers = [[replace(layer, dropout=0.0) for layer in experiment.network.layers] for experiment in (augmented, best)]
    assert layers[0] == layers[1]
    assert augmented.recipe is not None
    assert (augmented.recipe.flip, augmented.recipe.shift) == (True, 4)
    assert best.recipe == replace(augmented.recipe, flip=False, shift=0)


def test_rows_without_a_figure_may_be_left_out(tmp_path: Path) -> None:
    whole = render_table(SUPERRES_PSNR, tmp_path, "markdown")
    assert "sckn" in whole
    lines = render_table(SUPERRES_PSNR, tmp_path, "markdown", empty_rows=False).splitlines()
    assert [line for line in lines if "sckn" in line] == []
    assert [line for line in whole.splitlines() if "sckn" not in line] == lines
