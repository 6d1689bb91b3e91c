"""The flags of Dynamic Gradient Calibration, and which of them contradict each other."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from typing import Any

from models.utils.dgc_estimators import ESTIMATORS, is_task_free


def _switch(text: Any) -> int:
    """Python hands booleans over by their names."""
    return int({"true": 1, "false": 0}.get(str(text).lower(), text))


def _number(kind: Callable[[Any], Any], holds: Callable[[Any], bool], words: str) -> Callable[[str], Any]:
    def convert(text: Any) -> Any:
        if text is None:  # Mammoth passes defaults through here, too
            return None
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not holds(value):
            raise argparse.ArgumentTypeError(f"{text} is out of range: it must be {words}")
        return value

    convert.metavar = kind.__name__.upper()  # type: ignore[attr-defined]  # what a help text may show
    return convert


def add_dgc_args(parser: Any) -> None:
    """Equation numbers are those of the paper."""
    binary = _number(_switch, lambda v: v in (0, 1), "0 or 1")
    binary.metavar = "{0,1}"  # type: ignore[attr-defined]
    parser.add_argument("--dgc_estimator", choices=list(ESTIMATORS), default="sampled",
        help="form of the correction: sampled = Algorithm 1 (eqs. 11, 12, 14), closed = its mean over replay batches, "
        "released = the code published with the paper")  # fmt: skip
    parser.add_argument("--dgc_alpha", type=_number(float, lambda v: 0 <= v <= 1, "in [0, 1]"), default=1e-3,
        help="α of eq. 15, the share of the calibrated estimate; 0 is the base method")  # fmt: skip
    parser.add_argument("--dgc_m", type=_number(int, lambda v: v >= 1, "a whole number, at least 1"), default=200,
        help="m, the number of steps between updates of Γ' and θ̃ (eq. 12)")  # fmt: skip
    parser.add_argument("--dgc_view", choices=["same", "plain"], default=None,
        help="sampled: take the gradients at θ̃ on the base's own augmented pass in train mode (same, the default), "
        "or on un-augmented images in eval mode (plain), as closed does")  # fmt: skip
    parser.add_argument("--dgc_stage", choices=["batch", "buffer"], default="batch",
        help="sampled: update Γ' (eq. 12) by one replay batch, as printed, or by the whole buffer")  # fmt: skip
    parser.add_argument("--dgc_current", type=binary, default=0,
        help="1 adds the SVRG term of the current task, G(T_t;θ̃) − g(x_t;θ̃), with the weight that the base gives to "
        "the stream (eq. 10); sampled only")  # fmt: skip
    parser.add_argument("--dgc_decay", type=_number(float, lambda v: v > 0, "greater than 0"), default=None,
        help="let the correction decay as exp(−k/TAU) over the steps k of a task; constant by default")  # fmt: skip
    parser.add_argument("--dgc_params", choices=["all", "head", "body", "frozen"], default="all",
        help="correct all parameters, only the classifier's, only the others, or the classifier's provided that it "
        "stands on frozen features, where the calibrator does not go stale")  # fmt: skip


def check_dgc_args(args: argparse.Namespace) -> None:
    """Refuse what contradicts itself (ValueError with one line). An estimator says itself what it accepts."""
    name, kind = args.dgc_estimator, ESTIMATORS[args.dgc_estimator]
    task_free, fill = is_task_free(args), getattr(args, "buffer_fill", "")
    fixed = f"--dgc_estimator {name} needs a buffer that stays as it is during a task: "
    problems = [
        (kind.FIXED_BUFFER and task_free, fixed + "a task-free run has no tasks; use --dgc_estimator sampled"),
        (kind.FIXED_BUFFER and fill == "stream", fixed + "use --buffer_fill task_end"),
        (args.dgc_view not in (None, *kind.VIEWS),
         f"--dgc_view {args.dgc_view} is for --dgc_estimator sampled; {name} {kind.NO_OTHER_VIEW}"),
        (args.dgc_current and not kind.STAGES,
         f"--dgc_current 1 is a term of --dgc_estimator sampled; {name} has none"),
        (args.dgc_current and not args.dgc_alpha,
         "--dgc_alpha 0 is the base method alone, without the term of --dgc_current 1: leave one of the two out"),
        (args.dgc_current and task_free,
         "--dgc_current 1 is zero in a task-free run, where each batch is a task: leave it out"),
        (args.dgc_decay and task_free, "--dgc_decay counts the steps of a task: a task-free run has no tasks"),
        (args.dgc_stage == "buffer" and not kind.STAGES,
         f"--dgc_stage buffer is for --dgc_estimator sampled; {name} has no such stage"),
    ]  # fmt: skip
    for wrong, message in problems:
        if wrong:
            raise ValueError(message)
    if args.dgc_m == 1:
        logging.warning(
            "--dgc_m 1: Γ' then takes in the noise of a batch at every step; the paper's own table collapses"
        )
