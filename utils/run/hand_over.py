"""Going on where the tasks of another run end (`--loadcheck FILE --start_from N`).

A method keeps more than weights and memory: Γ', anchors, projectors, counters. If the file is of the run that this one
continues, all of that comes from it, and the run goes on as that one would have. From any other file come weights and
memory only, and the rest is what the hooks of the tasks passed over make of them, which a warning says.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from utils.checkpoints import fitting_weights, read_hand_over
from utils.cli.flags import role
from utils.cli.roles import Role
from utils.errors import UserError
from utils.run.identity import difference


def continued_state(path: str, start_from: int, config: dict[str, Any], training: bool) -> dict[str, Any] | None:
    """What the trainer has put into a file, if it is of the same run and this is its next task."""
    state = read_hand_over(Path(path)).get("state")
    if not isinstance(state, dict) or not isinstance(state.get("config"), dict) or "tasks" not in state:
        reason = "the file holds weights and memory only"
    elif state["tasks"] != start_from:
        reason = f"it is of --start_from {state['tasks']}, and this run has {start_from}"
    elif changes := difference(*(_of_all_tasks(c) for c in (state["config"], config))):
        reason = f"other settings: {changes}"
    else:
        return state
    if training:
        logging.warning(
            "%s: only weights and memory are taken over (%s); what the method keeps beside them is made anew from the "
            "tasks passed over, without training on these",
            path,
            reason,
        )
    return None


def _of_all_tasks(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that a run and its continuation share: all but those that say where each begins and ends."""
    return {name: v for name, v in config.items() if role(name) is not Role.RANGE and name != "loadcheck_sha256"}


def load_weights(path: str, model: Any) -> None:
    """Give the hooks of the tasks passed over the trained network, unless it gets its final form only by them."""
    try:
        target, fitting = fitting_weights(Path(path), model, read_hand_over(Path(path)))
    except UserError:
        return  # if it does not fit afterwards either, that is said then
    target.load_state_dict(fitting)
