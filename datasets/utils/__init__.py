"""What a dataset class tells the command line: defaults of flags, and flags of its own."""

from __future__ import annotations

import functools
import inspect
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from utils.cli.config import DATASET, view


class DefaultFromArgs:
    """A method whose value is the dataset's default for a flag; callable on the class and on an instance."""

    def __init__(self, flag: str, function: Callable[..., Any]):
        self.flag = flag
        self.function = function.__func__ if isinstance(function, staticmethod) else function
        self.takes_self = bool(inspect.signature(self.function).parameters)
        self.__doc__ = self.function.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[[], Any]:
        subject = (instance if instance is not None else owner,) if self.takes_self else ()
        bound = functools.partial(self.function, *subject)
        bound.flag = self.flag  # type: ignore[attr-defined]
        return bound


def set_default_from_args(flag: str) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: the method's value becomes the default of `--flag` for this dataset.

    The method may be declared with `self`, or, as upstream does, without any parameter.
    """
    return functools.partial(DefaultFromArgs, flag)


def flag_default(flag: str, value: Any) -> Any:
    """The same for a method that does no more than return a value: `get_epochs = flag_default("n_epochs", 50)`."""
    return DefaultFromArgs(flag, lambda: value)


def default_flags(cls: type) -> dict[str, Any]:
    """The flags that a dataset class gives defaults to; a subclass overrides its bases."""
    defaults: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, attribute in vars(base).items():
            if isinstance(attribute, DefaultFromArgs) and inspect.getattr_static(cls, name) is attribute:
                defaults[attribute.flag] = getattr(cls, name)()
    return defaults


def own_parameters(cls: type) -> list[inspect.Parameter]:
    """Parameters of a dataset's constructor beyond `self` and `args`: each is a flag."""
    parameters = list(inspect.signature(cls.__init__, eval_str=True).parameters.values())[2:]  # type: ignore[misc]
    return [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def construct(cls: Any, args: Namespace) -> Any:
    """A dataset of this class, with the values that `args` has for its own parameters."""
    own = view(args, DATASET)
    return cls(args, **{p.name: getattr(own, p.name) for p in own_parameters(cls) if hasattr(own, p.name)})
