"""The paper's tables: every number of it, every cell at every scale, and the runs that tables share."""

from __future__ import annotations

from dataclasses import replace

import pytest

import models
from backbone import get_backbone
from experiments.cells import Expansion, distinct_runs, expand
from experiments.grid import selection
from experiments.report.tables import missing
from experiments.tables import FOLDER, load_table, profile_names, table_names
from utils.cli.parse import parse_args
from utils.cli.registry import normalise
from utils.cli.yaml_io import read_yaml
from utils.errors import UsageError
from utils.run.directory import RunDirectory

SMALL = FOLDER.parent / "datasets" / "configs" / "seq-cifar100" / "small.yaml"
WITH_SMALL = pytest.mark.skipif(not SMALL.exists(), reason="the scale's configuration is not there yet")
PROFILES = [name for name in profile_names() if name != "small" or SMALL.exists()]


@pytest.fixture(scope="module")
def everything() -> dict[tuple[str, str], Expansion]:
    """All tables at all scales, with two seeds."""
    grids = {(name, profile): load_table(name, profile) for name in table_names() for profile in PROFILES}
    return {place: expand(replace(grid, seeds=(0, 1)), []) for place, grid in grids.items()}


def numbers(name: str) -> list[str]:
    """The paper's numbers in a table's file, one for each that is printed."""
    paper = read_yaml(FOLDER / "tables" / f"{name}.yaml").get("paper", {})
    return [str(v) for rows in paper.values() for values in rows.values() for v in values if v != "same"]


def test_every_number_of_the_paper_is_there() -> None:
    counts = {name: len(numbers(name)) for name in table_names() if numbers(name)}
    expected = {"faia": 93, "tasks": 28, "alpha": 4, "m": 5, "ff": 81, "faa": 81, "taskfree": 30, "time": 27}
    assert counts == expected and sum(counts.values()) == 349


@pytest.mark.parametrize(
    ("table", "metric", "row", "column", "mean", "error"),
    [
        ("faia", "FAIA", "AOP", "S-CIFAR10, 2000", 66.73, 0.60),  # one number for both buffers
        ("faia", "FAIA", "ER", "S-CIFAR100, 2000", 55.48, 1.52),
        ("faia", "FAIA", "ER, filled at task ends", "S-CIFAR100, 2000", 55.48, 1.52),
        ("faia", "FAIA", "DGC-Dynamic ER", "S-TinyImageNet, 5000", 58.23, 0.84),
        ("tasks", "FAIA", "DGC-X-DER", "S-CIFAR100, 20 tasks", 63.53, 0.48),
        ("ff", "FF", "DGC-DER++", "S-TinyImageNet, 5000", 4.59, 0.83),
        ("faa", "FAA", "MOCA", "S-CIFAR100, 2000", 9.35, 18.67),
        ("taskfree", "FAIA", "GCR", "S-CIFAR100, 2000", 63.18, 2.16),
        ("alpha", "FAIA", "DGC-ER", "S-CIFAR100, α = 0.01", 57.4, 2.14),
        ("m", "FAIA", "DGC-ER", "S-CIFAR100, m = 1", 49.11, 5.30),
        ("time", "T2", "GSS", "S-CIFAR100, 500", 4281.39, None),
    ],
)
def test_numbers_stand_where_the_paper_has_them(
    table: str, metric: str, row: str, column: str, mean: float, error: float | None
) -> None:
    value = load_table(table, "paper").paper[metric][row][column]
    assert (value.mean, value.error) == (mean, error)


@pytest.mark.slow
def test_all_cells_can_be_run(everything: dict[tuple[str, str], Expansion]) -> None:
    for (name, profile), expansion in everything.items():
        assert profile == "small" or expansion.unavailable == {}, name


@pytest.mark.slow
def test_fine_tuning_and_joint_training_frame_every_table(everything: dict[tuple[str, str], Expansion]) -> None:
    for (name, _), expansion in everything.items():
        rows = list(expansion.grid.rows)
        assert (rows[0], rows[-1]) == ("SGD", "Joint"), name
        assert expansion.grid.conditions


def test_every_profile_has_its_number_of_seeds() -> None:
    assert {p: len(load_table("m", p).seeds) for p in profile_names()} == {"paper": 10, "small": 3, "smoke": 2}


@pytest.mark.slow
def test_tables_share_their_runs(everything: dict[tuple[str, str], Expansion]) -> None:
    for profile in PROFILES:
        runs = {n: {c.path for c in everything[n, profile].cells} for n in table_names()}
        assert runs["faia"] == runs["faa"] == runs["ff"]
        assert runs["time"] < runs["faia"] and runs["taskfree_curve"] <= runs["taskfree"]
        assert runs["alpha"] & runs["m"] & runs["faia"]
        together = distinct_runs([c for n in table_names() for c in everything[n, profile].cells])
        assert len(together) == len(set().union(*runs.values())) < sum(map(len, runs.values()))


@pytest.mark.parametrize(
    ("table", "command"),
    [
        ("faia", "--model er --buffer_size 500"),
        ("policy", "--model er --buffer_fill task_end --replay_weight tasks --buffer_size 2000"),
        ("equal_memory", "--model er --buffer_fill task_end --buffer_size 718"),
        ("estimators", "--model dgc_er --dgc_estimator released --buffer_size 2000"),
        ("faia", "--model icarl --lr 0.3 --buffer_size 2000"),  # as published for this dataset
        ("faia", "--model xder --model_config best --buffer_size 2000"),
        ("faia", "--model dynamic_er --buffer_size 500"),  # its preset is for 200 epochs
        ("faia", "--model joint"),
    ],
)
@WITH_SMALL
@pytest.mark.slow
def test_the_small_scale_is_that_of_the_dataset_config(
    everything: dict[tuple[str, str], Expansion], table: str, command: str
) -> None:
    """So that runs made by hand are found again."""
    given = ["--dataset", "seq-cifar100", "--dataset_config", "small", "--seed", "1", *command.split()]
    path = RunDirectory(parse_args(given)).path
    assert path in {cell.path for cell in everything[table, "small"].cells}


@pytest.mark.parametrize(
    ("profile", "flags"), [pytest.param("small", ["--dataset_config", "small"], marks=WITH_SMALL), ("paper", [])]
)
def test_equal_memory_counts_two_vectors_of_parameters(profile: str, flags: list[str]) -> None:
    args = parse_args(["--model", "sgd", "--dataset", "seq-cifar100", *flags])
    parameters = sum(p.numel() for p in get_backbone(args).parameters())
    images = 2 * 4 * parameters // (3 * 32 * 32)
    row = load_table("equal_memory", profile).rows["ER, filled at task ends, equal memory"]
    sizes = {column: (flags or {})["buffer_size"] for column, flags in row.columns.items()}
    assert sizes == {"S-CIFAR100, 500": 500 + images, "S-CIFAR100, 2000": 2000 + images}


@pytest.mark.slow
@WITH_SMALL
def test_the_small_scale_runs_what_images_are_at_hand_for(everything: dict[tuple[str, str], Expansion]) -> None:
    for name in table_names():
        expansion = everything[name, "small"]
        assert {cell.args.dataset for cell in expansion.cells} == {"seq-cifar100"}
        assert all(column.split(", ")[0] in ("S-CIFAR10", "S-TinyImageNet") for _, column in expansion.unavailable)
    (asked,) = selection([load_table("faia", "small")], None, ["S-CIFAR10"])
    assert expand(asked, []).cells and not expand(asked, []).unavailable


def test_columns_that_are_not_run_are_named_with_the_reason() -> None:
    columns = "S-CIFAR10, 500, S-CIFAR10, 2000, S-TinyImageNet, 2000, S-TinyImageNet, 5000"
    named = f"Not available: {columns} (not run: the images were not at hand)"
    (line,) = missing([expand(replace(load_table("faia", "small"), seeds=(0,)), [])])
    assert line.startswith(named)


@pytest.mark.slow
def test_the_smoke_scale_is_small(everything: dict[tuple[str, str], Expansion]) -> None:
    cells = distinct_runs([c for n in table_names() for c in everything[n, "smoke"].cells])
    assert {cell.args.dataset for cell in cells} == {"seq-digits"} and {cell.args.n_epochs for cell in cells} == {1}
    assert len(cells) < 400


def test_the_smoke_scale_says_digits_wherever_it_would_say_cifar() -> None:
    for name in table_names():
        smoke, paper = load_table(name, "smoke"), load_table(name, "paper")
        assert list(smoke.columns) == [f"digits for {column}" for column in paper.columns]
        assert all("CIFAR" not in text for text in (smoke.title, smoke.conditions))
        assert all(set(by_column) <= set(smoke.columns) for rows in smoke.paper.values() for by_column in rows.values())
    equal = load_table("equal_memory", "smoke").rows["ER, filled at task ends, equal memory"]
    assert set(equal.columns) == {"digits for S-CIFAR100, 500", "digits for S-CIFAR100, 2000"}


def test_stand_ins_are_chosen_by_what_they_stand_for() -> None:
    smoke = load_table("faia", "smoke")
    for chosen in ("S-CIFAR10", "digits for S-CIFAR10", "S-CIFAR10, 500"):
        (narrowed,) = selection([smoke], None, [chosen])
        assert set(narrowed.columns) <= {"digits for S-CIFAR10, 500", "digits for S-CIFAR10, 2000"}


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown table 'taskfre'; did you mean 'taskfree'"):
        load_table("taskfre", "smoke")
    with pytest.raises(UsageError, match="unknown profile 'smok'; did you mean 'smoke'"):
        load_table("faia", "smok")


def test_every_method_of_the_tables_is_there() -> None:
    named = {normalise(flags["model"]) for flags in read_yaml(FOLDER / "methods.yaml").values()} | {"agem-r"}
    assert named <= set(models.get_model_entries())
