"""The flags that say what is trained on, for how long, and by which steps."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from utils.cli.mammoth_flags import NO_EARLY_STOPPING
from utils.cli.roles import Role
from utils.cli.values import binary_to_boolean_type, choice, class_order, milestone, number, schedule
from utils.mammoth.helpers import field_with_aliases

RESULT, RANGE, PRESET = Role.RESULT, Role.RANGE, Role.PRESET
Add = Callable[..., None]


def switch(add: Add, role: Role, name: str, help: str, **more: Any) -> None:
    """A flag that takes 1 or 0, and is 0 unless given."""
    add(role, name, type=binary_to_boolean_type, default=False, help=help, **more)


def experiment(add: Add) -> None:
    add(RESULT, "--lr", type=number(float, above=0), required=True, help="learning rate")
    add(RESULT, "--batch_size", type=number(int, 1), required=True, help="images per step from the stream")
    switch(add, RESULT, "--joint", "train on all tasks at once (an upper bound)")
    switch(add, RESULT, "--task_free", "hide the task boundaries from the model: no task hooks, no task index")
    switch(
        add,
        RESULT,
        "--task_free_lr_restart",
        "task-free: restart the learning-rate schedule at the hidden boundaries (this leaks them); "
        "0 keeps the rate constant",
    )
    add(PRESET, "--n_tasks", type=number(int, 1), help="split the classes into this many tasks")
    add(
        PRESET,
        "--classes_first_task",
        type=number(int, 1),
        help="classes of the first task; the others share the rest evenly (--n_tasks 11 --classes_first_task 50)",
    )
    switch(add, RESULT, "--permute_classes", "random class order, from the seed")
    add(
        RESULT,
        "--custom_class_order",
        type=class_order,
        metavar="N,N,…",
        help="new label of each original class, comma or dash separated; lists every class",
    )
    _labels(add)
    seed = "seed of everything random; drawn and recorded if absent"
    add(RESULT, "--seed", type=number(int, 0, 2**63 - 1), help=seed)


def _labels(add: Add) -> None:
    share = number(float, 0, 1, above=0)
    add(
        RESULT,
        "--label_perc",
        "--label_perc_by_task",
        "--lpt",
        type=share,
        default=1.0,
        help="part of each task's training images that has labels; only methods that say cssl get the others",
    )
    add(RESULT, "--label_perc_by_class", "--lpc", type=share, default=1.0, help="the same for each class")
    add(
        RESULT,
        "--noise_rate",
        type=number(float, 0, 1),
        default=0.0,
        help="part of the training labels that are wrong, before tasks are cut out; true_labels come with the batches",
    )
    add(
        RESULT,
        "--noise_type",
        type=field_with_aliases({"symmetric": ["sym", "symm"], "asymmetric": ["asym", "asymm"]}),
        usual="symmetric",
        metavar="{symmetric,asymmetric}",
        help="which wrong label an image gets: any other, or (CIFAR alone) that of a class which it may be taken for",
    )
    # Mammoth keeps wrong labels in a file; here they follow from the seed, and any value of these is as good.
    switch(add, Role.PLACE, "--disable_noisy_labels_cache", argparse.SUPPRESS)
    add(Role.PLACE, "--cache_path_noisy_labels", default="noisy_labels", help=argparse.SUPPRESS)


def _held_out(add: Add) -> None:
    add(
        RESULT,
        "--validation",
        type=number(float, 0, below=100),
        help="part of each class of the training data that replaces the test set during the run: a fraction below 1, "
        "else percent; the real test set is evaluated at the end; 0: none",
    )
    add(
        RESULT,
        "--validation_mode",
        type=choice("current", "complete"),
        usual="current",
        help="what evaluation k is made on: the classes of task k, or all classes up to these",
    )


def fitting(add: Add) -> None:
    add(
        RESULT,
        "--fitting_mode",
        type=choice(
            "epochs",
            "iters",
            lacking={"early_stopping": NO_EARLY_STOPPING, "time": "a run's numbers must not depend on its speed"},
        ),
        default="epochs",
        help="what ends a task's training: --n_epochs or --n_iters",
    )
    add(RESULT, "--n_epochs", type=number(int, 0), required=True, help="epochs per task; 0 skips training")
    add(RESULT, "--n_epochs_first", type=number(int, 1), help="epochs of the first task; --n_epochs by default")
    add(RESULT, "--n_iters", type=number(int, 1), help="steps per task with --fitting_mode iters")
    _held_out(add)
    add(RESULT, "--eval_epochs", type=number(int, 1), help="also evaluate every so many epochs within a task")
    switch(add, RESULT, "--enable_other_metrics", "also measure forward transfer, which costs extra evaluations")
    future = "also evaluate the tasks to come, by the future_forward of a FutureModel"
    switch(add, RESULT, "--eval_future", future, usual=False)
    add(
        RESULT,
        "--dgc_diagnostics",
        type=number(int, 0),
        default=0,
        help="before every so many steps from task 2 on, measure how far replay's gradients are from the true gradient "
        "of all past data; 0: never. It costs a pass over that data each time, and leaves the training as it is",
    )
    add(
        RESULT,
        "--loss_diagnostics",
        type=number(int, 0),
        help="before every so many steps of a task, measure the loss over all training images of the tasks so far; "
        "0: never. It costs a forward pass over them each time, and leaves the training as it is",
    )
    first = "first task to train, counted from 0; earlier ones are skipped"
    add(RANGE, "--start_from", type=number(int, 0), help=first)
    add(
        RANGE,
        "--stop_after",
        type=number(int, 1),
        help="number of tasks after which the run ends; with --joint 1 those that it trains on",
    )


def optimizer(add: Add) -> None:
    add(RESULT, "--optimizer", type=choice("sgd", "adam", "adamw"), default="sgd", help="optimizer")
    add(RESULT, "--optim_wd", type=number(float, 0), default=0.0, help="weight decay")
    add(RESULT, "--optim_mom", type=number(float, 0, below=1), default=0.0, help="momentum (sgd)")
    switch(add, RESULT, "--optim_nesterov", "Nesterov momentum (sgd)")
    switch(add, RESULT, "--drop_last", "drop an epoch's last, short batch")
    add(RESULT, "--lr_scheduler", type=schedule, help="restarted at each task; none: a constant rate")
    add(RESULT, "--scheduler_mode", type=choice("epoch", "iter"), default="epoch", help="what the schedule counts")
    milestones: Any = {"type": milestone, "nargs": "*", "metavar": "N"}
    add(
        RESULT,
        "--lr_milestones",
        **milestones,
        default=[],
        help="multisteplr: when to decay, in units of --scheduler_mode; a number below 1 is a share of the task",
    )
    first = "multisteplr: when to decay in the first task; --lr_milestones by default"
    add(RESULT, "--lr_milestones_first", **milestones, help=first)
    add(
        RESULT,
        "--body_lr_scale",
        type=number(float, 0, 1),
        help="factor of the learning rate of all layers but the classifier from the second task on; 0 freezes them",
    )
    add(RESULT, "--sched_multistep_lr_gamma", type=number(float, above=0), default=0.1, help="multisteplr: factor")
