"""The command line: what it prints, and that what goes wrong is told in one sentence."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sckn import cli
from sckn.demo import DemoReport

ROOT = Path(__file__).parents[1]
EXPERIMENT = sorted(ROOT.glob("experiments/*.toml"))[0]


def outcome(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    """The exit code of `sckn` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["sckn", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


def raising(error: BaseException) -> Callable[[Callable[[str], None]], DemoReport]:
    def run_demo(say: Callable[[str], None]) -> DemoReport:
        raise error

    return run_demo


def test_demo_prints_what_it_is_told_and_both_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def quick(say: Callable[[str], None]) -> DemoReport:
        say("a step of the demonstration")
        return DemoReport(pixels_error=12.346, network_error=3.454, training_images=10, test_images=10)

    monkeypatch.setattr(cli, "run_demo", quick)
    monkeypatch.setattr(sys, "argv", ["sckn", "demo"])
    cli.main()
    output = capsys.readouterr()
    assert output.err == ""
    assert output.out.startswith("a step of the demonstration\n")
    (pixels,) = (line for line in output.out.splitlines() if "the pixels" in line)
    (network,) = (line for line in output.out.splitlines() if "the features of the kernel network" in line)
    assert "12.35 %" in pixels
    assert "3.45 %" in network


def test_a_gpu_that_is_not_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folders = ["--data", str(tmp_path), "--results", str(tmp_path / "results")]
    assert outcome(monkeypatch, "train", str(EXPERIMENT), *folders, "--device", "cuda") == 1
    assert capsys.readouterr().err == "sckn: there is no CUDA device here; use --device cpu\n"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\n2 GiB"), "memory does not suffice"),
        (ValueError("the images are empty"), "the images are empty"),
        (FileNotFoundError(2, "No such file or directory", "here"), "No such file or directory"),
        (OSError("the disk is gone"), "the disk is gone"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_goes_wrong_is_one_sentence(
    error: BaseException, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "run_demo", raising(error))
    assert outcome(monkeypatch, "demo") == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("sckn: ")
    assert sentence in output.err
    assert output.err.count("\n") == 1


def test_an_interrupt_ends_with_the_code_of_a_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "run_demo", raising(KeyboardInterrupt()))
    assert outcome(monkeypatch, "demo") == 130
    assert capsys.readouterr() == ("", "")


def test_a_mistake_of_the_library_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "run_demo", raising(TypeError("a bug")))
    monkeypatch.setattr(sys, "argv", ["sckn", "demo"])
    with pytest.raises(TypeError, match="a bug"):
        cli.main()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--help"], ["Example: sckn demo", "demo", "train"]),
        (["train", "--help"], ["Example: sckn train", "--data", "--results", "--device"]),
    ],
    ids=" ".join,
)
def test_the_help_fits_a_terminal_and_has_an_example(arguments: list[str], parts: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from sckn.cli import main; main()", *arguments],
        env={**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) <= 26
    assert max(map(len, lines)) <= 100
    assert all(part in done.stdout for part in parts)
