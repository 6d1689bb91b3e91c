"""Both ends of handing a trained method from one run to another (`--savecheck`, `--loadcheck FILE --start_from N`).

A method keeps more than weights and buffer: Γ', anchors, projectors, counters. If the file is of the run that this one
continues, all of that comes from it, and the run trains its next task as that one would have. From any other file come
weights and buffer only, and the rest is what the hooks of the skipped tasks make of them, which a warning says.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from utils.checkpoints import fitting_weights, read_mammoth_checkpoint, save_mammoth_checkpoint
from utils.cli.config import declared_in
from utils.cli.roles import Role
from utils.errors import UserError
from utils.resume.store import misfits_explained
from utils.run.identity import difference
from utils.run.session import Session
from utils.status import say


def hand_over(session: Session) -> None:
    """Write the method as it is at the end of the current task."""
    task, accuracies = session.position.task, session.accuracies
    rows = [[row[~np.isnan(row)].tolist() for row in matrix] for matrix in (accuracies.class_il, accuracies.task_il)]
    saved = save_mammoth_checkpoint(
        task,
        session.end,
        session.args,
        session.model,
        rows,
        session.model.opt.state_dict() if session.model.opt is not None else None,
        session.method.schedule.state_dict()["own"],
        state={"tasks": task + 1, "config": session.directory.config, **session.method.state_dict()},
    )
    say(f"Saved for --loadcheck: {saved}")


def take_over(session: Session) -> bool:
    """Continue the run that wrote the `--loadcheck` file.

    False if that is another run: then the hooks of the skipped tasks come next, for which the weights are loaded.
    """
    args, task = session.args, session.position.task
    state = _continued_state(args, task, session.directory.config)
    if state is None:
        _load_weights(args.loadcheck, session.model)
        return False
    loaders = session.data_so_far()
    with misfits_explained(args.loadcheck):
        session.method.load_state_dict(state, session.steps_per_epoch(), task)
    del loaders
    return True


def _continued_state(args: Namespace, start_from: int, config: dict[str, Any]) -> dict[str, Any] | None:
    """What `hand_over` has put into a file, if it is of the same run and this is its next task."""
    state = read_mammoth_checkpoint(Path(args.loadcheck)).get("state")
    if not isinstance(state, dict) or not isinstance(state.get("config"), dict) or "tasks" not in state:
        reason = "the file holds weights and buffer only"
    elif state["tasks"] != start_from:
        reason = f"it is of --start_from {state['tasks']}, and this run has {start_from}"
    elif changes := difference(*(_of_all_tasks(c, args) for c in (state["config"], config))):
        reason = f"other settings: {changes}"
    else:
        return state
    if not args.inference_only:
        logging.warning(
            "%s: only weights and buffer are taken over (%s); what the method keeps beside them is made anew from the "
            "skipped tasks, without training on these",
            args.loadcheck,
            reason,
        )
    return None


def _of_all_tasks(config: dict[str, Any], args: Namespace) -> dict[str, Any]:
    """The settings that a run and its continuation share: all but those that say where each begins and ends."""
    of_this_part = {name for name in config if declared_in(args, name).role is Role.RANGE} | {"loadcheck_sha256"}
    return {name: value for name, value in config.items() if name not in of_this_part}


def _load_weights(path: str, model: Any) -> None:
    """Give the hooks of the skipped tasks the trained network, unless it gets its final form only by them."""
    try:
        target, fitting = fitting_weights(Path(path), model, read_mammoth_checkpoint(Path(path)))
    except UserError as error:
        if getattr(model.args, "dgc_alpha", 0) and not model.args.inference_only:
            raise UserError(
                f"{error}. DGC needs weights that fit before the skipped tasks, because it takes gradients of these: "
                "continue the run that wrote the file, or use --dgc_alpha 0"
            ) from error
        return  # if it does not fit afterwards either, that is said then
    target.load_state_dict(fitting)
