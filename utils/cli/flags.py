"""The flags of the framework, each with its role, type, range and help text; `utils.cli.parse` merges them with the
YAML defaults. Nothing heavy is imported, because a finished run is shown without torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import cache, partial

from utils.cli import registry, training_flags
from utils.cli.mammoth_flags import add_mammoths_args
from utils.cli.parser import ArgumentParser, Taken
from utils.cli.roles import Declared, Role
from utils.cli.training_flags import Add, switch
from utils.cli.values import binary_to_boolean_type, choice, number

RESULT, PLACE, PRESET, ORIGIN, ONCE = Role.RESULT, Role.PLACE, Role.PRESET, Role.ORIGIN, Role.ONCE

# What parsing or building adds to the flags, because models and backbones read it there.
DERIVED = {
    "num_classes": "classes of the dataset",
    "in_channels": "channels of its images",
    "input_size": "numbers in one of them",
    "class_order": "the classes in the order of the tasks",
    "takes_unlabelled": "whether the model is given images without a label",
    "seed_was_drawn": "whether --seed was absent",
    "command_sha256": "checksum of command line and sources, see `known_command`",
    "wandb_url": "the run's page",
    "conf_jobnum": "an identifier of this start",
    "conf_timestamp": "when it was",
    "conf_host": "where it was",
    "conf_git_hash": "the commit of the project",
}


def framework_parser(taken: Taken | None = None) -> ArgumentParser:
    """All flags that don't depend on the model, the dataset or the backbone, under names that these have not taken."""
    parser = ArgumentParser(
        prog="main.py",
        usage="python main.py --model NAME [--dataset NAME] [flags]",
        add_help=False,
        description="Train a continual-learning method on a sequence of tasks.",
        epilog="Add --model NAME (and --dataset NAME) to see their own flags and defaults. Boolean flags take 1 or 0.",
    )
    parser.taken = taken or parser.taken
    show = "show this help and exit"
    parser.declare(parser, ONCE, "-h", "--help", early=True, action="store_true", default=argparse.SUPPRESS, help=show)
    for title, add_flags in {
        "selection": _selection,
        "experiment": training_flags.experiment,
        "fitting and validation": training_flags.fitting,
        "optimizer and learning-rate schedule": training_flags.optimizer,
        "management": _management,
        "checkpoints and resuming": _durability,
        "wandb": _wandb,
    }.items():
        add_flags(partial(parser.declare, parser.add_argument_group(title)))
    return parser


@cache
def framework_flags() -> frozenset[str]:
    """All spellings: `--lr`, `-O`, …"""
    return frozenset(framework_parser().flags())


@cache
def _declared() -> Mapping[str, Declared]:
    parser = framework_parser()
    add_mammoths_args(parser)
    return parser.declared | {name: Declared(Role.DERIVED) for name in DERIVED}


def declared(name: str) -> Declared:
    """What is said about a flag, or about what is derived from flags. What is not declared moves the numbers."""
    return _declared().get(name, Declared())


def _selection(add: Add) -> None:
    add(RESULT, "--model", early=True, layered=False, help="method to train; --list shows all")
    dataset = "split dataset; --list shows all"
    add(RESULT, "--dataset", early=True, layered=False, default=registry.DEFAULT_DATASET, help=dataset)
    add(
        Role.FILE,
        "--embeddings",
        metavar="FILE",
        help="seq-embeddings: vectors in .npz or .safetensors (embed.py makes them) instead of those shipped",
    )
    add(RESULT, "--backbone", early=True, help="network in place of the dataset's own; --list shows all")
    add(
        PRESET,
        "--dataset_config",
        early=True,
        layered=False,
        help="YAML of defaults in datasets/configs/<dataset>/, without its ending",
    )
    add(
        PRESET,
        "--model_config",
        early=True,
        type=choice("default", "base", "best"),
        default="default",
        help="section of models/config/<model>.yaml; best = the published hyper-parameters for dataset and buffer size",
    )
    add(
        ORIGIN,
        "--plugin",
        early=True,
        layered=False,
        action="append",
        default=[],
        metavar="FILE",
        help="Python file with a model, dataset or backbone, as for Mammoth; may be repeated; wins if a name is taken",
    )
    switch(
        add,
        RESULT,
        "--dgc",
        "put Dynamic Gradient Calibration on top of a replay method from elsewhere (ours have it: dgc_*)",
        early=True,
    )
    listing = "print models, datasets and backbones, and exit"
    add(ONCE, "--list", action="store_true", default=argparse.SUPPRESS, help=listing)


def _management(add: Add) -> None:
    add(PLACE, "--base_path", metavar="DIR", help="root of datasets and results (default: data/ of the project)")
    runs = "where run directories go, relative to --base_path"
    add(PLACE, "--results_path", default="results", metavar="DIR", help=runs)
    add(
        PLACE,
        "--device",
        metavar="DEVICE",
        help="cpu, cuda, cuda:1, mps, or GPU ids (0,1: the one with most free memory); "
        "default: CUDA, else MPS, else CPU",
    )
    add(
        RESULT,
        "-O",
        "--code_optimization",
        type=number(int, 0, 3),
        default=0,
        metavar="{0,1,2,3}",
        help="0 plain float32; 1 TF32 and channels_last; 2 also bf16 autocast; 3 also torch.compile",
    )
    switch(add, RESULT, "--deterministic", "refuse GPU kernels that are not reproducible (CPU runs always are)")
    add(PLACE, "--notes", metavar="TEXT", help="free text, stored with the results")
    workers = "worker processes of loaders that datasets and models from elsewhere make; ours need none"
    add(RESULT, "--num_workers", type=number(int, 0), default=0, help=workers)
    switch(add, PLACE, "--non_verbose", "no progress bar")
    switch(add, RESULT, "--debug_mode", "a few steps per epoch, wandb off")
    switch(add, Role.RANGE, "--inference_only", "evaluate without training (see --loadcheck)")


def _durability(add: Add) -> None:
    resuming = "resume the run in this directory (the same command does so, too)"
    add(ONCE, "--resume", early=True, metavar="RUN", help=resuming)
    switch(add, ONCE, "--overwrite", "throw an earlier run of this command away")
    minutes = "time between checkpoints; 0: only after tasks"
    add(PLACE, "--checkpoint_minutes", type=number(float, 0), default=5.0, help=minutes)
    add(PLACE, "--checkpoint_every", type=number(int, 0), default=0, help="steps between checkpoints; 0: by time only")
    saving = "save the trained model for other runs, at the end or after each task"
    add(PLACE, "--savecheck", type=choice("last", "task"), help=saving)
    add(ORIGIN, "--loadcheck", early=True, metavar="FILE", help="start from a model saved by --savecheck")
    where = "where --savecheck writes (default: checkpoints/ of the project)"
    add(PLACE, "--checkpoint_path", metavar="DIR", help=where)
    add(PLACE, "--ckpt_name", help="prefix of the names that --savecheck writes")


def _wandb(add: Add) -> None:
    boolean = binary_to_boolean_type
    add(PLACE, "--nowand", type=boolean, help="1 switches wandb off; it is on if a project is known")
    add(PLACE, "--wandb_project", help="project; or the environment's WANDB_PROJECT")
    add(PLACE, "--wandb_entity", help="entity; or the environment's WANDB_ENTITY")
    add(PLACE, "--wandb_name", help="name of the run (the model's by default)")
    add(PLACE, "--wandb_group", help="group of the run (the dataset's name by default)")
    add(PLACE, "--wandb_tags", nargs="*", default=[], metavar="TAG", help="tags of the run")
