"""The benchmarks: each one runs as a process, their rows are merged, and what they count is right."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from sckn.kernels import Linear
from sckn.layer import KernelLayer, LayerConfig
from sckn.network import CKN, NetworkConfig
from sckn.patches import channels_last
from sckn.superres.experiment import UpscalingExperiment

ROOT = Path(__file__).parents[1]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a script of benchmarks/."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


FOREIGN = {
    "part": "encoding",
    "settings": {"filters": 8, "batch": 4, "precision": "fp32", "device": "cpu", "threads": 1},
    "figures": {"ms": 1.0},
    "machine": {"accelerator": "another", "processor": "x", "cores": 3},
}


@pytest.mark.parametrize(
    ("script", "options", "parts"),
    [
        ("speed", [], {"step", "encoding", "epoch", "roots"}),
        ("costs", ["--precisions", "highest", "medium"], {"floors", "rates"}),
        ("where_time_goes", [], {"profile"}),
        ("kmeans", [], {"kmeans"}),
        ("linear", ["--exponents", "0"], {"linear"}),
        ("whitening", [], {"whitening"}),
        pytest.param("growth", ["--only", "filters", "--what", "encoding"], {"growth"}, marks=pytest.mark.slow),
        pytest.param("upscaling", ["--only", "superres-x2-fast"], {"upscaling"}, marks=pytest.mark.slow),
    ],
)
def test_each_runs_and_adds_its_rows(script: str, options: list[str], parts: set[str], tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    path.write_text(json.dumps({"rows": [FOREIGN]}))
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / f"{script}.py"),
        "--tiny",
        "--device",
        "cpu",
        "--results",
        str(tmp_path),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stderr
    result = json.loads(path.read_text())
    assert FOREIGN in result["rows"]
    rows = [row for row in result["rows"] if row != FOREIGN]
    assert {row["part"] for row in rows} == parts
    for row in rows:
        assert row["settings"]["device"] == "cpu"
        assert row["settings"]["threads"] == 1
        assert row["machine"]["cores"] == os.cpu_count()
        assert "sources sha256:" in row["code_version"]
        assert row["command"].startswith(f"python benchmarks/{script}.py --tiny")
        numbers = [value for name, value in row["figures"].items() if name.endswith(("ms", "ratio", "gib"))]
        assert all(value > 0 for value in numbers)
    header, *lines = run.stdout.split("\n\n")[-1].splitlines()[1:]
    assert len(header.split()) == len(lines[-1].split())


def test_rows_of_other_parts_settings_and_machines_stay(benchmarks: Any) -> None:
    merged = benchmarks("measuring").merged
    new = {**FOREIGN, "figures": {"ms": 2.0}}
    assert merged([FOREIGN], [new]) == [new]
    others = [
        {**FOREIGN, "part": "whitening"},
        {**FOREIGN, "settings": {**FOREIGN["settings"], "filters": 16}},
        {**FOREIGN, "machine": {**FOREIGN["machine"], "cores": 4}},
        {**FOREIGN, "machine": {**FOREIGN["machine"], "accelerator": None}},
    ]
    for other in others:
        assert sorted(map(repr, merged([FOREIGN], [other]))) == sorted(map(repr, [FOREIGN, other]))
    updated = {**FOREIGN, "machine": {**FOREIGN["machine"], "python": "4.0"}}
    assert merged([FOREIGN, *others], [updated]).count(updated) == 1
    assert len(merged([FOREIGN, *others], [updated])) == 5


def test_rows_without_a_precision_are_those_of_fp32(benchmarks: Any) -> None:
    merged = benchmarks("measuring").merged
    settings = {name: value for name, value in FOREIGN["settings"].items() if name != "precision"}
    old = {**FOREIGN, "settings": settings}
    assert merged([old], [FOREIGN]) == [FOREIGN]
    rounded = {**FOREIGN, "settings": {**settings, "precision": "bf16"}}
    assert len(merged([old], [rounded])) == 2


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("sm90_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32", "convolutions"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc>", "convolutions"),
        ("void wgrad2d_grouped_direct_kernel<float>", "convolutions"),
        ("void cutlass_cudnn::Kernel<ImplicitGemmConvolution>", "convolutions"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", "products"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>", "products"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "products"),
        ("void syevj_parallel_order_set_kernel<float>", "p_x_p"),
        ("void cusolver_rotate_columns<float>", "p_x_p"),
        ("_product", "p_x_p"),
        ("_combine", "p_x_p"),
        ("_join", "p_x_p"),
        ("_pool", "pooling"),
        ("void at::native::(anonymous namespace)::adaptive_average_pool_nhwc<int, float>", "pooling"),
        ("_forward", "norms_exponentials"),
        ("_backward", "norms_exponentials"),
        ("_unit_backward", "norms_exponentials"),
        ("_times", "norms_exponentials"),
        ("void at::native::(anonymous namespace)::avg_pool2d_out_cuda_frame_nhwc<float>", "norms_exponentials"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel_cuda>", "elementwise"),
        ("void at::native::reduce_kernel<512, 1, at::native::sum_functor>", "elementwise"),
        ("Memcpy DtoD (Device -> Device)", "elementwise"),
    ],
)
def test_kernels_are_grouped_by_their_names(kernel: str, group: str, benchmarks: Any) -> None:
    assert benchmarks("where_time_goes").group_of_kernel(kernel) == group


@pytest.mark.parametrize(
    ("operator", "group"),
    [
        ("aten::mkldnn_convolution", "convolutions"),
        ("aten::convolution_backward", "convolutions"),
        ("aten::bmm", "products"),
        ("aten::baddbmm_", "products"),
        ("aten::_linalg_eigh", "p_x_p"),
        ("aten::linalg_vector_norm", "norms_exponentials"),
        ("aten::exp_", "norms_exponentials"),
        ("aten::_adaptive_avg_pool2d_backward", "pooling"),
        ("aten::mul", "elementwise"),
        ("aten::expand", "elementwise"),
    ],
)
def test_operators_are_grouped_by_their_names(operator: str, group: str, benchmarks: Any) -> None:
    assert benchmarks("where_time_goes").group_of_operator(operator) == group


def test_kernels_are_read_from_a_trace(benchmarks: Any, tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": "_product", "dur": 3.5},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)", "dur": 1.0},
        {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "dur": 0.5},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 7.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 9.0},
        {"ph": "X", "cat": "overhead", "name": "Activity Buffer Request", "dur": 100.0},
        {"ph": "M", "name": "process_name"},
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    found = list(benchmarks("where_time_goes").kernels_in(trace))
    assert found == [("p_x_p", 0.0035, 1), ("elementwise", 0.001, 1), ("elementwise", 0.0005, 1)]


def test_a_straightforward_program_has_no_kernels_of_our_own_and_no_graphs(benchmarks: Any) -> None:
    from sckn.fused import exponential, pooling, products, rows, split_products, squares
    from sckn.training.batch_step import BatchStep

    modules = (exponential, pooling, products, rows, split_products, squares)
    before = [module.applies for module in modules]
    recordable = BatchStep._recordable
    with benchmarks("where_time_goes").straightforward():
        assert not any(module.applies() for module in modules)  # pyright: ignore[reportCallIssue]
        assert not BatchStep._recordable(None)  # pyright: ignore[reportArgumentType]
    assert [module.applies for module in modules] == before
    assert BatchStep._recordable is recordable


def test_work_takes_turns(benchmarks: Any) -> None:
    order = []
    works = {name: lambda name=name: order.append(name) for name in "ab"}
    times = benchmarks("measuring").in_turns(works, torch.device("cpu"), repeats=2, first=1)
    assert "".join(order) == "ababab"
    assert set(times) == {"a", "b"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read as Linux tells it")
def test_the_peak_is_that_of_the_process_alone(benchmarks: Any, tmp_path: Path) -> None:
    script = tmp_path / "large.py"
    held = bytearray(300 << 20)  # of this process, which does not count
    held[::4096] = b"1" * len(held[::4096])
    peaks = []
    for mebibytes in (0, 100):
        script.write_text(f"import sys\nblock = b'1' * ({mebibytes} << 20)\nprint(sys.argv[1])")
        peak, printed = benchmarks("peak").peak_of_process(str(script), "word")
        assert printed == "word\n"
        peaks.append(peak)
    assert 99 < peaks[1] - peaks[0] < 110
    script.write_text("raise SystemExit('no')")
    with pytest.raises(RuntimeError, match="failed"):
        benchmarks("peak").peak_of_process(str(script))


def test_multiply_adds_counted_by_hand(benchmarks: Any) -> None:
    count = benchmarks("costs").multiply_adds_per_output_pixel
    load = UpscalingExperiment.from_toml
    # nine numbers of a patch for 128 filters, the product with A; eight layers on 128 channels; one output
    paper = 9 * 128 + 128**2 + 8 * (9 * 128 * 128 + 128**2) + 128
    assert count(load(ROOT / "experiments" / "superres-x2-paper.toml")) == paper == 1_328_384
    # on the small image: four pixels come out of one
    assert count(load(ROOT / "experiments" / "superres-x2.toml")) == (paper + 3 * 128) / 4 == 332_192
    fast = (9 * 64 + 64**2 + 5 * (9 * 64 * 64 + 64**2) + 4 * 64) / 4
    assert count(load(ROOT / "experiments" / "superres-x2-fast.toml")) == fast == 52_432
    for scale in (2, 3, 4):
        assert count(load(ROOT / "experiments" / f"superres-x{scale}-fast.toml")) <= 60_000


def test_the_cost_of_a_layer_counted_by_hand(benchmarks: Any) -> None:
    """Two channels of 4 x 6 pixels, patches of 3 x 3, five filters, pooled by two."""
    cost = benchmarks("costs").layer_cost(LayerConfig(5, 3, subsampling=2.0), 2, 4, 6)
    convolution, pooling, root = 2 * 9 * 5 * 24, 5 * (2 * 4 * 6 + 2 * 3 * 6), 25 * 6
    assert cost.forward == convolution + pooling + root
    assert cost.step == 3 * convolution + 2 * pooling + 3 * root
    assert cost.forward_numbers == 48 + 2 * 120 + 30
    assert cost.step_numbers == cost.forward_numbers + 30 + 30 + 30 + 4 * 120 + 2 * 48
    unpooled = benchmarks("costs").layer_cost(LayerConfig(5, 3, padding=False), 2, 4, 6, first=True)
    assert unpooled.forward == 2 * 9 * 5 * 8 + 25 * 8
    assert unpooled.step == 2 * 2 * 9 * 5 * 8 + 3 * 25 * 8


def test_the_cost_of_a_network_is_what_pytorch_counts(benchmarks: Any) -> None:
    layers = (LayerConfig(5, 3, 2.0, kernel=Linear()), LayerConfig(6, 1), LayerConfig(4, 3, 1.5, padding=False))
    network, cost = CKN(NetworkConfig(3, layers)), benchmarks("costs").network_cost(NetworkConfig(3, layers), 12, 14)
    roots = [layer.inverse_root().detach().requires_grad_() for layer in network.kernel_layers]
    counter = FlopCounterMode(display=False)
    with counter:
        maps = channels_last(torch.randn(7, 3, 12, 14))
        for layer, root in zip(network.kernel_layers, roots, strict=True):
            assert isinstance(layer, KernelLayer)
            maps = layer(maps, root)
    assert counter.get_total_flops() == 2 * 7 * cost.forward
    with counter:
        maps.sum().backward()
    assert counter.get_total_flops() == 2 * 7 * (cost.step - cost.forward)
