"""The flags: their groups, types, ranges and help texts. `utils.cli.parse` merges them with the YAML defaults."""

from __future__ import annotations

import argparse
import re
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any, NoReturn

from utils import binary_to_boolean_type
from utils.errors import UsageError, nearest

__all__ = [
    "ArgumentGroup",
    "ArgumentParser",
    "Namespace",
    "add_framework_args",
    "add_rehearsal_args",
    "binary_to_boolean_type",
    "choice",
    "number",
]

# What flags are called elsewhere, and here. A name that only looks like another one (--noise_rate) is worse than none.
SYNONYMS = {
    other: ours
    for ours, others in {
        "model": "method algorithm strategy learner approach",
        "dataset": "data benchmark",
        "backbone": "net network arch architecture",
        "n_epochs": "epochs epoch num_epochs nb_epochs max_epochs n_epoch",
        "n_iters": "iters iterations steps max_steps n_steps num_steps",
        "lr": "learning_rate learningrate step_size",
        "batch_size": "batch bs train_batch_size mini_batch_size",
        "minibatch_size": "replay_batch_size mem_batch_size memory_batch_size buffer_batch_size",
        "buffer_size": "memory memory_size mem_size mem buffer n_memories replay_size",
        "optimizer": "opt optim",
        "optim_wd": "wd weight_decay",
        "optim_mom": "mom momentum",
        "optim_nesterov": "nesterov",
        "lr_scheduler": "scheduler sched schedule lr_schedule",
        "lr_milestones": "milestones lr_steps decay_epochs",
        "sched_multistep_lr_gamma": "gamma lr_gamma lr_decay",
        "num_filters": "width nf n_filters",
        "seed": "random_seed manual_seed",
        "device": "gpu gpus gpu_id gpu_ids cuda",
        "num_workers": "workers n_workers",
        "base_path": "data_path data_dir data_root root",
        "results_path": "output output_dir out_dir save_dir log_dir logdir results_dir",
        "loadcheck": "load ckpt checkpoint pretrained load_checkpoint",
        "savecheck": "save save_model save_checkpoint",
        "inference_only": "eval evaluate eval_only test_only",
        "permute_classes": "shuffle_classes",
        "wandb_project": "wandb project",
        "wandb_name": "name exp_name run_name",
        "dgc_alpha": "alpha",
    }.items()
    for other in others.split()
}


def synonym(flag: str) -> str | None:
    """The flag that goes by another name elsewhere: `--lr` for `--learning-rate`."""
    ours = SYNONYMS.get(flag.lstrip("-").replace("-", "_").lower())
    return f"--{ours}" if ours else None


NEGATIVE_NUMBER = re.compile(r"(-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|-inf(inity)?|-nan)$", re.IGNORECASE)


class ArgumentParser(argparse.ArgumentParser):
    """argparse without abbreviations, whose errors are one line and name the nearest valid flag."""

    def __init__(self, **kwargs: Any):
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", _HelpFormatter)
        super().__init__(**kwargs)
        self._negative_number_matcher = NEGATIVE_NUMBER  # argparse's own takes `-inf` and `-1e3` for flags

    def error(self, message: str) -> NoReturn:
        missing = message.partition("arguments are required: ")[2]
        if missing:
            raise UsageError(f"missing {missing}: no default is known; give a value on the command line or in a YAML")
        raise UsageError(" ".join(message.split()))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """What every parsing goes through, also that of a subcommand; a flag that is given twice is an error."""
        argv = sys.argv[1:] if args is None else list(args)
        known = self._option_string_actions
        given = [token.partition("=")[0] for token in argv if token.partition("=")[0] in known]
        for flag in given:
            if given.count(flag) > 1 and not isinstance(known[flag], argparse._AppendAction):
                raise UsageError(f"{flag} is given {given.count(flag)} times; give it once")
        return super().parse_known_args(argv, namespace)

    def parse_strictly(self, argv: list[str]) -> Namespace:
        """Parse all of `argv`; a flag that is unknown is an error."""
        if rest := self.unknown(argv):
            flag = rest[0].partition("=")[0]
            if flag.startswith("-"):
                raise UsageError(f"unknown flag {flag}{self._suggestion(flag)}")
            raise UsageError(f"unexpected argument {rest[0]!r}; flags start with --")
        return self.parse_args(argv)

    def _suggestion(self, flag: str) -> str:
        known = self._option_string_actions
        if synonym(flag) in known:
            return f"; did you mean {synonym(flag)!r}?"
        return nearest(flag, known, "; --help beside these flags lists all there are")

    def unknown(self, argv: list[str]) -> list[str]:
        """What is no flag; the values of those that are get checked.

        A required flag is not missed yet: it may be the one that is misspelt.
        """
        required = [action for action in self._actions if action.required]
        try:
            for action in required:
                action.required = False
            return self.parse_known_args(argv)[1]
        finally:
            for action in required:
                action.required = True

    def actions_by_dest(self) -> dict[str, argparse.Action]:
        return {action.dest: action for action in self._actions if action.option_strings}


class _HelpFormatter(argparse.HelpFormatter):
    """Shows defaults where there are any, booleans as the 0 or 1 that the flag takes, and kinds of numbers."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=34, width=110)

    def _get_help_string(self, action: argparse.Action) -> str:
        default, text = action.default, action.help or ""
        if action.required:
            return f"{text} (required)".strip()
        if default is None:
            default = getattr(action.type, "word_for_none", None)
        if default in (None, [], argparse.SUPPRESS):
            return text
        shown = int(default) if isinstance(default, bool) else default
        return f"{text} (default: {shown})".strip().replace("%", "%%")

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return getattr(action.type, "metavar", "NAME")


class ArgumentGroup:
    """What a `get_parser` receives: flags land in one titled group of the help, `set_defaults` is remembered.

    argparse's own groups can't be nested any more (an error from Python 3.14), but models do nest them.
    """

    def __init__(self, parser: ArgumentParser, title: str, defaults: dict[str, Any] | None = None):
        self._parser = parser
        self._group = parser.add_argument_group(title)
        self.defaults: dict[str, Any] = {} if defaults is None else defaults

    def add_argument(self, *args: Any, **kwargs: Any) -> argparse.Action:
        return self._group.add_argument(*args, **kwargs)

    def add_argument_group(self, title: str = "more", *_: Any, **__: Any) -> ArgumentGroup:
        return ArgumentGroup(self._parser, title, self.defaults)

    def set_defaults(self, **defaults: Any) -> None:
        self.defaults.update(defaults)

    def take_over(self, other: argparse.ArgumentParser) -> None:
        """The flags and defaults of another parser, but for those that are here already."""
        for action in other._actions:
            if not self._parser._option_string_actions.keys() & set(action.option_strings):
                self._group._add_action(action)
        self.defaults.update(other._defaults)


def number(
    kind: type,
    low: float | None = None,
    high: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
) -> Callable[[Any], Any]:
    """argparse type: a finite `int` or `float` in [low, high], or strictly above / below a bound."""

    def convert(text: Any) -> Any:
        try:
            value = kind(str(text))
        except ValueError:
            word = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {word}") from None
        bounds = [
            (kind is not int or abs(value) < 2**63, f"less than {2**63}"),
            (low is None or value >= (low or 0), f"at least {low}"),
            (high is None or value <= (high or 0), f"at most {high}"),
            (above is None or value > (above or 0), f"greater than {above}"),
            (below is None or value < (below or 0), f"less than {below}"),
            (abs(value) != float("inf") and value == value, "finite"),
        ]
        for holds, words in bounds:
            if not holds:
                raise argparse.ArgumentTypeError(f"{text} is out of range: it must be {words}")
        return value

    convert.metavar = kind.__name__.upper()  # type: ignore[attr-defined]
    return convert


def choice(*names: str) -> Callable[[Any], str]:
    """argparse type: one of some names, with the nearest one in the error."""

    def convert(text: Any) -> str:
        if str(text) not in names:
            raise argparse.ArgumentTypeError(f"unknown value {str(text)!r}{nearest(str(text), names)}")
        return str(text)

    convert.metavar = "{" + ",".join(names) + "}"  # type: ignore[attr-defined]
    return convert


def class_order(text: Any) -> list[int]:
    """argparse type of `--custom_class_order`: whole numbers separated by commas or dashes."""
    items = text if isinstance(text, list) else str(text).replace("-", ",").split(",")
    return [number(int, 0)(item) for item in items]


def schedule(text: Any) -> str | None:
    """argparse type of `--lr_scheduler`; `none` is Python's, as models written for Mammoth expect."""
    return None if str(text).lower() == "none" else choice("multisteplr", "cosine", "linear", "none")(text)


schedule.metavar = "{multisteplr,cosine,linear,none}"  # type: ignore[attr-defined]
schedule.word_for_none = "none"  # type: ignore[attr-defined]  # shown as the default


def milestone(text: Any) -> int | float:
    """argparse type of `--lr_milestones`: a whole number, or a share of a task's length, between 0 and 1."""
    value = number(float, above=0)(text)
    return value if value < 1 else number(int, 1)(text)


Add = Callable[..., argparse.Action]


def add_framework_args(parser: ArgumentParser) -> None:
    """All flags that don't depend on the model, the dataset or the backbone."""
    _selection(parser.add_argument_group("selection").add_argument)
    _experiment(parser.add_argument_group("experiment").add_argument)
    _fitting(parser.add_argument_group("fitting and validation").add_argument)
    _optimizer(parser.add_argument_group("optimizer and learning-rate schedule").add_argument)
    _management(parser.add_argument_group("management").add_argument)
    _durability(parser.add_argument_group("checkpoints and resuming").add_argument)
    _wandb(parser.add_argument_group("wandb").add_argument)


def _selection(add: Add) -> None:
    add("--model", help="method to train; --list shows all")
    add("--dataset", default="seq-digits", help="split dataset; --list shows all")
    add(
        "--embeddings",
        metavar="FILE",
        help="seq-embeddings: vectors in .npz or .safetensors (embed.py makes them) instead of those shipped",
    )
    add("--backbone", help="network in place of the dataset's own; --list shows all")
    add("--dataset_config", help="YAML of defaults in datasets/configs/<dataset>/, without its ending")
    add(
        "--model_config",
        type=choice("default", "base", "best"),
        default="default",
        help="section of models/config/<model>.yaml; best = the published hyper-parameters for dataset and buffer size",
    )
    add(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE",
        help="Python file with a model, dataset or backbone, as for Mammoth; may be repeated; wins if a name is taken",
    )
    add(
        "--dgc",
        type=binary_to_boolean_type,
        default=False,
        help="put Dynamic Gradient Calibration on top of a replay method from elsewhere (ours have it: dgc_*)",
    )
    add("--list", action="store_true", default=argparse.SUPPRESS, help="print models, datasets and backbones, and exit")


def _experiment(add: Add) -> None:
    boolean = binary_to_boolean_type
    add("--lr", type=number(float, above=0), required=True, help="learning rate")
    add("--batch_size", type=number(int, 1), required=True, help="images per step from the stream")
    add("--joint", type=boolean, default=False, help="train on all tasks at once (an upper bound)")
    add(
        "--task_free",
        type=boolean,
        default=False,
        help="hide the task boundaries from the model: no task hooks, no task index",
    )
    add(
        "--task_free_lr_restart",
        type=boolean,
        default=False,
        help="task-free: restart the learning-rate schedule at the hidden boundaries (this leaks them); "
        "0 keeps the rate constant",
    )
    add("--n_tasks", type=number(int, 1), help="number of tasks, all counted, into which the classes are cut")
    add(
        "--classes_first_task",
        type=number(int, 1),
        help="classes of the first task; the others share the rest evenly (--n_tasks 11 --classes_first_task 50)",
    )
    add("--permute_classes", type=boolean, default=False, help="random class order, from the seed")
    add(
        "--custom_class_order",
        type=class_order,
        metavar="N,N,…",
        help="new label of each original class, comma or dash separated; lists every class",
    )
    add(
        "--label_perc",
        "--label_perc_by_task",
        "--lpt",
        type=number(float, 0, 1, above=0),
        default=1.0,
        help="part of each task's training images that has labels; only methods that say cssl get the others",
    )
    add(
        "--label_perc_by_class", "--lpc", type=number(float, 0, 1, above=0), default=1.0, help="the same for each class"
    )
    add(
        "--noise_rate",
        type=number(float, 0, 1),
        default=0.0,
        help="part of the training labels that are wrong, before tasks are cut out; true_labels come with the batches",
    )
    add("--seed", type=number(int, 0, 2**63 - 1), help="seed of everything random; drawn and recorded if absent")


def _fitting(add: Add) -> None:
    boolean = binary_to_boolean_type
    add(
        "--fitting_mode",
        type=choice("epochs", "iters"),
        default="epochs",
        help="what ends a task's training: --n_epochs or --n_iters",
    )
    add("--n_epochs", type=number(int, 0), required=True, help="epochs per task; 0 skips training")
    add("--n_epochs_first", type=number(int, 1), help="epochs of the first task; --n_epochs by default")
    add("--n_iters", type=number(int, 1), help="steps per task with --fitting_mode iters")
    add(
        "--validation",
        type=number(float, above=0, below=100),
        help="part of each class of the training data that replaces the test set during the run: a fraction below 1, "
        "else percent; the real test set is evaluated at the end",
    )
    add("--eval_epochs", type=number(int, 1), help="also evaluate every so many epochs within a task")
    add(
        "--enable_other_metrics",
        type=boolean,
        default=False,
        help="also measure forward transfer, which costs extra evaluations",
    )
    add(
        "--dgc_diagnostics",
        type=number(int, 0),
        default=0,
        help="before every so many steps from task 2 on, measure how far replay's gradients are from the true gradient "
        "of all past data; 0: never. It costs a pass over that data each time, and leaves the training as it is",
    )
    add("--start_from", type=number(int, 0), help="first task to train, counted from 0; earlier ones are skipped")
    add("--stop_after", type=number(int, 1), help="number of tasks after which the run ends")


def _optimizer(add: Add) -> None:
    boolean = binary_to_boolean_type
    add("--optimizer", type=choice("sgd", "adam", "adamw"), default="sgd", help="optimizer")
    add("--optim_wd", type=number(float, 0), default=0.0, help="weight decay")
    add("--optim_mom", type=number(float, 0, below=1), default=0.0, help="momentum (sgd)")
    add("--optim_nesterov", type=boolean, default=False, help="Nesterov momentum (sgd)")
    add("--drop_last", type=boolean, default=False, help="drop an epoch's last, short batch")
    add("--lr_scheduler", type=schedule, help="restarted at each task; none: a constant rate")
    add("--scheduler_mode", type=choice("epoch", "iter"), default="epoch", help="what the schedule counts")
    add(
        "--lr_milestones",
        type=milestone,
        nargs="*",
        default=[],
        metavar="N",
        help="multisteplr: when to decay, in units of --scheduler_mode; a number below 1 is a share of the task",
    )
    add(
        "--lr_milestones_first",
        type=milestone,
        nargs="*",
        metavar="N",
        help="multisteplr: when to decay in the first task; --lr_milestones by default",
    )
    add("--sched_multistep_lr_gamma", type=number(float, above=0), default=0.1, help="multisteplr: factor")


def _management(add: Add) -> None:
    boolean = binary_to_boolean_type
    add("--base_path", default=None, metavar="DIR", help="root of datasets and results (default: data/ of the project)")
    add("--results_path", default="results", metavar="DIR", help="where run directories go, relative to --base_path")
    add(
        "--device",
        metavar="DEVICE",
        help="cpu, cuda, cuda:1, mps, or GPU ids (0,1: the one with most free memory); "
        "default: CUDA, else MPS, else CPU",
    )
    add(
        "-O",
        "--code_optimization",
        type=number(int, 0, 3),
        default=0,
        metavar="{0,1,2,3}",
        help="0 plain float32; 1 TF32 and channels_last; 2 also bf16 autocast; 3 also torch.compile",
    )
    add(
        "--deterministic",
        type=boolean,
        default=False,
        help="refuse GPU kernels that are not reproducible (CPU runs always are)",
    )
    add("--notes", metavar="TEXT", help="free text, stored with the results")
    add(
        "--num_workers",
        type=number(int, 0),
        default=0,
        help="worker processes of loaders that datasets and models from elsewhere make; ours need none",
    )
    add("--non_verbose", type=boolean, default=False, help="no progress bar")
    add("--debug_mode", type=boolean, default=False, help="a few steps per epoch, wandb off")
    add("--inference_only", type=boolean, default=False, help="evaluate without training (see --loadcheck)")


def _durability(add: Add) -> None:
    boolean = binary_to_boolean_type
    add("--resume", metavar="RUN", help="go on with the run in this directory (the same command does so, too)")
    add("--overwrite", type=boolean, default=False, help="throw an earlier run of this command away")
    add(
        "--checkpoint_minutes", type=number(float, 0), default=5.0, help="time between checkpoints; 0: only after tasks"
    )
    add("--checkpoint_every", type=number(int, 0), default=0, help="steps between checkpoints; 0: by time only")
    add(
        "--savecheck",
        type=choice("last", "task"),
        help="save the trained model for other runs, at the end or after each task",
    )
    add("--loadcheck", metavar="FILE", help="start from a model saved by --savecheck")
    add(
        "--checkpoint_path",
        default=None,
        metavar="DIR",
        help="where --savecheck writes (default: checkpoints/ of the project)",
    )
    add("--ckpt_name", help="prefix of the names that --savecheck writes")


def _wandb(add: Add) -> None:
    add(
        "--nowand",
        type=binary_to_boolean_type,
        default=None,
        help="1 switches wandb off; it is on if a project is known",
    )
    add("--wandb_project", help="project; or the environment's WANDB_PROJECT")
    add("--wandb_entity", help="entity; or the environment's WANDB_ENTITY")
    add("--wandb_name", help="name of the run (the model's by default)")
    add("--wandb_group", help="group of the run (the dataset's name by default)")
    add("--wandb_tags", nargs="*", default=[], metavar="TAG", help="tags of the run")


# Flags of Mammoth that have one value here (None: that can only be left out), and what to say to any other.
_NO_CACHE = "nothing is cached: wrong labels follow from --seed"
MAMMOTHS: dict[str, tuple[Any, str]] = {
    "noise_type": ("symmetric", "only symmetric noise is known here"),
    "disable_noisy_labels_cache": (True, _NO_CACHE),
    "cache_path_noisy_labels": (None, _NO_CACHE),
    "validation_mode": ("current", "every task has a test set of its own, from which all metrics are made"),
    "eval_future": (False, "a task is evaluated once it was trained; --enable_other_metrics 1 looks ahead by one task"),
    "custom_task_order": (None, "give the order of the classes by --custom_class_order"),
    "class_order": (None, "give it by --custom_class_order"),
    "distributed": ("no", "a run uses one device; reproduce.py runs several at once"),
    "disable_log": (False, "a run is resumed from what it writes; --results_path puts that elsewhere"),
    "save_checkpoint_mode": ("safe", "pickled objects are neither written nor read"),
    "save_after_interrupt": (True, "a signal always leaves a checkpoint, from which the same command goes on"),
    "load_best_args": (None, "use --model_config best"),
    "ignore_other_metrics": (True, "use --enable_other_metrics 1"),
    "csv_log": (True, "accuracy.csv and per_class.csv are always written"),
    "tensorboard": (False, "there is metrics.jsonl, and wandb"),
    "transform_type": (None, "this dataset has no choice of augmentations"),
    **{
        f"early_stopping_{part}": (None, "there is no early stopping; use --n_epochs and --eval_epochs")
        for part in ("patience", "metric", "freq", "epsilon")
    },
}


def add_mammoths_args(parser: ArgumentParser) -> None:
    """After all others, because a dataset or a model may have a flag of such a name itself. Models may read them."""
    for name, (value, reason) in MAMMOTHS.items():
        if f"--{name}" not in parser._option_string_actions:
            default = argparse.SUPPRESS if value is None else value
            parser.add_argument(  # some were switches without a value, long ago
                f"--{name}", nargs="?", const="1", type=_only(value, reason), default=default, help=argparse.SUPPRESS
            )


def _only(value: Any, reason: str) -> Callable[[Any], Any]:
    def convert(text: Any) -> Any:
        given = str(text).lower() in ("1", "true", "yes", "t", "y") if isinstance(value, bool) else text
        if given != value:
            raise argparse.ArgumentTypeError(f"{text} is not possible: {reason}")
        return value

    return convert


def add_rehearsal_args(parser: Any) -> None:
    """The flags of every method with a replay buffer."""
    group = parser.add_argument_group("rehearsal")
    group.add_argument(
        "--buffer_size", type=number(int, 1), required=True, help="images that the replay buffer may hold"
    )
    group.add_argument(
        "--minibatch_size", type=number(int, 1), help="images per step from the buffer; --batch_size by default"
    )
