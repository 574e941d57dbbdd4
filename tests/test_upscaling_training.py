"""Experiments on super-resolution, from a TOML file to a model that beats bicubic interpolation, on crops of one photograph."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.data import camera

from sckn import CKN, KernelModel, LayerConfig, NetworkConfig, Upscaler, load, save
from sckn.kernels import CentredExponential, Exponential
from sckn.superres.bsds500 import read_bsds500
from sckn.superres.evaluation import evaluate_upscaling
from sckn.superres.experiment import UpscalingExperiment, is_upscaling_experiment
from sckn.superres.imresize import imresize
from sckn.superres.patch_source import PatchSource, every_shift
from sckn.superres.training import as_taught, held_out, run_upscaling
from sckn.superres.upscaler import UpscalerConfig

EXPERIMENTS = sorted(Path(__file__).parents[1].glob("experiments/superres-*.toml"))
CPU = torch.device("cpu")

TOML = """
name = "tiny"
dataset = "bsds500"
scale = 2
patch = 16
samples = 1000
validation_photos = 2
validation_samples = 50
kmeans_samples = 200
patches = 2000
iterations = 5

[network]
in_channels = 1
layers = [
    { filters = 12, patch = 3, padding = false, kernel = { name = "Exponential", alpha = 4.0, learnable = true } },
    { filters = 12, patch = 3, padding = false, kernel = { name = "Exponential", alpha = 4.0, learnable = true } },
]

[recipe]
epochs = 2
batch_size = 50
learning_rate = 0.1
loss = "square"
schedule = "cosine"
active_set = false
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight crops, in folders as BSDS500 has them, and a ninth for a test set."""
    folder = tmp_path_factory.mktemp("photos")
    names = [f"{part}/{number}.png" for part in ("train", "val", "test") for number in range(3)]
    for index, name in enumerate(names):
        path = folder / ("Set1/0.png" if index == 8 else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        top, left = 96 * (index // 3) + 100, 96 * (index % 3) + 20
        Image.fromarray(camera()[top : top + 96, left : left + 96]).save(path)
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> UpscalingExperiment:
    path = tmp_path / "tiny.toml"
    path.write_text(TOML)
    return UpscalingExperiment.from_toml(path)


@pytest.mark.parametrize(("scale", "low_resolution"), [(2, False), (2, True), (3, True)])
def test_a_tiny_network_beats_bicubic(
    tiny: UpscalingExperiment, photos: Path, tmp_path: Path, scale: int, low_resolution: bool
) -> None:
    experiment = replace(tiny, scale=scale, low_resolution=low_resolution)
    said: list[str] = []
    report = run_upscaling(experiment, photos, CPU, tmp_path / "run", say=said.append)
    assert report.photos == 6
    assert len(said) == 2
    assert report.validation is not None
    assert report.bicubic is not None
    assert report.validation.psnr > report.bicubic.psnr
    figures = json.loads(json.dumps(report.figures(), allow_nan=False))
    assert figures["validation"]["psnr"] == report.validation.psnr
    errors = [record["validation_error"] for record in report.history]
    assert len(errors) == 3
    assert errors[-1] < errors[0]
    assert report.history[-1]["alphas"] != [4.0, 4.0]
    saved = load(tmp_path / "run" / "model.safetensors")
    assert isinstance(saved, Upscaler)
    assert saved.config == report.upscaler.config
    on_others = evaluate_upscaling(photos / "Set1", scale, saved.upscale_luminance)
    assert on_others.quality.psnr > on_others.bicubic.psnr
    larger = saved.upscale(camera()[:40, :50])
    assert larger.shape == (40 * scale, 50 * scale)


@pytest.mark.parametrize("shifted", [False, True])
def test_patches_may_be_drawn_by_their_contrast(tiny: UpscalingExperiment, photos: Path, tmp_path: Path, shifted: bool) -> None:
    """W is then that of the weighted ridge problem, here found by hand from the same filters; validation is as it was."""
    still = replace(tiny, recipe=replace(tiny.recipe, epochs=0), samples=200, contrast_power=0.5, every_shift=shifted)
    report = run_upscaling(still, photos, CPU, tmp_path / "run")
    kept, others = held_out(read_bsds500(photos), 2)
    assert report.photos == len(kept)
    source = PatchSource(every_shift(kept, 2) if shifted else kept, tiny.upscaler, patch=16, margin=2, contrast_power=0.5)
    seen, lost = (part.double() for part in source.draw(200, tiny.seed))
    network = report.upscaler.model.network.double()
    with torch.no_grad():
        rows = network(seen).permute(0, 2, 3, 1).flatten(0, 2)
    solution = torch.linalg.lstsq(rows, lost.flatten()[:, None]).solution.flatten()
    found = report.upscaler.model.weights.detach().flatten().double() / source.units.target
    errors = [float((rows @ weights - lost.flatten()).square().mean()) for weights in (found, solution)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)
    plain = PatchSource(others, tiny.upscaler, patch=16, margin=2, units=source.units)
    seen, lost = (part.double() for part in plain.draw(50, 0))
    with torch.no_grad():
        said = network(seen).permute(0, 2, 3, 1).flatten(0, 2) @ found
    error = float((said - lost.flatten()).square().mean()) ** 0.5
    assert report.history[-1]["validation_error"] == pytest.approx(error, rel=1e-4)


def test_a_finished_run_is_resumed_to_the_same_model(tiny: UpscalingExperiment, photos: Path, tmp_path: Path) -> None:
    shorter = replace(tiny, samples=60, recipe=replace(tiny.recipe, epochs=1), validation_photos=0)
    first = run_upscaling(shorter, photos, CPU, tmp_path / "run")
    assert (first.validation, first.bicubic, first.photos) == (None, None, 8)
    with pytest.raises(ValueError, match="already holds a run"):  # before anything is read, or taught
        run_upscaling(shorter, tmp_path / "no photographs", CPU, tmp_path / "run")
    with pytest.raises(ValueError, match="holds a run with samples = 60, but samples = 70 was given"):
        run_upscaling(replace(shorter, samples=70), tmp_path / "no photographs", CPU, tmp_path / "run", resume=True)
    again = run_upscaling(shorter, photos, CPU, tmp_path / "run", resume=True)
    assert torch.equal(first.upscaler.model.weights, again.upscaler.model.weights)
    assert [record["epoch"] for record in again.history] == [0, 1]


def test_training_may_begin_with_the_filters_of_another_upscaler(
    tiny: UpscalingExperiment, photos: Path, tmp_path: Path
) -> None:
    """For another factor, too; without an epoch they stay what they are, and alone W is found."""
    first = run_upscaling(replace(tiny, samples=100), photos, CPU, tmp_path / "first").upscaler
    file = str(tmp_path / "first" / "model.safetensors")
    still = replace(tiny, scale=3, samples=100, start=file, recipe=replace(tiny.recipe, epochs=0))
    said: list[str] = []
    begun = run_upscaling(still, photos, CPU, tmp_path / "second", say=said.append).upscaler
    assert begun.scale == 3
    assert said[0] == f"tiny: filters of {file}, 6 photographs"
    for name, tensor in first.model.network.state_dict().items():
        assert torch.equal(begun.model.network.state_dict()[name], tensor), name
    Path(file).unlink()  # what is resumed needs it no more
    again = run_upscaling(still, photos, CPU, tmp_path / "second", resume=True).upscaler
    assert torch.equal(again.model.weights, begun.model.weights)
    by_itself = run_upscaling(replace(still, start=""), photos, CPU, tmp_path / "third").upscaler
    own, theirs = (each.model.network.kernel_layers[0].filters for each in (by_itself, first))
    assert not torch.equal(own, theirs)


def test_it_may_have_more_filters(tiny: UpscalingExperiment, photos: Path, tmp_path: Path) -> None:
    """Before any training the wider network, with a linear model of its own, is as good as the narrow one or better."""
    narrow = run_upscaling(tiny, photos, CPU, tmp_path / "narrow")
    layers = tuple(replace(layer, filters=20) for layer in tiny.network.layers)
    wider = replace(tiny, network=NetworkConfig(1, layers), recipe=replace(tiny.recipe, epochs=0))
    begun, by_itself = (
        run_upscaling(replace(wider, start=start), photos, CPU, tmp_path / f"run {len(start)}").history[-1]["validation_error"]
        for start in (str(tmp_path / "narrow" / "model.safetensors"), "")
    )
    assert begun < by_itself
    assert begun < narrow.history[-1]["validation_error"] * 1.01


def test_it_may_begin_with_an_experiment_which_is_trained_first(
    tiny: UpscalingExperiment, photos: Path, tmp_path: Path
) -> None:
    """As with the model of a training on its own; an interrupted one goes on where it was, and settings tell of both."""
    (tmp_path / "tiny.toml").write_text(TOML.replace("samples = 1000", "samples = 60"))
    wide = TOML.replace("filters = 12", "filters = 14").replace("samples = 1000", "samples = 60").replace('"tiny"', '"wide"')
    (tmp_path / "wide.toml").write_text(wide.replace("scale = 2", 'scale = 2\nstart = "tiny.toml"'))
    experiment = UpscalingExperiment.from_toml(tmp_path / "wide.toml")
    narrow = UpscalingExperiment.from_toml(tmp_path / "tiny.toml")
    assert experiment.start == narrow
    assert json.loads(json.dumps(experiment.to_dict()))["start"]["recipe"]["epochs"] == 2

    alone = run_upscaling(narrow, photos, CPU, tmp_path / "narrow")
    model = str(tmp_path / "narrow" / "model.safetensors")
    apart = run_upscaling(replace(experiment, start=model), photos, CPU, tmp_path / "apart")
    said: list[str] = []
    together = run_upscaling(experiment, photos, CPU, tmp_path / "run", say=said.append)
    assert torch.equal(together.upscaler.model.weights, apart.upscaler.model.weights)
    assert [record["epoch"] for record in together.earlier] == [0, 1, 2]
    assert apart.earlier == []
    assert [sentence.split(":")[0] for sentence in said] == ["tiny", "tiny", "wide", "wide"]
    assert said[2] == "wide: filters of tiny, 6 photographs"

    shutil.copytree(tmp_path / "narrow", tmp_path / "interrupted" / "start")
    with pytest.raises(ValueError, match="interrupted/start already holds a run"):
        run_upscaling(experiment, photos, CPU, tmp_path / "interrupted")
    resumed = run_upscaling(experiment, photos, CPU, tmp_path / "interrupted", resume=True)
    assert torch.equal(resumed.upscaler.model.weights, apart.upscaler.model.weights)
    assert [record["epoch"] for record in resumed.earlier] == [record["epoch"] for record in alone.history]


def test_an_experiment_that_cannot_be_begun_with_is_refused_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TOML)
    fewer = TOML.replace("filters = 12", "filters = 11").replace("scale = 2", 'scale = 2\nstart = "tiny.toml"')
    (tmp_path / "fewer.toml").write_text(fewer)
    with pytest.raises(ValueError, match=r"fewer\.toml: start: the network of tiny has 12 filters in layer 1, more than 11"):
        UpscalingExperiment.from_toml(tmp_path / "fewer.toml")
    (tmp_path / "tiny.toml").write_text(fewer.replace("tiny.toml", "fewer.toml"))
    with pytest.raises(ValueError, match=r"fewer\.toml begins with itself"):
        UpscalingExperiment.from_toml(tmp_path / "fewer.toml")
    (tmp_path / "tiny.toml").unlink()
    with pytest.raises(ValueError, match=r"tiny\.toml cannot be read"):
        UpscalingExperiment.from_toml(tmp_path / "fewer.toml")


def test_it_may_find_its_roots_in_another_way(tiny: UpscalingExperiment, photos: Path, tmp_path: Path) -> None:
    first = save(tiny_upscaler_of(tiny), tmp_path / "first.safetensors")
    layers = tuple(replace(layer, inverse_root="moving_frame") for layer in tiny.network.layers)
    turning = replace(tiny, samples=100, start=str(first), network=NetworkConfig(1, layers))
    still = replace(turning, recipe=replace(tiny.recipe, epochs=0))
    begun = run_upscaling(still, photos, CPU, tmp_path / "second").upscaler
    for layer in begun.model.network.kernel_layers:  # the frame belongs to the filters
        assert layer.frame is not None
        assert torch.allclose(layer.frame.T @ layer.gram() @ layer.frame, torch.eye(12), atol=1e-4)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"filters": 11}, "12 filters in layer 2, more than 11"),
        ({"kernel": Exponential(4.0)}, "as layer 2 .*learnable=True.*, not .*learnable=False"),
        ({"kernel": Exponential(5.0, learnable=True)}, "alpha=4.0.*, not .*alpha=5.0"),
        ({"kernel": CentredExponential(4.0, learnable=True)}, "not .*kernel=CentredExponential"),
        (None, "2 layers, not 1"),
    ],
    ids=str,
)
def test_it_begins_with_the_same_layers_only(
    tiny: UpscalingExperiment, photos: Path, tmp_path: Path, setting: dict[str, Any] | None, sentence: str
) -> None:
    file = save(tiny_upscaler_of(tiny), tmp_path / "other.safetensors")
    layers = tiny.network.layers
    network = NetworkConfig(1, layers[:1] if setting is None else (layers[0], replace(layers[1], **setting)))
    with pytest.raises(ValueError, match=f"start: the network of .*other.safetensors has .*{sentence}"):
        run_upscaling(replace(tiny, network=network, start=str(file)), photos, CPU, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_start_that_is_no_upscaler_is_refused(tiny: UpscalingExperiment, photos: Path, tmp_path: Path) -> None:
    for start, sentence in (
        ("cifar10", "start: .*an upscaler is needed"),
        (str(tmp_path / "none.safetensors"), "start: .*none.safetensors"),
    ):
        with pytest.raises(ValueError, match=sentence):
            run_upscaling(replace(tiny, start=start), photos, CPU, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="start must be the name or file of an upscaler, an experiment, or empty, got 3"):
        replace(tiny, start=3)


def tiny_upscaler_of(experiment: UpscalingExperiment) -> Upscaler:
    network = CKN(experiment.network)
    return Upscaler(KernelModel(network, torch.zeros(12, 1), per_pixel=True), experiment.upscaler)


def test_photos_held_out_are_spread_and_not_learned_from() -> None:
    photos = {str(index): torch.zeros(1, 1) for index in range(10)}
    kept, others = held_out(photos, 3)
    assert list(others) == ["0", "3", "6"]
    assert set(kept) == set(photos) - set(others)
    assert held_out(photos, 0) == (photos, {})
    with pytest.raises(ValueError, match="leaves none of 10 photographs"):
        held_out(photos, 10)


def test_a_photo_that_is_too_small_is_named_before_anything_is_written(
    tiny: UpscalingExperiment, photos: Path, tmp_path: Path
) -> None:
    for name in ("train", "val", "test"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.fromarray(np.zeros((90, 15 if name == "val" else 90), np.uint8)).save(tmp_path / "data" / name / "a.png")
    with pytest.raises(ValueError, match=r"val/a\.png has 15 x 90 pixels"):
        run_upscaling(replace(tiny, validation_photos=0), tmp_path / "data", CPU, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_the_experiments_are_what_their_names_say(path: Path) -> None:
    experiment = UpscalingExperiment.from_toml(path)
    assert experiment.name == path.stem
    assert f"-x{experiment.scale}" in path.stem
    assert experiment.low_resolution != path.stem.endswith("-paper")
    assert is_upscaling_experiment(path)
    assert json.loads(json.dumps(experiment.to_dict()))["network"]["in_channels"] == 1


def test_there_are_experiments_and_others_are_not_taken_for_them() -> None:
    assert {path.stem for path in EXPERIMENTS} >= {"superres-x2", "superres-x3", "superres-x4", "superres-x2-fast"}
    assert not is_upscaling_experiment(EXPERIMENTS[0].parent / "cifar10-128.toml")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("scale = 2", "scale = 1", "scale must be a whole number of at least 2"),
        ("scale = 2\n", "", "lacks scale"),
        ("scale = 2", "scale = 2\nfactor = 2", "unknown settings: factor"),
        ("patch = 16", "patch = 4", "patch must be larger than 4 pixels"),
        ('dataset = "bsds500"', 'dataset = "Set5"', "dataset must be 'bsds500'"),
        ('name = "tiny"', 'name = "a/b"', "name must consist of letters"),
        ('loss = "square"', "", 'set loss = "square" in the recipe, not "squared_hinge"'),
        ("epochs = 2", "epochs = 2\nflip = true", "remove flip and shift"),
        ("in_channels = 1", "in_channels = 3", "in_channels must be 1, got 3"),
        ("filters = 12, patch = 3, padding = false", "filters = 12, patch = 3", "layer 1 of an upscaler's network"),
        ("samples = 1000", "samples = 0", "samples must be a whole number of at least 1"),
        ("samples = 1000", "samples = 1000\nlow_resolution = 1", "low_resolution must be true or false"),
        ("samples = 1000", "samples = 1000\nregularization = 0", "regularization must be a number above 0"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in TOML
    path = tmp_path / "wrong.toml"
    path.write_text(TOML.replace(old, new, 1))
    with pytest.raises(ValueError, match=sentence):
        UpscalingExperiment.from_toml(path)


def test_it_may_learn_from_another_upscaler(tiny: UpscalingExperiment, photos: Path, tmp_path: Path) -> None:
    """One that says much, and the contrary of what it should: a student with its filters finds that."""
    teacher = run_upscaling(replace(tiny, samples=100), photos, CPU, tmp_path / "teacher").upscaler
    with torch.no_grad():
        teacher.model.weights.mul_(-20)
        teacher.model.bias.mul_(-20)
    file = str(save(teacher, tmp_path / "contrary.safetensors"))
    still = replace(tiny, samples=300, start=file, recipe=replace(tiny.recipe, epochs=0))
    said: list[str] = []
    taught = run_upscaling(replace(still, teacher=file), photos, CPU, tmp_path / "taught", say=said.append)
    by_itself = run_upscaling(still, photos, CPU, tmp_path / "by itself")
    assert said[0] == f"tiny: learning from what {file} makes of 6 photographs"
    small = torch.as_tensor(camera()[300:340, 200:240]).double()
    by_all = [upscaler.upscale_luminance(small) for upscaler in (teacher, taught.upscaler, by_itself.upscaler)]
    with torch.no_grad():
        teacher.model.weights.zero_()
        teacher.model.bias.zero_()
    nothing_learned = teacher.upscale_luminance(small)
    expected, learned, other = ((result - nothing_learned).flatten() for result in by_all)
    assert torch.cosine_similarity(learned, expected, dim=0) > 0.5
    assert torch.cosine_similarity(other, expected, dim=0) < -0.5
    # validation is of photographs all the same
    assert taught.bicubic == by_itself.bicubic


def test_what_a_teacher_makes_of_a_photograph_has_its_small_image() -> None:
    torch.manual_seed(0)
    model = KernelModel(CKN(NetworkConfig(1, (LayerConfig(8, 3, padding=False),))), torch.randn(8, 1), per_pixel=True)
    photo = torch.randint(0, 256, (41, 50), dtype=torch.uint8)
    result = as_taught({"noise": photo}, Upscaler(model, UpscalerConfig(2)))["noise"]
    assert result.shape == (40, 50)
    true, small = (imresize(image.double(), 0.5) for image in (photo[:40], result))
    assert (result - photo[:40]).abs().mean() > 10
    assert torch.allclose(true[8:-8, 8:-8], small[8:-8, 8:-8], atol=0.05)


def test_a_teacher_must_be_an_upscaler_of_the_same_scale(tiny: UpscalingExperiment, photos: Path, tmp_path: Path) -> None:
    save(tiny_upscaler_of(tiny), tmp_path / "other.safetensors")
    for teacher, sentence in (
        ("cifar10", "teacher: .*an upscaler is needed"),
        (str(tmp_path / "other.safetensors"), "teacher: .* 2 times larger, this experiment 3 times"),
    ):
        with pytest.raises(ValueError, match=sentence):
            run_upscaling(replace(tiny, scale=3, teacher=teacher), photos, CPU, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="teacher must be the name or file of an upscaler, or empty, got 3"):
        replace(tiny, teacher=3)
