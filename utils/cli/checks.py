"""What follows from the flags of a command, and which of them contradict each other."""

from __future__ import annotations

import math
import os
import re
import secrets
import socket
import uuid
from argparse import Namespace
from datetime import datetime
from pathlib import Path

import backbone
import datasets
import models
from utils.cli.config import selected
from utils.cli.registry import ROOT
from utils.errors import UsageError


def complete(args: Namespace) -> None:
    """Values that follow from others."""
    dataset = datasets.get_dataset_class(args)
    args.num_classes = dataset.N_CLASSES
    args.in_channels = dataset.CHANNELS
    args.input_size = dataset.CHANNELS * math.prod(dataset.SIZE)
    # Absolute, because a run may be resumed from another working directory.
    args.base_path = str(Path(args.base_path or ROOT / "data").absolute())
    args.checkpoint_path = str(Path(args.checkpoint_path or ROOT / "checkpoints").absolute())
    for file in ("loadcheck", "embeddings"):
        if getattr(args, file):
            setattr(args, file, str(Path(getattr(args, file)).absolute()))
    if hasattr(args, "minibatch_size") and args.minibatch_size is None:
        args.minibatch_size = args.batch_size
    args.validation = args.validation or None  # 0 is none, too
    args.loss_diagnostics = args.loss_diagnostics or None
    args.seed_was_drawn = args.seed is None
    if args.seed is None:
        args.seed = secrets.randbelow(2**31)
    args.wandb_project = args.wandb_project or os.environ.get("WANDB_PROJECT")
    args.wandb_entity = args.wandb_entity or os.environ.get("WANDB_ENTITY")
    args.nowand = int(bool(args.nowand) or not args.wandb_project or args.debug_mode)
    # Only for models written for Mammoth, which may read them.
    args.conf_jobnum, args.conf_timestamp = str(uuid.uuid4()), str(datetime.now())
    args.conf_host, args.conf_git_hash = socket.gethostname(), None


def require_device(name: str | None, flag: str = "--device") -> None:
    """Before torch is asked, whose answer lists twenty kinds of devices."""
    known = re.compile(r" *((cpu|cuda|mps)(:\d+)?|\d+) *")
    if name is not None and not all(map(known.fullmatch, str(name).split(","))):
        raise UsageError(f"{flag} {name} can't be used; give cpu, cuda or cuda:0, or leave it out")


def validate(args: Namespace) -> None:
    """Refuse combinations that contradict each other, before anything is loaded or written."""
    require_device(args.device)
    dataset = datasets.get_dataset_class(args)
    n_tasks, n_classes = dataset.N_TASKS, dataset.N_CLASSES
    order = args.custom_class_order
    wrong_order = order and sorted(order) != list(range(n_classes))
    _refuse(wrong_order, f"--custom_class_order must list each of 0…{n_classes - 1} once")
    _refuse(order and args.permute_classes, "--custom_class_order and --permute_classes exclude each other")
    _refuse(args.fitting_mode == "iters" and args.n_iters is None, "--fitting_mode iters needs --n_iters")
    _refuse(args.optim_nesterov and not args.optim_mom, "--optim_nesterov 1 needs --optim_mom above 0")
    for name in ("lr_milestones", "lr_milestones_first"):
        given = getattr(args, name) or []
        # Epochs and shares of the task may be mixed: which comes first depends on the task's length.
        kinds = ([m for m in given if m >= 1], [m for m in given if m < 1])
        wrong = any(kind != sorted(set(kind)) for kind in kinds)
        _refuse(wrong, f"--{name} {' '.join(map(str, given))}: give them in increasing order")
    no_milestones = args.lr_scheduler == "multisteplr" and not args.lr_milestones
    _refuse(no_milestones, "--lr_scheduler multisteplr needs --lr_milestones")
    start, stop = args.start_from or 0, args.stop_after or n_tasks
    _refuse(start >= n_tasks, f"--start_from {start}: {args.dataset} has tasks 0…{n_tasks - 1}")
    _refuse(stop > n_tasks, f"--stop_after {stop}: {args.dataset} has {n_tasks} tasks")
    _refuse(start >= stop, "--start_from must lie before --stop_after")
    _refuse(args.joint and start, "--joint has one task: no --start_from")
    _refuse(args.joint and args.enable_other_metrics, "--joint has one task: no forward transfer to measure")
    _refuse(args.joint and args.eval_future, "--joint has one task: no future to evaluate")
    _refuse(
        args.validation_mode == "complete" and (args.enable_other_metrics or args.eval_future),
        "--validation_mode complete: test sets of tasks to come also have classes seen before, so transfer can't "
        "be measured; leave out --enable_other_metrics and --eval_future",
    )
    _refuse(args.label_perc < 1 and args.label_perc_by_class < 1, "--label_perc and --label_perc_by_class: give one")
    _refuse(args.task_free and args.joint, "--task_free and --joint exclude each other: a joint run has no stream")
    _refuse(
        args.resume and args.overwrite,
        "--resume continues a run and --overwrite deletes it; to start again, repeat the run's own command with "
        "--overwrite 1",
    )
    dataset.check_args(args)
    if dataset.HOLDS_VECTORS:
        refuse_images(args)


def _refuse(wrong: object, message: str) -> None:
    if wrong:
        raise UsageError(message)


def refuse_images(args: Namespace) -> None:
    """Refuse networks and methods that only images can be given to."""
    inputs = backbone.parameters(selected(args, backbone.BACKBONES).load())
    if "in_channels" in inputs and "input_size" not in inputs:
        raise UsageError(f"--backbone {args.backbone} takes images, and {args.dataset} has vectors; use linear or mlp")
    if reason := getattr(models.get_model_class(args), "NEEDS_IMAGES", None):
        raise UsageError(f"--model {args.model}: {reason}, and {args.dataset} has vectors; use a dataset of images")


def check_by_model(args: Namespace) -> None:
    """What only the model knows about its flags."""
    model = models.get_model_class(args)
    args.takes_unlabelled = "cssl" in getattr(model, "COMPATIBILITY", ())
    if args.takes_unlabelled and min(args.label_perc, args.label_perc_by_class) < 1:
        for flag, value in vars(args).items():
            if isinstance(value, int) and value and (flag == "dgc" or flag.endswith("_diagnostics")):
                raise UsageError(
                    f"--{flag} {int(value)} needs the labels of all training images, and --label_perc "
                    "or --label_perc_by_class leaves some without a label; leave one of the two out"
                )
    if args.eval_future and not (hasattr(model, "future_forward") and hasattr(model, "change_transform")):
        raise UsageError(
            f"--eval_future 1: {args.model} has no future_forward and change_transform, by which tasks not trained yet "
            "are predicted; leave it out (--enable_other_metrics 1 looks ahead by one task)"
        )
    derived = getattr(model, "derived_args", None)
    vars(args).update(derived(args) if derived is not None else {})
    check = getattr(model, "check_args", None)
    try:
        if check is not None:
            check(args)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if args.task_free and "general-continual" not in getattr(model, "COMPATIBILITY", ()):
        raise UsageError(
            f"--task_free 1: {args.model} needs task boundaries (its COMPATIBILITY lacks 'general-continual')"
        )
