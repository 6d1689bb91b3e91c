"""A packed model, written and read, continues bit for bit as the original does."""

from __future__ import annotations

import argparse
import copy
import random
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import uncapturable
from torch import nn
from torch.nn import functional as F

from utils.errors import UserError
from utils.resume import store
from utils.resume.rng import global_rng_state, set_global_rng_state
from utils.resume.state import pack, unpack


class Reservoir:
    """Stands for any object with a state of its own, such as the replay buffer."""

    def __init__(self, device: torch.device):
        self.rows, self.seen = torch.zeros(5, 2, device=device), 0

    def add(self, row: torch.Tensor) -> None:
        self.rows[self.seen % 5] = row
        self.seen += 1

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows.copy_(state["rows"])
        self.seen = state["seen"]


class Cosine(nn.Module):
    """A head of a class that the fresh model does not contain."""

    def __init__(self, features: int, classes: int, scale: float):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(classes, features)), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * F.linear(F.normalize(x), F.normalize(self.weight))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)
        self.classifier = nn.Linear(4, 6)
        self.act, self.adapter = F.relu, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.drop(self.act(self.norm(self.conv(x)))).mean((2, 3)))


class Nasty(nn.Module):
    """Holds its state in every way that methods do."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.net = Net().to(device)
        self.device, self.args, self.loss = device, argparse.Namespace(lr=0.1), F.cross_entropy
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        self.weights = [p for p in self.net.parameters() if p.ndim > 1]
        self.alias = self.net.conv.weight.data
        self.by_parameter = {p: torch.zeros_like(p) for p in self.net.parameters()}
        self.average = {name: p.detach().clone() for name, p in self.net.named_parameters()}
        self.buffer, self.pair = Reservoir(device), (Reservoir(device), "x")
        self.generator = torch.Generator().manual_seed(1)
        self.numpy_generator, self.legacy = np.random.default_rng(2), np.random.RandomState(3)
        self.python_generator = random.Random(4)
        self.register_buffer("seen_classes", torch.empty(0, dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.old_net = self.schedule = self.late_generator = None
        self.task, self.history = 0, []

    def begin_late_things(self) -> None:
        """What methods make when a task ends: attributes that the constructor does not know."""
        self.old_net = copy.deepcopy(self.net).eval().requires_grad_(False)
        self.copies = [copy.deepcopy(self.net.norm), self.net.norm]
        self.net.classifier = nn.Linear(4, 9).to(self.device)
        self.extra_head = Cosine(9, 2, 1.5).to(self.device)
        groups = [{"params": self.net.conv.parameters(), "lr": 0.05}, {"params": self.net.classifier.parameters()}]
        self.opt = torch.optim.Adam(groups, lr=0.01)
        self.head_opt = torch.optim.SGD(self.extra_head.parameters(), lr=0.1, momentum=0.5)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.opt, [2, 4], gamma=0.5)
        self.late_generator = torch.Generator().manual_seed(9)
        self.seen_classes = torch.tensor([3, 1])
        self.flat = torch.arange(10.0, device=self.device)
        self.head, self.same_flat = self.flat[2:5], self.flat
        self.images = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
        self.counts: dict = defaultdict(list, a=[1])
        self.nested = {
            "deque": deque([1, (2, {3})], maxlen=4),
            (1, "tuple"): OrderedDict(z=np.float32(0.1), a=[frozenset({1}), Counter("aab")]),
            None: [np.arange(6.0).reshape(2, 3).T, np.array(["a", "bc"]), b"x", 1j, torch.bfloat16, torch.Size([2])],
        }
        self.nested["self"] = self.nested
        self.me = [self]
        self.net.drop.p, self.net.adapter = 0.25, nn.Linear(4, 4).to(self.device)
        del self.scratch
        self.net.norm.eval()
        del self.average

    def observe(self, x: torch.Tensor, y: torch.Tensor) -> float:
        noise = torch.rand(x.shape, generator=self.generator).to(x) * float(self.numpy_generator.random())
        out = self.net(x + 0.1 * noise + self.python_generator.random() + self.legacy.rand())
        loss = F.cross_entropy(out, y)
        if self.old_net is not None:
            loss = loss + F.mse_loss(out[:, :6], self.old_net(x)) + F.cross_entropy(self.extra_head(out), y % 2)
            self.head_opt.zero_grad()
            self.flat += 1
            self.counts["b"].append(float(torch.rand((), generator=self.late_generator)) * self.head.sum().item())
        self.opt.zero_grad(set_to_none=False)  # leaves gradients behind: zero, not None
        loss.backward()
        self.opt.step()
        if self.old_net is not None:
            self.head_opt.step()
            self.schedule.step()
        with torch.no_grad():
            for parameter, total in self.by_parameter.items():
                total += parameter.detach().abs()
            self.alias.mul_(0.999)
        self.buffer.add(x.detach()[0, 0, 0, :2])
        self.pair[0].add(x.detach()[0, 1, 0, :2])
        self.history.append(loss.item())
        self.task += 1
        return loss.item()


def batches(device: torch.device, count: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(8, 3, 4, 4, generator=generator)
        yield x.to(device), torch.randint(0, 6, (8,), generator=generator).to(device)


def through_a_file(packed: dict, path: Path) -> dict:
    store.save(path, packed)
    loaded = store.load(path)
    assert loaded is not None
    return loaded


LEAVES: dict[type, Any] = {
    torch.Generator: lambda g: g.get_state().numpy().tobytes(),
    np.random.Generator: lambda g: str(g.bit_generator.state),
    np.random.RandomState: lambda g: str(g.get_state()),
    random.Random: lambda g: g.getstate(),
    np.ndarray: lambda a: (a.dtype, a.strides, a.tobytes()),
}
OBJECTS = (nn.Module, Reservoir, torch.optim.lr_scheduler.LRScheduler)
SHARED = (nn.Module, Reservoir, torch.optim.Optimizer, torch.Tensor, dict, list, deque)


def parts_of(value: Any) -> dict[str, Any] | None:
    """The things in a container or object; dict keys by position, since keys may be parameters."""
    if isinstance(value, dict):
        items = {key if isinstance(key, str) else f"#{i}": part for i, (key, part) in enumerate(value.items())}
        return {**items, ".keys": list(value)}
    if isinstance(value, list | tuple | deque):
        return {str(i): part for i, part in enumerate(value)}
    if isinstance(value, torch.optim.Optimizer):
        return value.__getstate__()
    return {k: v for k, v in vars(value).items() if "hooks" not in k} if isinstance(value, OBJECTS) else None


def flatten(value: Any, path: str, seen: dict[int, str]) -> dict[str, Any]:
    """Every leaf of a model under its path, independently of `pack`; an object met again is the path it had first."""
    if isinstance(value, SHARED):
        if id(value) in seen:
            return {path: f"→ {seen[id(value)]}"}
        seen[id(value)] = path
    if isinstance(value, torch.Tensor):
        facts = (value.dtype, value.stride(), value.requires_grad, type(value).__name__, value.device)
        grad = flatten(value.grad, f"{path}.grad", seen) if value.is_leaf else {}
        return {path: (facts, value.detach().cpu().contiguous().numpy().tobytes()), **grad}
    parts = parts_of(value)
    if parts is None:
        leaf = LEAVES.get(type(value), lambda other: str(other) if callable(other) else other)
        return {path: (type(value), leaf(value))}
    result = {f"{path}.kind": type(value)}
    for name, part in parts.items():
        # `.keys` is a list made here: it must not be taken for another one that had its address before.
        kept = {**seen} if name == ".keys" else seen
        result |= flatten(part, f"{path}.{name}", kept)
    return result


def assert_same(a: nn.Module, b: nn.Module) -> None:
    left, right = flatten(a, "", {}), flatten(b, "", {})
    assert left.keys() == right.keys()
    assert [path for path in left if left[path] != right[path]] == []


@pytest.mark.parametrize("late", [0, 3])
def test_nasty_model_goes_on_bit_for_bit(tmp_path: Path, device: torch.device, late: int) -> None:
    torch.manual_seed(0)
    model = Nasty(device)
    for batch in batches(device, 3, seed=1):
        model.observe(*batch)
    if late:
        model.begin_late_things()
    for batch in batches(device, late, seed=2):
        model.observe(*batch)

    assert uncapturable(model) == []
    stored = through_a_file({"model": pack(model), "rng": global_rng_state()}, tmp_path)
    torch.manual_seed(99)
    resumed = Nasty(device)
    live = {name: id(parameter) for name, parameter in resumed.named_parameters()}
    unpack(resumed, stored["model"])
    assert_same(model, resumed)
    kept = {name for name, parameter in resumed.named_parameters() if live.get(name) == id(parameter)}
    assert kept == live.keys()

    losses = []
    for each in (model, resumed):
        set_global_rng_state(stored["rng"])  # dropout draws from the global generator
        losses.append([each.observe(*batch) for batch in batches(device, 4, seed=3)])
    assert losses[0] == losses[1] and len(set(losses[0])) == 4
    assert_same(model, resumed)


def restored(model: nn.Module, fresh: nn.Module, path: Path) -> Any:
    unpack(fresh, through_a_file(pack(model), path))
    return fresh


class Simple(nn.Module):
    def __init__(self, **attributes: Any):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        for name, value in attributes.items():
            setattr(self, name, value)


def test_references_are_to_the_live_parameters(tmp_path: Path) -> None:
    model = Simple()
    weight = model.net[0].weight
    model.listed, model.by_name, model.keyed = [weight], {"w": weight}, {weight: 1}
    packed = pack(model)
    assert packed["model"]["modules"][""]["attributes"]["by_name"]["values"] == [
        {"kind": "reference", "path": "net.0.weight"}
    ]
    fresh = restored(model, Simple(), tmp_path)
    live = fresh.net[0].weight
    assert fresh.listed[0] is live and fresh.by_name["w"] is live and next(iter(fresh.keyed)) is live
    assert torch.equal(live, weight)


def test_tensors_that_share_memory_share_it_again(tmp_path: Path) -> None:
    flat = torch.arange(12.0)
    model = Simple(flat=flat, same=flat, view=flat.view(3, 4)[:, 1], weights=None)
    model.weights = model.net[0].weight.data
    model.frozen = nn.Parameter(model.net[0].bias.data, requires_grad=False)
    fresh = restored(model, Simple(), tmp_path)
    assert type(fresh.frozen) is nn.Parameter and torch.equal(fresh.frozen, model.net[0].bias)
    assert fresh.same is fresh.flat and fresh.view.stride() == (4,)
    fresh.flat[5] = -1
    assert fresh.view[1] == -1
    fresh.weights.zero_()
    assert not fresh.net[0].weight.any()


def test_a_flat_vector_under_the_network_stays_under_it(tmp_path: Path) -> None:
    def make() -> Any:
        model: Any = Simple()
        model.flat = torch.cat([p.detach().reshape(-1) for p in model.net.parameters()])
        start = 0
        for p in model.net.parameters():
            p.data = model.flat[start : start + p.numel()].view(p.shape)
            start += p.numel()
        return model

    model = make()
    fresh = restored(model, make(), tmp_path)
    assert torch.equal(fresh.flat, model.flat)
    fresh.flat.fill_(7)
    assert all((p == 7).all() for p in fresh.net.parameters())


def test_a_copy_does_not_become_an_alias(tmp_path: Path) -> None:
    """The constructor's alias was replaced by a copy during the run; restoring it must not touch the weight."""

    def make() -> Any:
        model: Any = Simple(a=torch.zeros(2))
        model.weights, model.b = model.net[0].weight.data, model.a
        return model

    model = make()
    model.weights, model.b = torch.full((3, 2), 5.0), torch.ones(2)
    fresh = restored(model, make(), tmp_path)
    assert torch.equal(fresh.net[0].weight, model.net[0].weight)
    assert fresh.weights.eq(5).all() and fresh.a.eq(0).all() and fresh.b.eq(1).all()


def test_modules_made_during_the_run(tmp_path: Path) -> None:
    """A module shared at first and not later; a copy whose parts differ in a function; a queue with its length."""

    class Layer(nn.Linear):
        def __init__(self, function: Any):
            super().__init__(2, 2)
            self.function = function

    def make() -> Any:
        model: Any = Simple(queue=deque([1], maxlen=2))
        model.net = nn.Sequential(Layer(torch.sin), Layer(torch.cos))
        model.first = model.second = nn.Linear(2, 2)
        return model

    model = make()
    model.second, model.old_net = nn.Linear(2, 2), copy.deepcopy(model.net)
    model.queue.extend([2, 3])
    fresh = restored(model, make(), tmp_path)
    assert torch.equal(fresh.first.weight, model.first.weight)
    assert torch.equal(fresh.second.weight, model.second.weight)
    assert [layer.function for layer in fresh.old_net] == [torch.sin, torch.cos]
    assert fresh.queue == deque([2, 3]) and fresh.queue.maxlen == 2


def test_modes_and_gradient_flags(tmp_path: Path) -> None:
    model = Simple()
    model.net[1].eval()
    model.net[0].bias.requires_grad_(False)
    model.net[0].weight.grad = torch.ones(3, 2)
    fresh = restored(model, Simple(), tmp_path)
    assert [m.training for m in fresh.modules()] == [True, True, True, False]
    assert not fresh.net[0].bias.requires_grad and fresh.net[0].bias.grad is None
    assert fresh.net[0].weight.grad.eq(1).all()


def test_existing_optimizer_keeps_its_hooks(tmp_path: Path) -> None:
    def make() -> Any:
        model: Any = Simple()
        model.opt = torch.optim.SGD(model.net.parameters(), lr=0.1, momentum=0.9, fused=True)
        return model

    model, fresh, calls = make(), make(), []
    model.net(torch.randn(4, 2)).sum().backward()
    model.opt.step()
    model.opt.param_groups[0]["lr"] = 0.01
    optimizer = fresh.opt
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    restored(model, fresh, tmp_path)
    assert fresh.opt is optimizer and fresh.opt.param_groups[0]["params"][0] is fresh.net[0].weight
    for each in (model, fresh):
        each.opt.step()
    assert calls == [1] and torch.equal(model.net[0].weight, fresh.net[0].weight)


def test_what_cannot_be_captured_is_named(tmp_path: Path, caplog) -> None:
    shared = torch.ones(2)
    model = Simple(
        function=print, kind=dict, module=random, functions=[print, len], args=argparse.Namespace(a=object()),
        same=None, iterator=iter([1]), mixed=[shared, print], lazy=defaultdict(lambda: 0), good=shared,
        objects=np.array([None]),
    )  # fmt: skip
    model.same = model.functions
    names = uncapturable(model)
    assert [name.partition(" ")[0] for name in names] == ["iterator", "mixed", "lazy", "objects"]
    assert names[0] == "iterator (builtins.list_iterator)"
    fresh = Simple(iterator="fresh", function=len, same=[print])
    unpack(fresh, through_a_file(pack(model), tmp_path))
    assert fresh.iterator == "fresh" and fresh.same == [print] and fresh.function is len and fresh.good.eq(1).all()
    assert "resume is not exact: the checkpoint lacks iterator" in caplog.messages[0]


def test_framework_attributes_are_left_alone(tmp_path: Path) -> None:
    model = Simple(transform=nn.Linear(1, 1), dataset={"a": 1}, device=torch.device("cpu"))
    fresh = Simple(transform=nn.Linear(1, 1), dataset={"a": 2}, device=torch.device("cpu"))
    before = fresh.transform.weight.clone()
    transform = fresh.transform
    restored(model, fresh, tmp_path)
    assert fresh.dataset == {"a": 2} and fresh.transform is transform and torch.equal(transform.weight, before)


def test_what_the_fresh_model_lacks_is_an_error_that_names_it(tmp_path: Path) -> None:
    model = Simple(memory=None)
    model.memory = Reservoir(torch.device("cpu"))
    with pytest.raises(UserError, match=r"memory \(.*Reservoir\) cannot be restored.*; --overwrite 1") as caught:
        restored(model, Simple(memory=None), tmp_path)
    assert "\n" not in str(caught.value)

    class Closure(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.function = lambda x: x

    model = Simple()
    model.net.append(Closure())
    with pytest.raises(UserError, match=r"net\.2 \(.*Closure\) cannot be restored"):
        restored(model, Simple(), tmp_path)


def test_a_file_cannot_name_a_class_to_be_made() -> None:
    model = Simple()
    packed = pack(model)
    for name in ("subprocess.Popen", "builtins.object", "torch.nn.modules.linear.Nonsense"):
        packed["model"]["modules"]["net.0"]["class"] = name
        with pytest.raises(UserError, match="cannot be restored"):
            unpack(Simple(), packed)


def test_another_model_is_one_line() -> None:
    packed = pack(Simple())
    packed["model"]["modules"]["net.0"].pop("training")
    with pytest.raises(UserError, match=r"does not fit this model \(KeyError: 'training'\); --overwrite 1"):
        unpack(Simple(), packed)


def test_global_generators_continue(tmp_path: Path, device: torch.device) -> None:
    def draws() -> list:
        on_device = torch.rand(3, device=device).tolist()
        return [torch.randn(3).tolist(), on_device, np.random.randn(3).tolist(), random.gauss(0, 1)]

    draws()
    np.random.randn()  # an odd number of normal draws leaves one in numpy's cache
    stored = through_a_file(global_rng_state(), tmp_path)
    expected = draws()
    assert draws() != expected
    set_global_rng_state(stored)
    assert draws() == expected
