"""`--n_tasks` and `--classes_first_task`: how a dataset's classes are cut into tasks."""

from __future__ import annotations

from typing import Any

from utils.errors import UsageError


def task_fields(cls: Any, n_tasks: int | None, first: int | None) -> dict[str, Any]:
    """`N_TASKS` and `N_CLASSES_PER_TASK` of a dataset class under these flags; nothing without them.

    All tasks have equally many classes, except the first if its number is given.
    """
    if n_tasks is None and first is None:
        return {}
    flag = f"--n_tasks {n_tasks}" if n_tasks else f"--classes_first_task {first}"
    if cls.SETTING in ("domain-il", "general-continual"):
        raise UsageError(f"{flag}: the tasks of {cls.NAME} ({cls.SETTING}) have all classes; leave it out")
    n_tasks, n_classes = n_tasks or cls.N_TASKS, cls.N_CLASSES
    if n_tasks > n_classes:
        raise UsageError(f"{flag}: {cls.NAME} has {n_classes} classes, fewer than tasks; use at most {n_classes} tasks")
    if first is None:
        if n_classes % n_tasks:
            raise UsageError(
                f"{flag}: {n_classes} classes of {cls.NAME} make no {n_tasks} equal tasks; use a divisor of "
                f"{n_classes}, or --classes_first_task"
            )
        return {"N_TASKS": n_tasks, "N_CLASSES_PER_TASK": n_classes // n_tasks}
    rest, others = n_classes - first, n_tasks - 1
    if not others or rest < others or rest % others:
        raise UsageError(
            f"--classes_first_task {first}: the other {max(rest, 0)} classes of {cls.NAME} make no {others} equal "
            f"tasks; choose another --n_tasks (it counts all tasks, {n_tasks} now)"
        )
    return {"N_TASKS": n_tasks, "N_CLASSES_PER_TASK": [first] + [rest // others] * others}
