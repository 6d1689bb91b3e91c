"""`--body_lr_scale`: from the second task on, all layers below the classifier learn more slowly, or not at all."""

from __future__ import annotations

from typing import Any

from torch import nn

from backbone.mammoth_backbone import MammothBackbone
from utils.cli.config import FRAMEWORK, view
from utils.errors import UsageError


def body_of(net: nn.Module, parameters: list[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """These parameters parted in the classifier's and the others."""
    head = {id(p) for p in net.classifier.parameters()}  # type: ignore[operator, union-attr]
    return [p for p in parameters if id(p) in head], [p for p in parameters if id(p) not in head]


def check_body_lr_scale(model: Any) -> None:
    """Refuse what has no body that could learn more slowly, before anything is trained."""
    flags, net = view(model.args, FRAMEWORK), model.net
    scale = getattr(flags, "body_lr_scale", None)
    if scale is None:
        return
    words = f"--body_lr_scale {scale}"
    if flags.task_free:
        raise UsageError(f"{words} holds from the second task on: a task-free run has no tasks; leave it out")
    if hasattr(net, "extractors"):
        raise UsageError(f"{words}: {model.NAME} freezes its extractors by itself; leave it out")
    if not isinstance(net, MammothBackbone) or not hasattr(net, "classifier"):
        raise UsageError(f"{words} needs a network of this project with a `classifier`; leave it out")
    if not body_of(net, list(net.parameters()))[1]:
        raise UsageError(f"{words}: --backbone {flags.backbone} is a classifier alone; leave it out")


def scaled_groups(model: Any, parameters: list[Any], lr: float) -> list[Any]:
    """What the optimizer is given in the present task: the head first, whose learning rate is the one reported."""
    scale = getattr(view(model.args, FRAMEWORK), "body_lr_scale", None)
    if scale is None or not model.current_task:
        return parameters
    head, body = body_of(model.net, parameters)
    return [{"params": head}, {"params": body, "lr": lr * scale}] if scale else head


def rates_of(optimizer: Any) -> dict[Any, float]:
    """The present learning rate of each parameter: body and head may differ."""
    return {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}


def freeze_body(model: Any) -> None:
    """At the start of a task after the first, with `--body_lr_scale 0`: body and BatchNorm stay as they are."""
    if getattr(view(model.args, FRAMEWORK), "body_lr_scale", None) == 0 and model.current_task:
        for parameter in body_of(model.net, list(model.net.parameters()))[1]:
            parameter.requires_grad_(False)
        model.net.body_frozen = True
        model.net.train(model.net.training)
