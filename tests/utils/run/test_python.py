"""`from main import run`: the command line's flags, errors and runs, and results as an object."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from helpers import assert_same_run

import main
from models.er import Er
from models.utils.continual_model import ContinualModel
from utils.cli.from_python import command_line
from utils.cli.parse import parse_args
from utils.errors import UsageError, UserError
from utils.metrics import summarise
from utils.run.result import Result

SHORT: dict[str, Any] = {"dataset": "seq-embeddings", "buffer_size": 20, "n_epochs": 1, "stop_after": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("python")


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return main.run("er", base_path=folder, **SHORT)


class HalfEr(Er):
    """ER with half the loss; a NAME of its own is missing on purpose."""

    def observe(self, *batch: Any, **more: Any) -> Any:
        before = self.loss
        self.loss = lambda *args: before(*args) / 2
        try:
            return super().observe(*batch, **more)
        finally:
            self.loss = before


# -- flags -------------------------------------------------------------------------------------------------------------


def test_values_become_the_tokens_of_a_shell() -> None:
    flags = {
        "permute_classes": True,
        "debug_mode": np.bool_(False),
        "lr": 1e-5,
        "notes": None,
        "buffer_size": np.int64(5),
    }
    argv, given = command_line("er", {**flags, "wandb_tags": ["a", "b"], "plugin": [Path("x.py"), "y.py"]})
    expected = "--model=er --permute_classes=True --debug_mode=False --lr=1e-05 --buffer_size=5"
    assert argv == [*expected.split(), "--wandb_tags", "a", "b", "--plugin=x.py", "--plugin=y.py", "--seed=0"]
    assert given is None


def test_booleans_are_for_every_flag_that_takes_0_or_1() -> None:
    argv, _ = command_line("dgc_er", {"dataset": "seq-digits", "buffer_size": 5, "lr": 1, "dgc_current": True})
    args = parse_args([*argv, "--task_free=False"])
    assert args.dgc_current == 1 and args.task_free is False


def test_lists_are_given_as_each_flag_takes_them() -> None:
    order = [*range(1, 50), 0]
    flags = {"custom_class_order": np.array(order), "lr_milestones": (0.5, 0.75), "lr_scheduler": "multisteplr"}
    args = parse_args(command_line("sgd", {**flags, "dataset": "seq-embeddings", "notes": "-x"})[0])
    assert args.custom_class_order == order and args.lr_milestones == [0.5, 0.75] and args.notes == "-x"


@pytest.mark.parametrize("flags", [{"seed": 3}, {"seed": None}, {"resume": "RUN"}, {}])
def test_the_seed_is_0_unless_it_is_given_drawn_or_that_of_a_run(flags: dict[str, Any]) -> None:
    seeds = [token for token in command_line("er", flags)[0] if token.startswith("--seed")]
    assert seeds == ["--seed=3"] * (flags == {"seed": 3}) + ["--seed=0"] * (not flags)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"model": "dgc_err"}, "unknown model 'dgc_err'; did you mean 'dgc_er'?"),
        ({"model": "er", "bufer_size": 3}, "unknown flag --bufer_size; did you mean '--buffer_size'?"),
        ({"model": "er", "buffer_size": 3, "lr": -1}, "argument --lr: -1 is out of range: it must be greater than 0"),
        ({"model": "er", "buffer_size": True}, "argument --buffer_size: 'True' is not a whole number"),
        ({"model": "er"}, "missing --buffer_size: no default is known; give a value or a preset in models/config"),
        ({"model": "er", "O": 1}, "unknown flag --O; did you mean '--code_optimization'?"),
        ({}, "--model is missing; `python main.py --list` shows all models"),
        ({"model": "er", "list": True}, "list is for the command line: python main.py --list"),
        ({"model": 3}, "model: 3 is neither a name nor a class; `python main.py --list` shows all names"),
        ({"model": dict}, "model: dict is no method; derive it from ContinualModel, or from a method such as Er"),
        ({"model": "er", "lr": {}}, "lr: {} is no value of a flag; give a number, a text, a boolean or a list of them"),
        ({"resume": "nowhere"}, "--resume nowhere: no run is there"),
    ],
)
def test_a_wrong_call_is_answered_in_one_line(flags: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError) as error:
        main.run(**flags)
    assert str(error.value).startswith(line) and "\n" not in str(error.value)
    assert error.value.__cause__ is None and error.value.__suppress_context__  # nothing else is shown with it


def test_only_the_model_goes_without_a_name() -> None:
    with pytest.raises(UsageError, match=r"^'seq-embeddings' needs a flag's name; only the model goes without one"):
        main.run("er", "seq-embeddings")


def test_a_notebook_shows_the_line_and_no_traceback() -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    with capture_output() as shown:
        InteractiveShell().run_cell("from main import run\nrun('dgc_err')")
    assert shown.stdout.strip() == "UsageError: unknown model 'dgc_err'; did you mean 'dgc_er'?"


def test_what_the_machine_refuses_is_one_line_too(result: Result, folder: Path) -> None:
    (folder / "taken").write_text("")
    with pytest.raises(UserError, match=r"^[^\n]*taken[^\n]*$"):
        main.run("er", base_path=folder / "taken", **SHORT)


# -- results -----------------------------------------------------------------------------------------------------------


def test_a_result_has_the_matrix_the_metrics_and_the_flags(result: Result, folder: Path) -> None:
    assert result.accuracy.shape == result.accuracy_task_il.shape == (2, 2)
    assert np.isnan(result.accuracy[0, 1]) and not np.isnan(result.accuracy[1]).any()
    assert dict(result.metrics) == summarise(result.accuracy)
    assert result.metrics_task_il["FAA"] == pytest.approx(result.accuracy_task_il[1].mean())
    assert result.directory.is_relative_to(folder) and result.config["buffer_size"] == 20
    assert result.summary["n_tasks"] == 2


def test_the_same_call_and_the_same_command_find_it(result: Result, folder: Path, capsys: Any) -> None:
    again = main.run(Er, base_path=str(folder), **SHORT)  # the project's class is what its name means
    assert again.directory == result.directory
    assert "overwrite=True runs it again" in capsys.readouterr().out
    flags = [token for name, value in SHORT.items() for token in (f"--{name}", str(value))]
    main.main(["--model", "er", "--seed", "0", "--base_path", str(folder), *flags])
    assert f"This run is finished ({result.directory})" in capsys.readouterr().out
    assert main.run(resume=result.directory).metrics == result.metrics


def test_its_text_shows_both_settings(result: Result) -> None:
    title, names, class_il, task_il, directory = repr(result).splitlines()
    assert title == "er on seq-embeddings, seed 0" and names.split() == ["FAA", "FAIA", "FF", "BWT"]
    assert class_il.split()[:2] == ["Class-IL", f"{result.metrics['FAA']:.2f}"]
    assert task_il.split()[:2] == ["Task-IL", f"{result.metrics_task_il['FAA']:.2f}"]
    assert directory == str(result.directory)


def test_a_notebook_shows_metrics_and_matrix(result: Result) -> None:
    page = result._repr_html_()  # IPython's name for it
    assert page.count("<table>") == 2 and 'title="final average accuracy: ' in page
    assert f">{result.accuracy[1, 0]:.1f}</td>" in page and page.count("<td></td>") == 1
    assert f">{result.metrics['FAA']:.2f}</td>" in page.replace("<td>", ">")


def test_runs_are_drawn_into_the_same_axes(result: Result) -> None:
    matplotlib.use("Agg")
    before = dict(matplotlib.rcParams)
    axes = result.plot()
    assert result.plot(axes, label="again") is axes
    first, second = axes.get_lines()
    np.testing.assert_allclose(first.get_ydata(), [result.accuracy[0, 0], result.accuracy[1].mean()])
    assert first.get_color() != second.get_color()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["er", "again"]
    (image,) = result.plot_matrix().get_images()
    assert image.get_clim() == (0, 100)
    np.testing.assert_array_equal(np.ma.filled(image.get_array(), np.nan), result.accuracy)
    assert dict(matplotlib.rcParams) == before
    matplotlib.pyplot.close("all")


def test_an_unfinished_run_has_no_result(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(
            UserError, match=f"^{folder}: no run is there .config.yaml is missing.; give a run's directory"
        ):
            Result(folder)
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UserError, match=r"has no summary.json: the run is not finished; repeat its call"):
        Result(tmp_path)


# -- a class of one's own ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_class_is_trained_with_the_presets_of_its_base(result: Result, folder: Path, monkeypatch: Any) -> None:
    half = main.run(HalfEr, base_path=folder, **SHORT)
    assert half.summary["model"] == "halfer" and half.config["lr"] == result.config["lr"] == 0.05
    assert not np.array_equal(half.accuracy, result.accuracy)
    assert main.run(HalfEr, base_path=folder, **SHORT).directory == half.directory
    (half.directory / "summary.json").unlink()  # as if it had been stopped before the end
    with pytest.raises(UsageError, match="its model is a class that was given to `run` in Python; give it there again"):
        main.run(resume=half.directory)
    assert main.run(HalfEr, resume=half.directory).metrics == half.metrics
    monkeypatch.setattr(HalfEr, "WEIGHT", 3, raising=False)
    assert parse_identity(HalfEr, folder) != half.directory.name


def parse_identity(cls: type, folder: Path) -> str:
    """The name of the directory that a run would have."""
    from utils.run.directory import RunDirectory

    argv, given = command_line(cls, {"base_path": folder, **SHORT})
    return RunDirectory(parse_args(argv, given)).path.name


def test_a_class_needs_what_every_method_needs() -> None:
    class Nameless(ContinualModel):
        pass

    with pytest.raises(UsageError, match=r"model: Nameless has no NAME; docs/extending.md shows what a method needs"):
        main.run(Nameless)


# -- interrupted -------------------------------------------------------------------------------------------------------


def interrupt(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Press the notebook's stop button during a step."""
    observe, count = ContinualModel.meta_observe, iter(range(10_000))

    def pressed(self: Any, *batch: Any, **more: Any) -> Any:
        if next(count) == 40:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return observe(self, *batch, **more)

    monkeypatch.setattr(ContinualModel, "meta_observe", pressed)


@pytest.mark.slow
def test_an_interrupted_call_is_continued_by_the_same_call(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        interrupt(patch, times=1)
        with pytest.raises(KeyboardInterrupt, match="stopped after a checkpoint; the same call continues from there"):
            main.run("er", base_path=tmp_path, **SHORT)
    assert signal.getsignal(signal.SIGINT) is handler
    continued = main.run("er", base_path=tmp_path, **SHORT)
    assert "Resuming" in capsys.readouterr().out
    assert_same_run(continued.directory, result.directory)


@pytest.mark.slow
def test_a_further_interrupt_raises_and_leaves_the_process_alive(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, times=2)
        with pytest.raises(KeyboardInterrupt, match="stopped at once; the same call continues from the last"):
            main.run("er", base_path=tmp_path, **SHORT)
    np.testing.assert_array_equal(main.run("er", base_path=tmp_path, **SHORT).accuracy, result.accuracy)


@pytest.mark.slow
def test_another_signal_ends_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observe = ContinualModel.meta_observe

    def told_to_end(self: Any, *batch: Any, **more: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return observe(self, *batch, **more)

    monkeypatch.setattr(ContinualModel, "meta_observe", told_to_end)
    with pytest.raises(SystemExit) as stopped:
        main.run("er", base_path=tmp_path, **SHORT)
    assert stopped.value.code == 128 + signal.SIGTERM
