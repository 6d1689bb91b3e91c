"""The parser of one command line: the framework's flags and those of its model, dataset and backbone, with defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args, get_origin

import backbone as backbones
import datasets
import models
from utils.cli.config import BACKBONE, DATASET, FRAMEWORK, MODEL, Config, Names, is_selected, selected
from utils.cli.flags import DERIVED, framework_parser
from utils.cli.layers import Layer, accept, apply
from utils.cli.mammoth_flags import add_mammoths_args
from utils.cli.model_flags import add_model_flags, only_model_flags
from utils.cli.parser import ArgumentParser, Taken
from utils.cli.roles import Declared, Role
from utils.cli.selection import choose
from utils.cli.values import binary_to_boolean_type, choice, number
from utils.errors import UsageError


def build_parser(chosen: Config, recorded: Layer) -> tuple[ArgumentParser, Names | None]:
    """The parser, and what each owner calls the flags if two of them have one of the same name.

    Then the model keeps it, or else the dataset or the backbone, and the framework's gets a `run_` before it.
    """
    model, taken = only_model_flags(chosen), Taken()
    taken.add(model.parser.actions_by_dest().values())
    layers = _default_layers(chosen, recorded, model.defaults)
    if not is_selected(chosen, backbones.BACKBONES):
        choose(chosen, backbones.BACKBONES, chosen.backbone or _default_backbone(chosen, layers))
    parameters = _parameters(chosen)
    called = {owner: {p.name: taken.claim(p.name) for p in own} for owner, own in parameters.items()}

    parser = framework_parser(taken)
    add_model_flags(parser, chosen)
    for owner, own in parameters.items():
        _add_signature_flags(parser, f"{owner} {getattr(chosen, owner)}", own, called[owner])
    add_mammoths_args(parser)
    names = _names(parser, model.parser.actions_by_dest().keys(), called)
    _apply(layers, parser, names)
    return parser, names if any(names.of.values()) else None


def _parameters(chosen: Config) -> dict[str, list[inspect.Parameter]]:
    """The parameters of the dataset's constructor and of the backbone that are flags."""
    network = backbones.parameters(selected(chosen, backbones.BACKBONES).load())
    return {
        DATASET: datasets.own_parameters(datasets.get_dataset_class(chosen)),
        BACKBONE: [parameter for name, parameter in network.items() if name not in backbones.FROM_DATASET],
    }


def _names(parser: ArgumentParser, models_own: Iterable[str], called: Mapping[str, Mapping[str, str]]) -> Names:
    derived = {parser.rename(name): Declared(Role.DERIVED) for name in DERIVED}
    ours, kept = parser.renamed, set(models_own)
    of = {FRAMEWORK: ours, MODEL: {name: here for name, here in ours.items() if name not in kept}}
    of |= {owner: {**ours, **own} for owner, own in called.items()}
    changed = {owner: {name: here for name, here in own.items() if name != here} for owner, own in of.items()}
    return Names(changed, parser.declared | derived)


def _apply(layers: list[Layer], parser: ArgumentParser, names: Names) -> None:
    """Each layer's values become defaults, the last one's win."""
    for layer in layers:
        renamed = names.of[layer.owner]
        if layer.recorded:  # under the names of its own command line; a file may be of another model, without the clash
            renamed = {name: here for name, here in renamed.items() if not layer.strict and here not in layer.values}
        layer = layer._replace(values={renamed.get(name, name): value for name, value in layer.values.items()})
        if layer.set_by_model:
            # What a model sets without there being such a flag is an attribute of the flags, as always with argparse.
            known = parser.actions_by_dest()
            parser.set_defaults(**{name: value for name, value in layer.values.items() if name not in known})
            accept(parser, layer.values)
        apply(parser, layer)


def _default_backbone(chosen: Config, layers: list[Layer]) -> str:
    for layer in reversed(layers):
        if layer.values.get("backbone"):
            return str(layer.values["backbone"])
    raise UsageError(f"--backbone is missing: {chosen.dataset} names no default; --list shows all backbones")


def _default_layers(chosen: Config, recorded: Layer, set_by_model: dict[str, Any]) -> list[Layer]:
    from datasets.utils import default_flags

    entry = selected(chosen, models.MODELS)
    preset, preset_file = models.read_model_config(
        entry.presets, chosen.model_config or "default", chosen.dataset, chosen.buffer_size, chosen.plugin
    )
    named = preset.pop("dataset_config", None)
    chosen.dataset_config = chosen.dataset_config or named
    _, dataset_flags, dataset_file = datasets.read_dataset_config(chosen.dataset, chosen.dataset_config, chosen.plugin)
    # In a checkout of Mammoth a preset may hold values that only the model knows what to do with (lr: 0 of GDumb).
    of_plugin = models.own_config_file(chosen.model, chosen.plugin) is not None
    layers = [
        Layer(f"dataset {chosen.dataset}", default_flags(datasets.get_dataset_class(chosen))),
        Layer(dataset_file, dataset_flags),
        Layer(f"model {chosen.model}", set_by_model, owner=MODEL, set_by_model=True),
        # What is not ours, but has its name, may lack some flags.
        Layer(
            preset_file, preset, strict=not chosen.plugin and bool(entry.module), owner=MODEL, set_by_model=of_plugin
        ),
    ]
    # A resumed run repeats what it recorded; a handed-over model only gives defaults, below the model's own.
    layers.insert(len(layers) if chosen.resume else 2, recorded)
    return layers


def _add_signature_flags(
    parser: ArgumentParser, title: str, parameters: list[inspect.Parameter], called: Mapping[str, str]
) -> None:
    """One flag per parameter: type from the annotation, else from the default; required without a default."""
    if not parameters:
        return
    group = parser.add_argument_group(title)
    for parameter in parameters:
        required = parameter.default is parameter.empty
        default = None if required else parameter.default
        group.add_argument(
            f"--{called[parameter.name]}",
            type=_flag_type(parameter.annotation, default),
            default=default,
            required=required,
            help=f"parameter of {title}",
        )


def _flag_type(annotation: Any, default: Any) -> Callable[[Any], Any]:
    if get_origin(annotation) is Literal:
        return choice(*get_args(annotation))
    kind = annotation if annotation in (int, float, str, bool) else type(default)
    if kind is bool:
        return binary_to_boolean_type
    return number(kind, 1 if kind is int else None) if kind in (int, float) else str
