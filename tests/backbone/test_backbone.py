"""Networks: their sizes, names, outputs, and the flat views of their parameters and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from backbone.mammoth_backbone import MammothBackbone, num_flat_features, xavier
from backbone.MNISTMLP import MNISTMLP, mnistmlp
from backbone.ResNetBlock import Projection, ResNet, reduced_resnet18, resnet8, resnet18, resnet34

pytestmark = pytest.mark.numeric


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def conv(inputs: int, outputs: int, kernel: int = 3) -> int:
    return inputs * outputs * kernel * kernel


def block(inputs: int, outputs: int) -> int:
    """Two convolutions, two BatchNorms of weight and bias, and a 1×1 projection where the width changes."""
    total = conv(inputs, outputs) + conv(outputs, outputs) + 2 * 2 * outputs
    return total + (conv(inputs, outputs, 1) + 2 * outputs if inputs != outputs else 0)


def resnet18_size(filters: int, classes: int, channels: int = 3) -> int:
    widths = [filters, filters, 2 * filters, 4 * filters, 8 * filters]
    stages = sum(block(widths[i], widths[i + 1]) + block(widths[i + 1], widths[i + 1]) for i in range(4))
    return conv(channels, filters) + 2 * filters + stages + 8 * filters * classes + classes


@pytest.mark.parametrize(("classes", "size"), [(10, 11_173_962), (100, 11_220_132), (200, 11_271_432)])
def test_resnet18_has_the_papers_size(classes, size):
    assert resnet18_size(64, classes) == size
    assert count(resnet18(classes)) == size


def test_resnet34_has_further_blocks_of_the_same_kind():
    further = sum(n * block(width, width) for n, width in ((1, 64), (2, 128), (4, 256), (1, 512)))
    assert count(resnet34(10)) == resnet18_size(64, 10) + further == 21_282_122


def test_reduced_resnet18_and_mlp_sizes():
    assert count(reduced_resnet18(10)) == resnet18_size(20, 10)
    assert count(resnet18(7, num_filters=4, in_channels=1)) == resnet18_size(4, 7, channels=1)
    assert count(mnistmlp(10)) == (784 * 100 + 100) + (100 * 100 + 100) + (100 * 10 + 10)
    assert count(mnistmlp(5, mlp_hidden_size=8, input_size=64)) == (64 * 8 + 8) + (8 * 8 + 8) + (8 * 5 + 5)


def resnet8_size(filters: int, classes: int) -> int:
    stages = block(filters, filters) + block(filters, 2 * filters) + block(2 * filters, 4 * filters)
    return conv(3, filters) + 2 * filters + stages + 4 * filters * classes + classes


def test_resnet8_has_eight_layers_and_three_stages():
    net = resnet8(100)
    assert count(net) == resnet8_size(16, 100) == 83_892
    assert count(resnet8(50, num_filters=32)) == resnet8_size(32, 50)
    weighted = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear) and not isinstance(m, Projection)]
    assert len(weighted) == 8 and len(net.stages) == 3
    assert (net.feature_dim, resnet8(50, num_filters=32).feature_dim) == (64, 128)


def test_a_classifier_of_several_layers_is_no_stage():
    net = resnet8(10, num_filters=2)
    net.classifier = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 3))
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 3)


def test_state_dict_names():
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    expected = ["conv1.weight", *(f"bn1.{name}" for name in norm)]
    for layer in range(1, 5):
        for index in range(2):
            prefix = f"layer{layer}.{index}"
            for part in (1, 2):
                expected += [f"{prefix}.conv{part}.weight", *(f"{prefix}.bn{part}.{name}" for name in norm)]
            if layer > 1 and index == 0:
                expected += [f"{prefix}.shortcut.0.weight", *(f"{prefix}.shortcut.1.{name}" for name in norm)]
    expected += ["classifier.weight", "classifier.bias"]
    assert list(resnet18(10, num_filters=2).state_dict()) == expected
    layers = ("fc1", "fc2", "classifier")
    assert list(mnistmlp(10).state_dict()) == [f"{layer}.{p}" for layer in layers for p in ("weight", "bias")]


@pytest.mark.parametrize(("channels", "side"), [(3, 32), (3, 64), (1, 28), (1, 8)])
def test_resnet_outputs(channels, side, device):
    net = resnet18(10, num_filters=2, in_channels=channels).to(device).eval()
    x = torch.rand(3, channels, side, side, device=device)
    out, features = net(x, returnt="both")
    full_out, maps = net(x, returnt="full")
    assert out.shape == (3, 10)
    assert features.shape == (3, net.feature_dim) == (3, 16)
    sides = [side, side, math.ceil(side / 2), math.ceil(side / 4), math.ceil(side / 8)]
    assert [tuple(m.shape) for m in maps] == [
        (3, width, s, s) for width, s in zip((2, 2, 4, 8, 16), sides, strict=True)
    ]
    torch.testing.assert_close(net(x), out, rtol=0, atol=0)
    torch.testing.assert_close(full_out, out, rtol=0, atol=0)
    torch.testing.assert_close(net.features(x), features, rtol=0, atol=0)
    torch.testing.assert_close(net.classifier(features), out, rtol=0, atol=0)
    torch.testing.assert_close(maps[-1].mean((2, 3)), features)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("side", [32, 33, 64])
def test_resnet8_outputs(side, memory_format, device):
    net = resnet8(10, num_filters=4).to(device).eval()
    x = torch.rand(3, 3, side, side, device=device)
    planar = net(x)
    net.to(memory_format=memory_format)
    x = x.contiguous(memory_format=memory_format)
    (out, features), (full_out, maps) = net(x, returnt="both"), net(x, returnt="full")
    assert out.shape == (3, 10)
    assert features.shape == (3, net.feature_dim) == (3, 16)
    sides = [math.ceil(side / 2), math.ceil(side / 2), math.ceil(side / 4), math.ceil(side / 8)]
    assert [tuple(m.shape) for m in maps] == [(3, width, s, s) for width, s in zip((4, 4, 8, 16), sides, strict=True)]
    for same in (net(x), full_out, net.classifier(features)):
        torch.testing.assert_close(same, out, rtol=0, atol=0)
    torch.testing.assert_close(out, planar, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(maps[-1].mean((2, 3)), features)


def test_resnet8_trains_alike_from_the_same_seed():
    def trained() -> torch.Tensor:
        torch.manual_seed(0)
        net = resnet8(5, num_filters=4).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x, y = torch.rand(16, 3, 32, 32).contiguous(memory_format=torch.channels_last), torch.arange(16) % 5
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        return net.get_params().detach()

    torch.testing.assert_close(trained(), trained(), rtol=0, atol=0)


def test_maps_before_the_relu():
    net = resnet18(10, num_filters=2).eval()
    x = torch.rand(3, 3, 16, 16)
    out, maps = net(x, returnt="full")
    net.set_return_prerelu(True)
    same_out, before = net(x, returnt="full")
    torch.testing.assert_close(same_out, out, rtol=0, atol=0)
    for after_relu, before_relu in zip(maps, before, strict=True):
        assert before_relu.min() < 0
        torch.testing.assert_close(before_relu.relu(), after_relu, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(1, 28, 28), (784,), (4, 14, 14)])
def test_mlp_outputs_for_any_image_shape(shape, device):
    net = mnistmlp(10).to(device)
    x = torch.rand(5, *shape, device=device)
    out, features = net(x, returnt="both")
    assert (out.shape, features.shape) == ((5, 10), (5, 100))
    assert features.min() >= 0
    for pair in (net(x, returnt="full"), (net(x), net.features(x))):
        torch.testing.assert_close(pair, (out, features), rtol=0, atol=0)


def test_mlp_takes_channels_last_batches():
    net = mnistmlp(2, input_size=3 * 8 * 8)
    x = torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(net(x.to(memory_format=torch.channels_last)), net(x))


@pytest.mark.parametrize("net", [resnet18(2, num_filters=2), resnet8(2, num_filters=2), mnistmlp(2)])
def test_unknown_returnt_is_refused_before_anything_is_computed(net):
    state = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(ValueError, match="'everything'"):
        net(torch.rand(2, 3, 16, 16), returnt="everything")
    torch.testing.assert_close(net.state_dict(), state, rtol=0, atol=0)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_parameters_as_one_vector(memory_format):
    net = resnet18(3, num_filters=2).to(memory_format=memory_format)
    parameters = list(net.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    vector = net.get_params()
    assert vector.shape == (count(net),)
    assert vector.requires_grad
    net.set_params(torch.arange(count(net), dtype=torch.float32))
    torch.testing.assert_close(net.get_params(), torch.arange(count(net), dtype=torch.float32))
    assert net.conv1.weight.flatten()[:4].tolist() == [0, 1, 2, 3]
    net.set_params(vector)
    assert all(new is old for new, old in zip(net.parameters(), parameters, strict=True))
    torch.testing.assert_close([p.detach() for p in parameters], before, rtol=0, atol=0)
    with pytest.raises(ValueError, match="parameters"):
        net.set_params(vector[:-1])


def test_gradients_flow_through_get_params():
    net = mnistmlp(2)
    net.get_params().square().sum().div(2).backward()
    torch.testing.assert_close(net.fc1.weight.grad, net.fc1.weight.detach())


def test_gradients_as_one_vector():
    net = mnistmlp(3)
    with pytest.raises(RuntimeError, match=r"fc1\.weight"):
        net.get_grads()
    net(torch.rand(2, 784)).sum().backward()
    vector = net.get_grads()
    torch.testing.assert_close(vector[: 784 * 100].view(100, 784), net.fc1.weight.grad, rtol=0, atol=0)
    net.zero_grad()
    net.set_grads(vector)
    torch.testing.assert_close(net.get_grads(), vector, rtol=0, atol=0)
    net.fc1.weight.grad.zero_()
    assert vector[: 784 * 100].abs().sum() > 0, "the gradients must not share memory with the vector given"


def test_resnets_start_with_pytorchs_default():
    """The same seed gives the same weights as a plain layer."""
    torch.manual_seed(0)
    resnet = resnet18(10)
    torch.manual_seed(0)
    torch.testing.assert_close(resnet.conv1.weight, nn.Conv2d(3, 64, 3, bias=False).weight, rtol=0, atol=0)
    for module in resnet.modules():
        if isinstance(module, nn.Conv2d):  # uniform in ±1/√fan_in, so of variance 1/(3·fan_in)
            fan_in = module.weight[0].numel()
            assert module.bias is None
            assert module.weight.abs().max() <= 1 / math.sqrt(fan_in)
            assert module.weight.var().item() == pytest.approx(1 / (3 * fan_in), rel=0.1)
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


def test_mlp_starts_with_xavier_weights_and_zero_biases():
    """Uniform within ±√(6 / (in + out)): for 784 → 100 → 100 → 10 these are Mammoth's bounds .0824, .1732, .2335."""
    for net in (mnistmlp(10), mnistmlp(10)):
        for layer, bound in ((net.fc1, 0.0824), (net.fc2, 0.1732), (net.classifier, 0.2335)):
            weight = layer.weight.detach()
            n, limit = weight.numel(), math.sqrt(6 / (layer.in_features + layer.out_features))
            assert limit == pytest.approx(bound, abs=5e-5) and (layer.bias == 0).all()
            # The largest of n uniform numbers misses the bound by more than 20/n of it once in e²⁰ times.
            assert limit * (1 - 20 / n) < weight.abs().max() <= limit
            # The mean square has the relative standard deviation 2/√(5n): eight of them.
            assert weight.square().mean().item() == pytest.approx(limit**2 / 3, rel=8 * 2 / math.sqrt(5 * n))
    with torch.no_grad():
        net.fc1.weight.zero_()
        net.fc1.bias.fill_(1)
    net.reset_parameters()
    assert (net.fc1.weight != 0).any() and (net.fc1.bias == 0).all()


def test_device_is_recorded(device):
    net = resnet18(2, num_filters=2)
    assert net.device == torch.device("cpu")
    assert net.to(device) is net
    assert net.device == next(net.parameters()).device
    assert net.device.type == device.type
    net.to(torch.float64)
    assert net.device.type == device.type
    assert net.conv1.weight.dtype == torch.float64


def test_attributes_that_models_read():
    net = resnet18(7, num_filters=3)
    assert isinstance(net, ResNet)
    assert (net.num_classes, net.nf, net.feature_dim) == (7, 3, 24)
    assert (net.classifier.in_features, net.classifier.out_features) == (24, 7)
    mlp = MNISTMLP(input_size=12, output_size=5)
    assert (mlp.input_size, mlp.output_size, mlp.num_classes, mlp.feature_dim) == (12, 5, 5, 100)
    with pytest.raises(NotImplementedError, match="MammothBackbone"):
        MammothBackbone()(torch.zeros(1))


def test_xavier_and_num_flat_features():
    assert num_flat_features(torch.zeros(5, 3, 4, 2)) == 24
    layer = nn.Linear(30, 20)
    layer.apply(xavier)
    assert (layer.bias == 0).all()
    assert layer.weight.abs().max() <= math.sqrt(6 / 50)
    assert layer.weight.abs().max() > 0.9 * math.sqrt(6 / 50)


@pytest.mark.parametrize("planes", [3, 4, 8, 16])
def test_a_shortcut_is_the_strided_convolution_in_every_memory_format(planes: int) -> None:
    """Many times: what it guards against shows as damage to the heap, not as a wrong number."""
    torch.manual_seed(0)
    shortcut, x = Projection(planes, 2 * planes, 2).double(), torch.randn(8, planes, 8, 8, dtype=torch.float64)
    planar = x.clone().requires_grad_()
    plain = torch.nn.functional.conv2d(planar, shortcut.weight, stride=2)
    expected = torch.autograd.grad(plain.square().sum(), [planar, shortcut.weight])
    shortcut, x = shortcut.float(), x.float().contiguous(memory_format=torch.channels_last).requires_grad_()
    for _ in range(200):
        out = shortcut(x)
        found = torch.autograd.grad(out.square().sum(), [x, shortcut.weight])
    assert torch.allclose(out.double(), plain, atol=1e-5)
    assert all(torch.allclose(f.double(), e, rtol=1e-4, atol=1e-4) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("filters", [2, 4, 16])
def test_a_strided_stem_is_the_same_in_every_memory_format(filters: int) -> None:
    """Many times, as above: it is strided and has few channels, too."""
    torch.manual_seed(0)
    net, x = resnet8(2, num_filters=filters).double().train(), torch.randn(8, 3, 32, 32, dtype=torch.float64)
    expected = torch.autograd.grad(net(x).square().sum(), [net.conv1.weight])[0]
    net, x = net.float().to(memory_format=torch.channels_last), x.float().contiguous(memory_format=torch.channels_last)
    for _ in range(50):
        found = torch.autograd.grad(net(x).square().sum(), [net.conv1.weight])[0]
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-3)
