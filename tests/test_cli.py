"""The command line: what it prints, and that what goes wrong is told in one sentence."""

import errno
import json
import math
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import sckn
from sckn import cli, commands
from sckn.demo.demonstration import DemoReport
from sckn.demo.digits import DigitsReport
from sckn.evaluation import Evaluation
from sckn.training.experiment import SeedReport

ROOT = Path(__file__).parents[1]
WITH_LABELS = ROOT / "experiments" / "cifar10-128.toml"
WITHOUT_LABELS = ROOT / "experiments" / "cifar10-unsup-64-256.toml"


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """The program decides what signals do to it; this process keeps what it had."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal, also where a shell has it ignored
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def outcome(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    """The exit code of `sckn` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["sckn", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


def raising(error: BaseException) -> Callable[[Path, Callable[[str], None]], DemoReport]:
    def run_demo(output: Path, say: Callable[[str], None]) -> DemoReport:
        raise error

    return run_demo


def test_a_sentence_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that those of several processes, told at once and without a buffer, stay apart."""
    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=written.append))
    assert outcome(monkeypatch, "upscale", "nowhere.png", "-o", "large.png", "--model", "nowhere") == 1
    assert len(written) == 1
    assert re.fullmatch(r"sckn: .*\n", written[0])


def demo_report(output: Path) -> DemoReport:
    """Of digits of which 1 in 8 is wrong with labels."""
    network = sckn.CKN(sckn.NetworkConfig(1, (sckn.LayerConfig(2, 3),)))
    evaluation = Evaluation(("0", "1"), np.array([[4, 0], [1, 3]]))
    digits = DigitsReport(10, 12.346, 3.454, evaluation, sckn.KernelModel(network, torch.zeros(2, 2)), 0, [])
    return DemoReport((("cat", 1.949), ("dog", -1.25)), None, digits, output / "report.html")


def test_demo_prints_what_it_is_told_and_what_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def quick(output: Path, say: Callable[[str], None]) -> DemoReport:
        say("a step of the demonstration")
        return demo_report(output)

    monkeypatch.setattr("sckn.commands.demo.run_demo", quick)
    for options, folder in (([], "sckn-demo"), (["--output", "else where"], "else where")):
        monkeypatch.setattr(sys, "argv", ["sckn", "demo", *options])
        cli.main()
        output = capsys.readouterr()
        assert output.err == ""
        first, *lines = output.out.splitlines()
        assert first == "a step of the demonstration"
        assert "the photograph: cat 1.95, dog -1.25" in lines
        assert [line.split()[:2] for line in lines if " %" in line] == [["12.35", "%"], ["3.45", "%"], ["12.50", "%"]]
        assert any(line.endswith(f"seconds. All of it, with pictures: {folder}/report.html") for line in lines)


def test_a_gpu_that_is_not_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folders = ["--data", str(tmp_path), "--results", str(tmp_path / "results")]
    assert outcome(monkeypatch, "train", str(WITH_LABELS), *folders, "--device", "cuda") == 1
    assert capsys.readouterr().err == "sckn: there is no CUDA device here; use --device cpu\n"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\n2 GiB"), "memory does not suffice"),
        (RuntimeError("[enforce fail] not enough memory: you tried to allocate 9 bytes."), "memory does not suffice"),
        (MemoryError(), "memory does not suffice"),
        (ValueError("the images are empty"), "the images are empty"),
        (FileNotFoundError(2, "No such file or directory", "here"), "No such file or directory"),
        (OSError("the disk is gone"), "the disk is gone"),
        (ConnectionError(errno.ECONNABORTED, "another process of this job ended"), "another process of this job ended"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_goes_wrong_is_one_sentence(
    error: BaseException, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sckn.commands.demo.run_demo", raising(error))
    assert outcome(monkeypatch, "demo") == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("sckn: ")
    assert sentence in output.err
    assert output.err.count("\n") == 1


def test_an_interrupt_ends_with_the_code_of_a_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sckn.commands.demo.run_demo", raising(KeyboardInterrupt()))
    assert outcome(monkeypatch, "demo") == 130
    assert capsys.readouterr() == ("", "sckn: interrupted\n")


def receiving(number: signal.Signals) -> Callable[..., Any]:
    """A work during which a signal comes."""

    def work(*_: Any, **__: Any) -> None:
        signal.raise_signal(number)
        raise AssertionError("nobody listened")

    return work


SIGNALS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stopped")]


@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
def test_a_signal_is_one_sentence(
    number: signal.Signals, code: int, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sckn.commands.demo.run_demo", receiving(number))
    assert outcome(monkeypatch, "demo") == code
    assert capsys.readouterr() == ("", f"sckn: {word}\n")
    # a second one would end it at once, without a traceback
    assert [signal.getsignal(each) for each, *_ in SIGNALS] == [signal.SIG_DFL, signal.SIG_DFL]


def test_a_training_whose_reader_is_gone_tells_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def work(*_: Any, **__: Any) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("sckn.commands.train.run_with_labels", work)
    monkeypatch.setattr("sckn.commands.endings.os.dup2", lambda *_: None)
    assert outcome(monkeypatch, "train", str(WITH_LABELS), "--data", "here", "--run", "there") == 128 + signal.SIGPIPE
    expected = "sckn: stopped, for nobody reads what is printed; what was finished is in there, go on with --resume\n"
    assert capfd.readouterr().err == expected


@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
@pytest.mark.parametrize("run", [None, "elsewhere"])
def test_a_signal_during_a_training_with_labels_tells_how_to_go_on(
    number: signal.Signals,
    code: int,
    word: str,
    run: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sckn.commands.train.run_with_labels", receiving(number))
    folder = [] if run is None else ["--run", run]
    assert outcome(monkeypatch, "train", str(WITH_LABELS), "--data", "here", *folder) == code
    place = run or f"runs/{WITH_LABELS.stem}"
    assert capsys.readouterr().err == f"sckn: {word}; what was finished is in {place}, go on with --resume\n"


def test_a_signal_during_a_training_without_labels_promises_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sckn.commands.train.run_without_labels", receiving(signal.SIGTERM))
    assert outcome(monkeypatch, "train", str(WITHOUT_LABELS), "--data", "here") == 143
    assert capsys.readouterr().err == "sckn: stopped\n"


def test_a_signal_that_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """nohup and the background of a shell wish so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr("sckn.commands.demo.run_demo", raising(ValueError("the end")))
    assert outcome(monkeypatch, "demo") == 1
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_IGN, signal.SIG_DFL)


def test_a_warning_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def warn(output: Path, say: object) -> DemoReport:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("the epoch is undone", RuntimeWarning, stacklevel=1)
        return demo_report(output)

    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # and back
    monkeypatch.setattr("sckn.commands.demo.run_demo", warn)
    monkeypatch.setattr(sys, "argv", ["sckn", "demo"])
    cli.main()
    assert capsys.readouterr().err == "sckn: the epoch is undone\n"


@pytest.mark.parametrize("option", [["--run", "folder"], ["--resume"], ["--tensorboard"]], ids=lambda option: option[0])
def test_what_means_nothing_without_labels_is_refused(
    option: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(monkeypatch, "train", str(WITHOUT_LABELS), "--data", "here", *option) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (
        f"sckn: {WITHOUT_LABELS} trains without labels, in one process and without a run folder; "
        "leave out --run, --resume and --tensorboard\n"
    )


def test_a_file_in_the_place_of_the_results_is_found_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").write_text("mine")
    folders = ["--data", "here", "--results", str(tmp_path / "results")]
    assert outcome(monkeypatch, "train", str(WITH_LABELS), *folders) == 1
    assert capsys.readouterr() == (
        "",
        f"sckn: {tmp_path}/results is not a folder; choose another place with --results\n",
    )


def report(seed: int, **changes: Any) -> SeedReport:
    figures = {"test_error": 10.0 + seed, "train_error": 1.5, "validation_errors": {-1: 12.25, 3: 20.0}}
    settings = {"lambda_exponent": -1, "gradient": 1e-3, "seconds": {"test": 1.0}, "peak_gib": None, "epochs": 7}
    return SeedReport(seed, **{**figures, **settings, **changes})


def test_train_prints_every_seed_and_writes_their_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {}

    def work(settings: Any, data: Path, device: torch.device, run: Path, **options: Any) -> list[SeedReport]:
        given.update(options, data=data, run=run)
        return [report(0), report(2, train_error=None, validation_errors={}, epochs=None)]

    results = tmp_path / "results"
    results.mkdir()
    (results / f".{WITH_LABELS.stem}.json.abcd1234.json").write_text("of a process that was killed")
    monkeypatch.setattr("sckn.commands.train.run_with_labels", work)
    arguments = ["--data", "here", "--run", "there", "--results", str(results), "--resume", "--tensorboard"]
    monkeypatch.setattr(sys, "argv", ["sckn", "train", str(WITH_LABELS), *arguments])
    cli.main()
    assert (given["data"], given["run"]) == (Path("here"), Path("there"))
    assert (given["resume"], given["tensorboard"], given["test"], given["processes"].count) == (True, True, True, 1)
    first, *table = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{WITH_LABELS.stem}: reading here")
    assert table == [
        "seed   test error   training   validation   lambda   epochs",
        "   0      10.00 %     1.50 %      12.25 %   2^-1/n      7",
        "   2      12.00 %        -            -     2^-1/n       ",
        f"mean      11.00 % ± 1.41   written to {results}/{WITH_LABELS.stem}.json",
    ]
    assert [path.name for path in results.iterdir()] == [f"{WITH_LABELS.stem}.json"]
    result = json.loads((results / f"{WITH_LABELS.stem}.json").read_text())
    assert (result["test_error"], result["deviation"]) == (11.0, 1.414)
    assert [run["seed"] for run in result["runs"]] == [0, 2]


def test_for_validation_only_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {}

    def work(*_: Any, **options: Any) -> list[SeedReport]:
        given.update(options)
        return [report(0, test_error=None, train_error=None)]

    monkeypatch.setattr("sckn.commands.train.run_with_labels", work)
    arguments = ["--data", "here", "--results", str(tmp_path / "results"), "--validation-only"]
    monkeypatch.setattr(sys, "argv", ["sckn", "train", str(WITH_LABELS), *arguments])
    cli.main()
    assert (given["test"], given["resume"]) == (False, False)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "   0          -          -        12.25 %   2^-1/n      7",
        "the test set was not looked at, and no result was written",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_of_the_library_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sckn.commands.demo.run_demo", raising(RuntimeError("a bug")))
    monkeypatch.setattr(sys, "argv", ["sckn", "demo"])
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--help"], ["Example: sckn demo", "demo", "train", "data", "evaluate", "classify", "upscale", "tables", "report"]),
        (["evaluate", "--help"], ["Example: sckn evaluate runs/cifar10-128 --data DIR", "MODEL", "--json", "--picture"]),
        (["classify", "--help"], ["Example: sckn classify cifar10 photo.jpg", "MODEL IMAGE...", "--top", "--json"]),
        (["upscale", "--help"], ["Example: sckn upscale photo.jpg -o large.png --scale 3", "PHOTO...", "--fast", "--memory"]),
        (["tables", "--help"], ["Example: sckn tables --format markdown", "{text,markdown,latex}", "--results"]),
        (["report", "--help"], ["Example: sckn report runs/cifar10-128", "RUN", "--data"]),
        (["data", "--help"], ["Example: sckn data cifar10 --data DIR --download", "--download", "--extra"]),
        (
            ["train", "--help"],
            ["Example: sckn train", "torchrun --nproc-per-node 8 -m -- sckn train", "--data", "--results", "--device"],
        ),
    ],
    ids=" ".join,
)
def test_the_help_fits_a_terminal_and_has_an_example(
    arguments: list[str], parts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_text(monkeypatch, capsys, *arguments)
    assert all(part in text for part in parts)


def help_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a terminal of 80 columns and 24 lines shows."""
    monkeypatch.setenv("COLUMNS", "80")
    assert outcome(monkeypatch, *arguments) == 0
    output = capsys.readouterr()
    assert output.err == ""
    rows = [max(1, math.ceil(len(line) / 80)) for line in output.out.splitlines()]
    assert sum(rows) <= 24
    return output.out


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.__name__)
def test_every_command_has_a_help_that_fits_a_screen_and_holds_an_example(
    command: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = command.__name__
    text = help_text(monkeypatch, capsys, name, "--help")
    assert f"Example: sckn {name}" in text
    overview = help_text(monkeypatch, capsys, "--help")
    assert re.search(rf"• {name} +\w", overview)


def test_every_file_of_a_command_is_in_the_program() -> None:
    """A command that was written and not added to COMMANDS would never be seen."""
    files = {path.stem for path in Path(commands.__path__[0]).glob("*.py")} - {"__init__", "endings", "options"}
    assert files == {command.__name__ for command in cli.COMMANDS}
    assert all(command.__module__ == f"sckn.commands.{command.__name__}" for command in cli.COMMANDS)


def test_the_help_needs_none_of_the_heavy_packages_that_only_some_commands_use() -> None:
    """Loading them would double the time that each command takes to start."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sckn", "--help"], capture_output=True, text=True, check=True
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "sckn.commands.train" in loaded
    assert loaded.isdisjoint({"matplotlib", "tensorboard", "triton", "skimage", "cyanure", "onnxruntime", "fastapi"})


def test_a_reader_that_has_seen_enough_is_no_mistake() -> None:
    """As `head -1`: neither a sentence nor a traceback."""
    command = [sys.executable, "-m", "sckn", "tables"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 128 + signal.SIGPIPE


def test_the_module_is_the_program() -> None:
    """As torchrun starts it."""
    done = subprocess.run([sys.executable, "-m", "sckn", "--version"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"sckn {sckn.__version__}\n", "")
