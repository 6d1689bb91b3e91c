"""Everything that a model object holds, as tensors and plain containers, so that a resumed run is exact.

A method writes no code for this. `pack` walks through the object: modules with their parameters, buffers,
gradients and modes, and all other attributes down through nested containers. Each thing has a path, such as
`net.conv1.weight` or `prototypes[3]`; what is met a second time is written as a reference to its path, so that a
list of parameters, an optimizer's groups or two names for one tensor mean the same objects again afterwards.
`unpack` restores into a model fresh from its constructor, in place where the constructor has made the object.
Nothing is pickled: functions, classes and settings come from the constructor, never from a file.
"""

from __future__ import annotations

import argparse
import copy
import logging
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from utils.errors import UserError
from utils.resume.array_tensor import ArrayTensor
from utils.resume.rng import generator_state, set_generator_state
from utils.resume.store import SCALARS

# Attributes that the framework gives to every model and restores by itself.
FRAMEWORK = frozenset(
    {"args", "dataset", "device", "loss", "transform", "original_transform", "normalization_transform"}
)
SEQUENCES: dict[str, Any] = {kind.__name__: kind for kind in (list, tuple, set, frozenset, deque)}
MAPPINGS: dict[str, Any] = {kind.__name__: kind for kind in (dict, OrderedDict, Counter, defaultdict)}
FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (dict, list, set, int, float, deque, Counter)}
GENERATORS: dict[str, Any] = {
    "torch": torch.Generator,
    "numpy": np.random.Generator,
    "numpy_legacy": np.random.RandomState,
    "python": random.Random,
}
SETTINGS = (ModuleType, argparse.Namespace, logging.Logger, torch.memory_format)
PLAIN_OBJECTS: dict[str, type] = {}
MODULE_INTERNALS = frozenset(vars(nn.Module()))
REBUILT: Any = object()  # stands for what the constructor makes again
Code = dict[str, Any]


def saved_by_attributes(cls: type) -> type:
    """Decorator for a class whose objects are no more than their attributes: a model may hold one."""
    PLAIN_OBJECTS[_class_name(cls)] = cls
    return cls


def pack(model: nn.Module, skip: frozenset[str] = FRAMEWORK, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The state of a model, loadable with `weights_only`; `['uncaptured']` names what is missing in it.

    The tensors are the model's own, not copies: write them before the next step. What is `known`, by names of the
    caller's choice, is not saved: there must be an equivalent under the same name when the state is unpacked.
    """
    packer = _Packer(model, skip, known or {})
    code = packer.encode(model, "")
    return {"model": code, "uncaptured": packer.uncaptured}


def unpack(model: nn.Module, packed: dict[str, Any], known: Mapping[str, Any] | None = None) -> None:
    """Bring a model fresh from its constructor into a packed state, whose tensors become the model's own."""
    if packed["uncaptured"]:
        logging.warning("resume is not exact: the checkpoint lacks %s", ", ".join(packed["uncaptured"]))
    try:
        _Unpacker(model, known or {}).decode(packed["model"], "", model)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UserError(
            f"cannot resume: the checkpoint does not fit this model ({reason}); --overwrite 1 starts again"
        ) from error


class _Uncapturable(Exception):
    """Something that can be neither written as plain data nor left to the constructor."""


def _class_name(value: object) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _item_path(path: str, key: Any, position: int) -> str:
    return f"{path}[{key!r}]" if isinstance(key, str | int) else f"{path}[#{position}]"


def _memory(tensor: Tensor) -> int | None:
    """What tensors that share memory have in common; None where nothing can be shared."""
    return tensor.untyped_storage().data_ptr() or None if tensor.layout == torch.strided else None


def _network_memory(model: nn.Module) -> set[int | None]:
    return {_memory(tensor) for tensor in (*model.parameters(), *model.buffers())} - {None}


def _kind(value: object) -> str:
    """Which pair of `pack_…` and `unpack_…` handles a value; exact types where a subclass may hold more."""
    exact = {"sequence": SEQUENCES, "mapping": MAPPINGS, "generator": GENERATORS}
    for kind, types in exact.items():
        if type(value) in types.values():
            return kind
    if type(value) in (Tensor, nn.Parameter, ArrayTensor):
        return "tensor"
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return "array"
    for kind, base in (("module", nn.Module), ("optimizer", Optimizer), ("scheduler", LRScheduler)):
        if isinstance(value, base):
            return "rebuilt" if getattr(value, "stateless", False) else kind  # some transforms are modules
    if _class_name(value) in PLAIN_OBJECTS:
        return "plain_object"
    if hasattr(type(value), "state_dict") and hasattr(type(value), "load_state_dict"):
        return "stateful"
    return "rebuilt" if callable(value) or isinstance(value, SETTINGS) else "unknown"


class _Packer:
    def __init__(self, model: nn.Module, skip: frozenset[str], known: Mapping[str, Any]):
        self.model, self.skip, self.network = model, skip, _network_memory(model)
        # id → (object, path). Holding the object keeps its id from being given to another one.
        self.memo: dict[Any, tuple[Any, str]] = {id(value): (value, name) for name, value in known.items()}
        self.uncaptured: list[str] = []

    def encode(self, value: Any, path: str) -> Any:
        if type(value) in SCALARS:
            return value
        if id(value) in self.memo:
            return {"kind": "reference", "path": self.memo[id(value)][1]}
        kind = _kind(value)
        if kind == "rebuilt":
            return REBUILT
        if kind == "unknown":
            raise _Uncapturable(f"{path} ({_class_name(value)})")
        if type(value) not in (tuple, frozenset):  # immutable: who else holds it makes no difference
            self.memo[id(value)] = (value, path)
        body = getattr(self, f"pack_{kind}")(value, path)
        if body is REBUILT:
            self.memo.pop(id(value), None)
            return REBUILT
        return {"kind": kind, **body}

    def attributes(self, values: Mapping[str, Any], path: str) -> Code:
        codes = {}
        for name, value in values.items():
            known = len(self.memo)
            try:
                codes[name] = self.encode(value, _join(path, name))
            except _Uncapturable as reason:
                self.uncaptured.append(str(reason))
                while len(self.memo) > known:  # nothing may refer to a part of what is not written
                    self.memo.popitem()
        return {name: code for name, code in codes.items() if code is not REBUILT}

    def items(self, values: Iterable[Any], paths: Iterable[str], path: str) -> Any:
        codes = [self.encode(value, where) for value, where in zip(values, paths, strict=True)]
        rebuilt = sum(code is REBUILT for code in codes)
        if 0 < rebuilt < len(codes):
            raise _Uncapturable(f"{path} (functions or classes among data)")
        return REBUILT if rebuilt else codes

    def pack_sequence(self, value: Any, path: str) -> Any:
        codes = self.items(value, (f"{path}[{position}]" for position in range(len(value))), path)
        body = {"class": type(value).__name__, "items": codes, "maxlen": getattr(value, "maxlen", None)}
        return codes if codes is REBUILT else body

    def pack_mapping(self, value: Any, path: str) -> Any:
        factory = getattr(value, "default_factory", None)
        if factory is not None and factory not in FACTORIES.values():
            raise _Uncapturable(f"{path} (defaultdict of {factory})")
        # Keys are encoded too: state is often keyed by the parameter itself.
        keys = self.items(value, (f"{path}.key[{position}]" for position in range(len(value))), path)
        paths = (_item_path(path, key, position) for position, key in enumerate(value))
        codes = REBUILT if keys is REBUILT else self.items(value.values(), paths, path)
        body = {"class": type(value).__name__, "factory": factory and factory.__name__}
        return codes if codes is REBUILT else {**body, "keys": keys, "values": codes}

    def pack_tensor(self, value: Tensor, path: str) -> Code:
        memory = _memory(value)
        if (memory, value.dtype) in self.memo and type(value) is Tensor and not value.requires_grad:
            shape = {"size": value.size(), "stride": value.stride(), "offset": value.storage_offset()}
            return {"view_of": self.memo[memory, value.dtype][1], **shape}
        if memory is not None and value.nbytes == value.untyped_storage().nbytes():
            self.memo.setdefault((memory, value.dtype), (value, path))
        return {
            "data": value.detach(),
            "in_network": memory in self.network,
            "on_host": value.device.type == "cpu",
            "parameter": isinstance(value, nn.Parameter),
            "array": isinstance(value, ArrayTensor),
            "requires_grad": value.is_leaf and value.requires_grad,
            # Needed by methods that accumulate over steps or zero in place: None and 0 step differently.
            "grad": self.encode(value.grad, f"{path}.grad") if value.is_leaf else None,
        }

    def pack_array(self, value: Any, path: str) -> Code:
        if value.dtype.kind in "OV":
            raise _Uncapturable(f"{path} (array of {value.dtype})")
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        body = {"data": value.tobytes(order), "dtype": value.dtype.str, "shape": list(value.shape)}
        return {**body, "order": order, "scalar": isinstance(value, np.generic)}

    def pack_generator(self, value: Any, path: str) -> Code:
        library = next(name for name, kind in GENERATORS.items() if type(value) is kind)
        on_host = library != "torch" or value.device.type == "cpu"
        state = self.encode(generator_state(value), f"{path}.state")
        return {"library": library, "on_host": on_host, "state": state}

    def pack_module(self, root: nn.Module, path: str) -> Code:
        seen = {value for value, _ in self.memo.values() if isinstance(value, nn.Module)} - {root}
        if root is self.model:
            seen |= {module for name, module in root.named_children() if name in self.skip}
        seen |= {module for module in root.modules() if _kind(module) == "rebuilt"}
        modules = dict(root.named_modules(memo=seen, prefix=path))
        self.memo |= {id(module): (module, name) for name, module in modules.items()}
        # Tensors before attributes: what an attribute refers to is then found at its place in the network.
        bodies = {name: self._module_body(module, name) for name, module in modules.items()}
        for name, module in modules.items():
            skip = MODULE_INTERNALS | (self.skip if module is self.model else frozenset())
            own = {attribute: value for attribute, value in vars(module).items() if attribute not in skip}
            hooks = any(vars(module)[key] for key in MODULE_INTERNALS if key.endswith("hooks"))
            codes = self.attributes(own, name)
            bodies[name] |= {"attributes": codes, "complete": not hooks and codes.keys() == own.keys()}
        return {"modules": bodies}

    def _module_body(self, module: nn.Module, path: str) -> Code:
        def place(child: nn.Module | None) -> str | bool | None:
            """Path of a child; True for one that stays as the constructor made it."""
            return child if child is None else self.memo.get(id(child), (child, True))[1]

        return {
            "class": _class_name(module),
            "training": module.training,
            "names": [*vars(module), *module._parameters, *module._buffers],
            "children": {name: place(child) for name, child in module._modules.items()},
            "transient": sorted(module._non_persistent_buffers_set),
            "_parameters": self.attributes(module._parameters, path),
            "_buffers": self.attributes(module._buffers, path),
        }

    def pack_optimizer(self, value: Optimizer, path: str) -> Code:
        state = {name: self.encode(part, f"{path}.{name}") for name, part in value.__getstate__().items()}
        return {"class": _class_name(value), "complete": True, "state": state}

    def pack_scheduler(self, value: LRScheduler, path: str) -> Code:
        codes = self.attributes(vars(value), path)
        complete = codes.keys() == vars(value).keys()
        return {"class": _class_name(value), "complete": complete, "attributes": codes}

    def pack_plain_object(self, value: Any, path: str) -> Code:
        codes = {name: self.encode(part, _join(path, name)) for name, part in vars(value).items()}
        if missing := [name for name, code in codes.items() if code is REBUILT]:
            raise _Uncapturable(f"{path}.{missing[0]} ({_class_name(getattr(value, missing[0]))})")
        return {"class": _class_name(value), "attributes": codes}

    def pack_stateful(self, value: Any, path: str) -> Code:
        state = self.encode(value.state_dict(), f"{path}.state")
        return {"class": _class_name(value), "complete": False, "state": state}


class _Unpacker:
    def __init__(self, model: nn.Module, known: Mapping[str, Any]):
        self.network = _network_memory(model)
        first = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.device = getattr(model, "device", None) or first
        self.prototypes: list[Any] = [model.net, *model.modules()]
        self.objects: dict[str, Any] = dict(known)  # by path
        self.claimed: dict[int, Any] = {}

    def decode(self, code: Any, path: str, live: Any = None) -> Any:
        """The value that a code stands for; `live` is what the fresh model has at that place."""
        if isinstance(code, torch.device):
            return code if code.type == "cpu" else self.device
        if not isinstance(code, dict):
            return code
        if code["kind"] == "reference":
            return self.objects[code["path"]]
        self.objects[path] = value = getattr(self, f"unpack_{code['kind']}")(code, path, live)
        return value

    def attributes(self, codes: Code, path: str, values: dict[str, Any]) -> None:
        for name, code in codes.items():
            values[name] = self.decode(code, _join(path, name), values.get(name))

    def claim(self, live: Any, fits: bool) -> bool:
        """Whether to restore into an object of the fresh model: it must fit, and each serves at one place."""
        free = fits and id(live) not in self.claimed
        if free:
            self.claimed[id(live)] = live
        return free

    def unpack_sequence(self, code: Code, path: str, live: Any) -> Any:
        kind = SEQUENCES[code["class"]]
        value: Any = deque(maxlen=code["maxlen"]) if kind is deque else []
        self.objects[path] = value  # known before its items, which may refer to it
        same = live if isinstance(live, list | tuple | deque) else ()
        for position, item in enumerate(code["items"]):
            counterpart = same[position] if position < len(same) else None
            value.append(self.decode(item, f"{path}[{position}]", counterpart))
        return value if kind in (list, deque) else kind(value)

    def unpack_mapping(self, code: Code, path: str, live: Any) -> Any:
        factory = FACTORIES.get(code["factory"])
        value = defaultdict(factory) if code["class"] == "defaultdict" else MAPPINGS[code["class"]]()
        self.objects[path] = value
        same = live if isinstance(live, dict) else {}
        keys = [self.decode(key, f"{path}.key[{position}]") for position, key in enumerate(code["keys"])]
        for position, (key, item) in enumerate(zip(keys, code["values"], strict=True)):
            value[key] = self.decode(item, _item_path(path, key, position), same.get(key))
        return value

    def unpack_tensor(self, code: Code, path: str, live: Any) -> Tensor:
        if "view_of" in code:
            base = self.objects[code["view_of"]].detach()
            return base.as_strided(code["size"], code["stride"], base.storage_offset() + code["offset"])
        data, kind = code["data"], nn.Parameter if code["parameter"] else Tensor
        fits = code["in_network"] and type(live) is kind and _memory(live) in self.network
        if self.claim(live, fits):  # in place: hooks, closures and compiled graphs may hold this very tensor
            value = live
            if (live.shape, live.dtype, live.stride()) == (data.shape, data.dtype, data.stride()):
                live.detach().copy_(data)
            else:
                live.data = data.to(live.device)
        else:
            value = data.to("cpu" if code["on_host"] else self.device)
            value = nn.Parameter(value) if code["parameter"] else value
            value = value.as_subclass(ArrayTensor) if code["array"] else value
        value.requires_grad_(code["requires_grad"])
        value.grad = self.decode(code["grad"], f"{path}.grad")
        return value

    def unpack_array(self, code: Code, path: str, live: Any) -> Any:
        flat = np.frombuffer(bytearray(code["data"]), np.dtype(code["dtype"]))
        value = flat.reshape(code["shape"], order=code["order"])
        return value[()] if code["scalar"] else value

    def unpack_generator(self, code: Code, path: str, live: Any) -> Any:
        kind = GENERATORS[code["library"]]
        if not self.claim(live, type(live) is kind):
            device = "cpu" if code["on_host"] else self.device
            special = {"torch": lambda: torch.Generator(device), "numpy": np.random.default_rng}
            live = special.get(code["library"], kind)()
        set_generator_state(live, self.decode(code["state"], f"{path}.state"))
        return live

    def unpack_module(self, code: Code, path: str, live: Any) -> nn.Module:
        lives = dict(live.named_modules(prefix=path, remove_duplicate=False)) if _kind(live) == "module" else {}
        for name, body in code["modules"].items():
            self.objects[name] = module = self._module(name, body, lives.get(name))
            if lives.get(name) is not module:  # a copy brings its children along
                lives |= dict(module.named_modules(prefix=name, remove_duplicate=False))
        for name, body in code["modules"].items():
            module = self.objects[name]
            module.training = body["training"]
            module._non_persistent_buffers_set = set(body["transient"])
            for values in (vars(module), module._parameters, module._buffers):
                for gone in values.keys() - set(body["names"]):  # also a None that has become a module
                    del values[gone]
            built = dict(module._modules)
            module._modules.clear()
            for child, place in body["children"].items():
                module._modules[child] = built[child] if place is True else place and self.objects[place]
            self.attributes(body["_parameters"], name, module._parameters)
            self.attributes(body["_buffers"], name, module._buffers)
        for name, body in code["modules"].items():
            self._refuse_foreign(body["attributes"], name)
            self.attributes(body["attributes"], name, vars(self.objects[name]))
        return self.objects[path]

    def _refuse_foreign(self, names: Iterable[str], path: str) -> None:
        """Data is never packed under the name of a method or of what a module is made of."""
        module = self.objects[path]
        for name in names:
            hides = callable(getattr(type(module), name, None)) and name not in vars(module)
            if name in MODULE_INTERNALS or hides:
                raise ValueError(f"{_join(path, name)} is no name for data")

    def _module(self, path: str, body: Code, live: Any) -> nn.Module:
        """The live module or, for one made during the run, a new one: like `net`, like any, or from nothing."""
        if self.claim(live, live is not None and _class_name(live) == body["class"]):
            return live
        for prototype in self.prototypes:
            if _class_name(prototype) == body["class"]:
                return copy.deepcopy(prototype)
        module = self._instance(nn.Module, path, body, None)
        nn.Module.__init__(module)
        return module

    def _instance(self, base: type, path: str, body: Code, live: Any) -> Any:
        """The live object, or an empty one of a class that the program has loaded; no file can name another."""
        if self.claim(live, live is not None and _class_name(live) == body["class"]):
            return live
        waiting: list[Any] = [base] if body["complete"] else []
        while waiting:
            kind = waiting.pop()
            if _class_name(kind) == body["class"]:
                return kind.__new__(kind)
            waiting += kind.__subclasses__()
        raise UserError(
            f"cannot resume: {path} ({body['class']}) cannot be restored, since a new model does not have it;"
            " --overwrite 1 starts again"
        )

    def unpack_optimizer(self, code: Code, path: str, live: Any) -> Optimizer:
        self.objects[path] = optimizer = self._instance(Optimizer, path, code, live)
        state = {name: self.decode(part, f"{path}.{name}") for name, part in code["state"].items()}
        optimizer.__setstate__(state)
        return optimizer

    def unpack_scheduler(self, code: Code, path: str, live: Any) -> LRScheduler:
        self.objects[path] = scheduler = self._instance(LRScheduler, path, code, live)
        self.attributes(code["attributes"], path, vars(scheduler))
        return scheduler

    def unpack_plain_object(self, code: Code, path: str, live: Any) -> Any:
        kind: Any = PLAIN_OBJECTS[code["class"]]
        self.objects[path] = value = kind.__new__(kind)
        self.attributes(code["attributes"], path, vars(value))
        return value

    def unpack_stateful(self, code: Code, path: str, live: Any) -> Any:
        live = self._instance(object, path, code, live)
        live.load_state_dict(self.decode(code["state"], f"{path}.state"))
        return live
