"""Networks as code written for Mammoth builds, reads and extends them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from helpers import run
from torch import nn

from backbone.MNISTMLP import BaseMNISTMLP, mnistmlp
from backbone.MNISTMLP_PNN import MNISTMLP_PNN
from backbone.ResNet18_PNN import resnet18_pnn
from backbone.ResNet32 import resnet32
from backbone.ResNetBlock import (
    BasicBlock,
    PreActBlock,
    ResNet,
    preact_resnet18,
    resnet8,
    resnet18,
    resnet18_7x7,
    resnet18_7x7_pt,
    resnet18_spr,
)
from backbone.ResNetBottleneck import resnet50, resnet50_pt
from backbone.utils.modules import AlphaModule, ListModule
from utils.errors import UserError

pytestmark = pytest.mark.numeric


def trainable(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)


# -- ResNets -----------------------------------------------------------------------------------------------------------


def test_a_block_keeps_its_map_before_the_relu_after_every_pass() -> None:
    net, x = resnet18(5, num_filters=2), torch.rand(3, 3, 8, 8)
    net(x)
    assert not BasicBlock.return_prerelu and net.layer4[-1].prerelu is None
    net.set_return_prerelu(True)
    net.eval()
    net(x)  # an ordinary call
    ordinary = net.layer2[-1].prerelu
    _, maps = net(x, returnt="full")
    torch.testing.assert_close(ordinary, maps[2], rtol=0, atol=0)
    assert ordinary.min() < 0 and ordinary.grad_fn is not None
    assert [block.return_prerelu for block in net.layer1] == [True, True]
    net.set_return_prerelu(False)
    net(torch.rand(1, 3, 8, 8))
    assert len(net.layer2[-1].prerelu) == 3  # of the call before


def test_a_network_that_keeps_maps_can_be_copied() -> None:
    net = resnet18(5, num_filters=2)
    net.set_return_prerelu(True)
    net(torch.rand(3, 3, 8, 8)).sum().backward()
    other = copy.deepcopy(net)
    assert other.layer1[-1].prerelu is None and other.layer1[-1].return_prerelu
    assert not [name for name in net.state_dict() if "prerelu" in name]


def test_the_fifth_parameter_is_the_kernel_of_the_stem() -> None:
    net, x = ResNet(BasicBlock, [2, 2, 2, 2], 5, 2, 7), torch.rand(2, 3, 64, 64)
    assert net.conv1.weight.shape == (2, 3, 7, 7) and net.conv1.stride == (2, 2) and net.conv1.padding == (3, 3)
    _, maps = net(x, returnt="full")
    assert [m.shape[-1] for m in maps] == [32, 16, 8, 4, 2]
    torch.testing.assert_close(
        net.maxpool(torch.arange(16.0).view(1, 1, 4, 4)).flatten(), torch.tensor([5.0, 7, 13, 15])
    )
    assert not hasattr(resnet18(5, num_filters=2), "maxpool")


def test_three_numbers_make_three_stages() -> None:
    net = ResNet(BasicBlock, [1, 2, 1], 7, 4)
    assert isinstance(net.layer4, nn.Identity) and len(net.layer2) == 2 and net.feature_dim == 16
    assert net(torch.rand(2, 3, 16, 16)).shape == (2, 7)
    assert len(resnet8(3)(torch.rand(2, 3, 16, 16), returnt="full")[1]) == 4  # the stem's and three


class Wide(ResNet):
    """Makes its stages by itself, with the counter of channels that the base keeps."""

    def _make_layer(self, block: Any, planes: int, num_blocks: int, stride: int) -> nn.Sequential:
        assert planes in (4, 8, 16, 32)
        self.widths = [*getattr(self, "widths", []), self.in_planes]
        # Mammoth's name: code written for it overrides this.
        return super()._make_layer(block, planes + 1, num_blocks, stride)


def test_stages_can_be_made_otherwise() -> None:
    net = Wide(BasicBlock, [1, 1, 1, 1], 3, 4)
    assert net.widths == [4, 5, 9, 17] and net.in_planes == net.feature_dim == 33
    assert net(torch.rand(2, 3, 16, 16)).shape == (2, 3)


def test_blocks_that_begin_with_their_relu() -> None:
    block, x = PreActBlock(3, 3).eval(), torch.rand(2, 3, 5, 5)
    nn.init.zeros_(block.conv2.weight)
    torch.testing.assert_close(block(-x), -x)  # no ReLU on the way of the shortcut
    net = preact_resnet18(5, num_filters=2)
    net.set_return_prerelu(True)
    out, maps = net.eval()(torch.rand(3, 3, 16, 16), returnt="full")
    assert out.shape == (3, 5) and maps[-1].min() < 0 and net.layer2[0].shortcut[0].weight.shape == (4, 2, 1, 1)
    torch.testing.assert_close(net.classifier(maps[-1].mean((2, 3))), out)


def test_further_sizes() -> None:
    assert trainable(resnet32(10)) == 466_906  # He et al. 2016: 0.46 M, with shortcuts that have no weights
    assert resnet32(10).feature_dim == 64 and len(resnet32(10, depth=20).layer1) == 3
    with pytest.raises(ValueError, match="depth 31 is not 6n"):
        resnet32(10, depth=31)
    assert trainable(resnet18_spr(10)) == trainable(resnet18(10))
    imagenet = torchvision.models.resnet18(num_classes=10)
    assert trainable(resnet18_7x7(10)) == trainable(imagenet)


# -- weights of ImageNet -----------------------------------------------------------------------------------------------


def torchvisions(name: str, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """A network of torchvision, whose weights are those of its files from now on."""
    torch.manual_seed(3)
    net = getattr(torchvision.models, name)(weights=None).eval()
    weights = torchvision.models.get_model_weights(name).DEFAULT
    monkeypatch.setattr(type(weights), "get_state_dict", lambda self, **_: net.state_dict())
    net.fc = nn.Identity()
    return net


@pytest.mark.slow
def test_a_trained_resnet50_gives_torchvisions_features(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, x = torchvisions("resnet50", monkeypatch), torch.rand(1, 3, 64, 64)
    ours = resnet50_pt(7).eval()
    out, maps = ours(x, returnt="full")
    _, features = ours(x, returnt="both")
    torch.testing.assert_close(features, theirs(x))
    torch.testing.assert_close(ours.classifier(features), out)
    assert ours.feature_dim == 2048 and [m.shape[1] for m in maps] == [64, 256, 512, 1024, 2048]
    ours.set_grad_filter("layer", False)
    ours.set_grad_filter("layer4", True)
    learning = {name.partition(".")[0] for name, p in ours.named_parameters() if p.requires_grad}
    assert learning == {"conv1", "bn1", "layer4", "classifier"}
    assert not torch.equal(resnet50(7).conv1.weight, ours.conv1.weight)


def test_a_trained_resnet18_gives_torchvisions_features(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, x = torchvisions("resnet18", monkeypatch), torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(resnet18_7x7_pt(7).eval().features(x), theirs(x))


def test_weights_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torchvision.models.get_model_weights("resnet18").DEFAULT

    def offline(self: Any, **_: Any) -> None:
        raise OSError("no route\nto host")

    monkeypatch.setattr(type(weights), "get_state_dict", offline)
    with pytest.raises(UserError, match=r"pth can't be fetched \(no route to host\); get .* put it at .*\.pth$"):
        resnet18_7x7_pt(7)


# -- the network for digits --------------------------------------------------------------------------------------------


def test_the_mlp_by_mammoths_names() -> None:
    net, x = mnistmlp(10), torch.rand(4, 1, 28, 28)
    assert isinstance(net, BaseMNISTMLP) and "mnistmlp" in type(net).__name__.lower()
    torch.testing.assert_close(net.net(x.flatten(1)), net(x))
    features = net._features  # a name of Mammoth's
    torch.testing.assert_close(features(x.flatten(1)), net(x, returnt="features"))
    net.classifier = nn.Linear(100, 3)
    assert net.net(x.flatten(1)).shape == (4, 3) and len(net.state_dict()) == 6


MAMMOTHS = {"fc1": ("_features.0", "net.0.0"), "fc2": ("_features.2", "net.0.2"), "classifier": ("net.1",)}


def as_mammoth_has_it(state: dict[str, torch.Tensor], prefix: str = "") -> dict[str, torch.Tensor]:
    again = {
        f"{prefix}{name}.{part}": state[f"{prefix}{layer}.{part}"]
        for layer, names in MAMMOTHS.items()
        for name in names
        for part in ("weight", "bias")
    }
    return state | again


def test_weights_of_mammoths_mlp_fit_and_ours_fit_there(tmp_path: Path) -> None:
    net, other = mnistmlp(10), mnistmlp(10)
    other.load_state_dict(as_mammoth_has_it(net.state_dict()))  # strictly
    assert torch.equal(other.get_params(), net.get_params())
    flags = ("--n_epochs", "1", "--stop_after", "1", "--lr", "0.1", "--checkpoint_path", str(tmp_path))
    _, model, _ = run(tmp_path / "first", *flags, "--savecheck", "last", model="sgd")
    (file,) = tmp_path.glob("*.pt")
    content = torch.load(file, weights_only=True)
    expected = as_mammoth_has_it(model.state_dict(), "net.")
    assert content["model"].keys() == expected.keys()
    assert all(torch.equal(content["model"][name], value) for name, value in expected.items())
    _, again, _ = run(tmp_path / "second", *flags, "--inference_only", "1", "--loadcheck", str(file), model="sgd")
    assert torch.equal(again.net.get_params(), model.net.get_params())


# -- progressive networks ----------------------------------------------------------------------------------------------


def test_parts_of_columns() -> None:
    alpha, x = AlphaModule((3, 2)), torch.ones(5, 3, 2)
    assert alpha.alpha.shape == (1, 3, 2) and alpha.alpha.min() >= 0 and alpha.alpha.max() <= 0.1
    torch.testing.assert_close(alpha(x), alpha.alpha.expand(5, 3, 2))
    layers = ListModule(nn.Linear(1, 2), nn.Linear(2, 3))
    layers.append(nn.ReLU())
    assert len(layers) == 3 and layers[-1] is list(layers)[2] and layers[0].out_features == 2
    assert sum(p.numel() for p in layers.parameters()) == 4 + 9


def columns(kind: str) -> tuple[list[Any], torch.Tensor]:
    torch.manual_seed(0)
    made: list[Any] = []
    x = torch.rand(4, 1, 8, 8) if kind == "mlp" else torch.rand(4, 3, 17, 16)
    for _ in range(3):
        old = list(made) or None
        made.append(MNISTMLP_PNN(64, 5, old) if kind == "mlp" else resnet18_pnn(5, 2, old, x.shape if old else None))
    return made, x


@pytest.mark.parametrize("kind", ["mlp", "resnet"])
def test_a_column_reads_the_frozen_ones_before_it(kind: str) -> None:
    (first, second, third), x = columns(kind)
    before = [column(x) for column in (first, second)]
    assert trainable(first) == trainable(second) == 0 < trainable(third)
    assert not {id(p) for p in third.parameters()} & {id(p) for c in (first, second) for p in c.parameters()}
    third.train()
    assert not first.train().training and third.training  # BatchNorm of a finished column stays as it is
    third(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in third.parameters() if p.dim() > 1)
    for column, outputs in zip((first, second), before, strict=True):
        torch.testing.assert_close(column(x), outputs, rtol=0, atol=0)
    third.eval()
    outputs = third(x)
    with torch.no_grad():
        first.fc1.weight.mul_(2) if kind == "mlp" else first.layer1[0].conv1.weight.mul_(2)
    assert not torch.allclose(third(x), outputs)  # through the side connections


def test_what_a_column_does_not_offer() -> None:
    (first, _, third), x = columns("resnet")
    with pytest.raises(NotImplementedError, match="gives 'out' alone, not 'features'"):
        third(x, returnt="features")
    with pytest.raises(ValueError, match="x_shape, the shape of a batch of images, is needed"):
        resnet18_pnn(5, 2, [first])
