"""iCaRL: the loss of a step, exemplars and the training set that they join, the nearest mean, and exact resume."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import final_state, run, run_directory, uncapturable
from method_helpers import RESNET, Killed, assert_exact_resume, begin_task, build, kill_at

from datasets.seq_digits import SequentialDigits
from models.icarl import ICarl, halving_mean
from utils.augmentations import to_uint8
from utils.cli.parse import parse_args
from utils.errors import UsageError
from utils.herding import herd

pytestmark = pytest.mark.numeric

BUFFER = ["--buffer_size", "50"]


def train_task(model: ICarl, steps: int = 3) -> None:
    for batch in begin_task(model)[:steps]:
        model.observe(*batch)
    model.meta_end_task(model.dataset)


def normalised(images: torch.Tensor) -> torch.Tensor:
    return (images.float() / 255 - 0.3058) / 0.3764


def bytes_of(images: torch.Tensor) -> list[tuple[int, ...]]:
    return [tuple(image.flatten().tolist()) for image in images]


# -- a step ------------------------------------------------------------------------------------------------------------


def binary_cross_entropy(logit: torch.Tensor, target: torch.Tensor | float) -> torch.Tensor:
    p = 1 / (1 + (-logit).exp())
    return -(target * p.log() + (1 - target) * (1 - p).log())


def test_step_is_the_gradient_of_the_loss(device: torch.device, tmp_path: Path) -> None:
    """Task 2 of the digits: outputs 0 and 1 are distilled, 2 and 3 learn labels, the others are left alone."""
    flags = ["--lr", "0.1", "--optim_wd", "0.01", "--device", device.type]
    model = build("icarl", tmp_path, *BUFFER, *RESNET, *flags)
    train_task(model)
    batches = begin_task(model)
    first, second = batches[:2]
    model.observe(*first)
    inputs, labels, _ = second
    assert {0, 1, 2, 3} == set(labels.tolist())  # exemplars are in it
    net, old = copy.deepcopy(model.net), copy.deepcopy(model.old_net)
    loss = model.observe(*second)

    outputs, past = net(inputs), old(inputs).sigmoid()
    assert not torch.allclose(past, net.eval()(inputs).sigmoid(), atol=1e-2)  # not the network as it is now
    rows: list[Any] = []
    for output, p, label in zip(outputs, past, labels.tolist(), strict=True):
        targets = [p[0], p[1], float(label == 2), float(label == 3)]
        rows += [binary_cross_entropy(output[c], target) for c, target in enumerate(targets)]
    expected = torch.stack(rows).sum() / (len(labels) * 4)
    torch.testing.assert_close(loss, expected.detach())
    assert not loss.requires_grad
    gradients = torch.autograd.grad(expected, list(net.parameters()))
    for new, before, gradient in zip(model.net.parameters(), net.parameters(), gradients, strict=True):
        assert torch.allclose(new, before - 0.1 * (gradient + 0.01 * before), atol=1e-6)
    assert (dict(net.named_parameters())["classifier.weight"].grad is None) and gradients[-1][4:].eq(0).all()


def test_first_task_has_one_hot_targets_only(tmp_path: Path) -> None:
    model = build("icarl", tmp_path, *BUFFER)
    inputs, labels, not_aug = begin_task(model)[0]
    outputs = model.net(inputs).detach()
    loss = model.observe(inputs, labels, not_aug)
    rows = [binary_cross_entropy(o[c], float(y == c)) for o, y in zip(outputs, labels, strict=True) for c in (0, 1)]
    assert model.old_net is None and loss.item() == pytest.approx(torch.stack(rows).mean().item())


def test_the_old_network_is_frozen(tmp_path: Path) -> None:
    model = build("icarl", tmp_path, *BUFFER, *RESNET)
    train_task(model)
    final = copy.deepcopy(model.net.state_dict())
    for batch in begin_task(model)[:3]:
        model.observe(*batch)
        assert not any(module.training for module in model.old_net.modules())
        assert all(torch.equal(value, final[name]) for name, value in model.old_net.state_dict().items())
    assert not any(p.requires_grad or p.grad is not None for p in model.old_net.parameters())
    assert not torch.equal(model.net.classifier.weight, final["classifier.weight"])
    model.meta_end_task(model.dataset)
    assert model.old_net is None


# -- exemplars ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", ["0", "1"])
def test_exemplars_of_each_class_after_each_task(reference: str, tmp_path: Path) -> None:
    """M = 23: ⌊23 / seen⌋ of each class. New ones are herded in eval mode, old ones keep their first."""
    model = build("icarl", tmp_path, "--buffer_size", "23", *RESNET, "--icarl_reference", reference)
    buffer, old = model.buffer, {}
    for task, quota in enumerate([11, 5, 3, 2, 2]):
        begin_task(model)
        model.observe(*next(iter(model.dataset.train_loader)))
        model.net.layer3.eval()  # modules may be in different modes
        before = copy.deepcopy(model.net)
        model.meta_end_task(model.dataset)
        assert [m.training for m in model.net.modules()] == [m.training for m in before.modules()]
        for name, value in model.net.state_dict().items():
            assert torch.equal(value, before.state_dict()[name]), name
        seen, stored = 2 * task + 2, len(buffer)
        assert buffer.labels[:stored].tolist() == [label for label in range(seen) for _ in range(quota)]
        exemplars = {label: buffer.examples[:stored][buffer.labels[:stored] == label] for label in range(seen)}
        for label in range(seen - 2):
            assert torch.equal(exemplars[label], old[label][:quota])
        images = model.dataset.train_loader.dataset
        assert len(images) == images.n_own
        for label in range(seen - 2, seen):  # every byte is that of the training set
            members = images.data[images.targets == label].permute(0, 3, 1, 2)
            with torch.no_grad():
                features = before.eval()(normalised(members), returnt="features")
            if reference == "0":
                features = features / features.norm(dim=1, keepdim=True)
            assert bytes_of(exemplars[label]) == bytes_of(members[herd(features, quota)])
        old = exemplars


def test_exemplars_join_the_training_set(tmp_path: Path) -> None:
    model = build("icarl", tmp_path, *BUFFER)
    train_task(model)
    images = model.dataset.train_loader.dataset
    originals = set(bytes_of(images.data.permute(0, 3, 1, 2)))
    exemplars = [*bytes_of(model.buffer.examples)]
    assert len(exemplars) == 50 and set(exemplars) <= originals

    batches = begin_task(model)
    images = model.dataset.train_loader.dataset
    own = images.n_own
    labels = torch.cat([batch[1] for batch in batches])
    assert len(labels) == len(images) == own + 50
    assert torch.bincount(labels)[:2].tolist() == [25, 25] and (labels < 2).sum() == 50
    plain = torch.cat([batch[2] for batch in batches])[labels < 2]
    assert sorted(bytes_of(to_uint8(plain))) == sorted(exemplars)  # as they were, to the last bit
    model.meta_end_task(model.dataset)
    assert len(images) == own and images.targets.min() == 2


# -- prediction --------------------------------------------------------------------------------------------------------


def slow_means(model: ICarl, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    net = copy.deepcopy(model.net).double().eval()
    means = []
    for label in labels.unique():
        features = [net(normalised(image[None]).double(), returnt="features")[0] for image in images[labels == label]]
        mean = torch.stack([feature / feature.norm() for feature in features]).mean(0)
        means.append(mean / mean.norm())
    return torch.stack(means).detach()


@pytest.mark.parametrize("network", [[], RESNET], ids=["mlp", "resnet"])
def test_prediction_is_the_nearest_mean_of_exemplars(network: list[str], tmp_path: Path) -> None:
    model = build("icarl", tmp_path, *BUFFER, *network)
    train_task(model, steps=9)
    train_task(model, steps=9)
    model.net.eval()
    images = model.dataset.test_loaders[1].dataset
    x = normalised(images.data.permute(0, 3, 1, 2))
    scores = model(x)
    assert scores.shape == (len(x), 10) and (scores[:, 4:] == -math.inf).all() and scores[:, :4].isfinite().all()
    means = slow_means(model, model.buffer.examples[:48], model.buffer.labels[:48])
    net = copy.deepcopy(model.net).double()
    for image, row in zip(x, scores, strict=True):
        feature = net(image[None].double(), returnt="features")[0]
        feature = feature / feature.norm()
        distances = torch.stack([(feature - mean).norm() for mean in means]).detach()
        torch.testing.assert_close(-row[:4].double(), distances, atol=1e-5, rtol=1e-5)
        assert row.argmax() == distances.argmin()


@pytest.mark.parametrize("reference", ["0", "1"])
def test_a_class_without_images_is_never_the_nearest(reference: str, tmp_path: Path) -> None:
    """With one labelled image a task has one of its two classes; the mean of no features is NaN."""
    model = build("icarl", tmp_path, *BUFFER, "--label_perc", "0.005", "--icarl_reference", reference)
    train_task(model)
    known = model.buffer.labels[: len(model.buffer)].unique()
    assert len(known) == 1
    scores = model(normalised(torch.rand(20, 1, 8, 8)))
    assert (scores.argmax(1) == known).all() and not scores.isnan().any()
    assert (scores[:, 1 - int(known)] == -math.inf).all()


def test_means_follow_the_parameters(tmp_path: Path) -> None:
    model = build("icarl", tmp_path, *BUFFER)
    train_task(model)
    batch = begin_task(model)[0]
    model.net.eval()
    before = model(batch[0])
    means = model.class_means
    model(batch[0])
    assert model.class_means is means  # computed once
    model.observe(*batch)
    assert model.class_means is None and not torch.equal(model(batch[0]), before)
    model.meta_end_task(model.dataset)
    assert model.class_means is None


def test_during_a_task_its_training_images_stand_for_exemplars(tmp_path: Path) -> None:
    model = build("icarl", tmp_path, *BUFFER)
    x = torch.randn(4, 1, 8, 8)
    assert torch.equal(model(x), model.net(x))  # nothing was met yet
    for task in range(2):
        batches = begin_task(model)
        model.observe(*batches[0])
        scores = model(x)
        images = model.dataset.train_loader.dataset
        train = images.data[: images.n_own].permute(0, 3, 1, 2), images.targets[: images.n_own]
        means = slow_means(model, *train)
        if task:
            means = torch.cat([slow_means(model, model.buffer.examples, model.buffer.labels), means])
        assert torch.allclose(model.class_means.double(), means, atol=1e-5)
        assert torch.equal(scores.isfinite().sum(1), torch.full((4,), 2 * task + 2))
        model.meta_end_task(model.dataset)


def test_evaluation_at_any_time(tmp_path: Path) -> None:
    flags = ["--n_epochs", "2", "--eval_epochs", "1", "--enable_other_metrics", "1", "--stop_after", "3"]
    _, _, directory = run(tmp_path, *BUFFER, *flags, model="icarl")
    events = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    middle = [event for event in events if event["event"] == "eval"]
    assert len(middle) == 3 and all(min(event["class_il"]) > 50 for event in middle)


def test_halving_means() -> None:
    """80 exemplars: chunks of 32, 32 and 16 with weights ¼, ¼ and ½."""
    features = torch.randn(80, 5, generator=torch.Generator().manual_seed(0))
    expected = features[:32].mean(0) / 4 + features[32:64].mean(0) / 4 + features[64:].mean(0) / 2
    torch.testing.assert_close(halving_mean(features), expected)
    torch.testing.assert_close(halving_mean(features[:32]), features[:32].mean(0))
    assert not torch.allclose(halving_mean(features), features.mean(0), atol=1e-2)


def test_reference_prediction(tmp_path: Path) -> None:
    model = build("icarl", tmp_path, "--buffer_size", "160", "--icarl_reference", "1")
    train_task(model, steps=9)
    model.net.eval()
    exemplars = model.buffer.examples
    x = normalised(exemplars[::7])
    scores = model(x)
    with torch.no_grad():
        features = model.net(normalised(exemplars), returnt="features")
        means = []
        for of_class in (features[:80], features[80:]):
            first, second, third = of_class[:32].mean(0), of_class[32:64].mean(0), of_class[64:].mean(0)
            means.append(((first + second) / 2 + third) / 2)
        expected = [[(z - mean).norm() for mean in means] for z in features[::7]]
    torch.testing.assert_close(-scores[:, :2], torch.tensor(expected))


# -- runs --------------------------------------------------------------------------------------------------------------


def faa(path: Path, model: str, seed: int, *flags: str) -> float:
    return run(path, "--n_epochs", "2", "--lr", "0.1", *flags, model=model, seed=seed)[0]["class_il"]["FAA"]


@pytest.mark.slow
def test_it_beats_fine_tuning_and_er(tmp_path: Path) -> None:
    """20 exemplars, two of each class in the end; paired means over 5 seeds. ER fills at ends of tasks, its best."""
    runs = {
        "icarl": ["icarl", "--buffer_size", "20"],
        "sgd": ["sgd"],
        "er": ["er", "--buffer_size", "20", "--buffer_fill", "task_end"],
    }
    scores = {
        name: [faa(tmp_path / f"{name}{seed}", model, seed, *flags) for seed in range(5)]
        for name, (model, *flags) in runs.items()
    }
    gains = {name: sum(a - b for a, b in zip(scores["icarl"], scores[name], strict=True)) / 5 for name in ("sgd", "er")}
    assert gains["sgd"] > 30 and gains["er"] > 2, gains  # their standard errors: at most 1 and 3
    reference = faa(tmp_path / "reference", *runs["icarl"][:1], 0, *runs["icarl"][1:], "--icarl_reference", "1")
    assert reference > scores["sgd"][0] + 30


@pytest.mark.parametrize("network", [[], [*RESNET, "--batch_size", "70"]], ids=["mlp", "resnet"])
def test_tasks_of_any_size(network: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SequentialDigits, "N_CLASSES_PER_TASK", [3, 1, 4, 2])
    monkeypatch.setattr(SequentialDigits, "N_TASKS", 4)
    _, model, _ = run(tmp_path, "--buffer_size", "10", "--n_epochs", "1", *network, "-O", "1", model="icarl")
    assert model.buffer.labels.tolist() == list(range(10)) and uncapturable(model) == []


@pytest.mark.slow
@pytest.mark.parametrize(("network", "tasks"), [([], 3), (RESNET, 2)], ids=["mlp", "resnet"])
def test_resume_is_exact(network: list[str], tasks: int, tmp_path: Path) -> None:
    assert_exact_resume(ICarl, tmp_path, *BUFFER, *network, tasks=tasks)


def test_the_middle_of_a_resumed_epoch_has_the_exemplars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """9 steps in task 1, then 288 + 50 images make 11 steps in task 2; killed in the fifth."""
    flags = ["--n_epochs", "1", "--stop_after", "2", *BUFFER]
    with monkeypatch.context() as patch:
        kill_at(ICarl, 14, patch)
        with pytest.raises(Killed):
            run(tmp_path, *flags, "--checkpoint_every", "2", model="icarl")
    state = final_state(run_directory(tmp_path))
    assert (state["position"]["task"], state["position"]["task_step"]) == (1, 3)
    images, labels = state["edits"]["rows"]
    assert state["edits"]["appended"] and images.dtype == torch.uint8 and len(images) == len(labels) == 50

    observed: list[torch.Tensor] = []
    observe = ICarl.observe
    monkeypatch.setattr(ICarl, "observe", lambda self, x, y, z: observed.append(y) or observe(self, x, y, z))
    summary, model, _ = run(tmp_path, *flags, model="icarl")
    n_own = model.dataset.train_loader.dataset.n_own
    assert sum(map(len, observed)) == n_own + 50 - 3 * 32 and summary["steps"] == 9 + math.ceil((n_own + 50) / 32)
    assert 0 < int((torch.cat(observed) < 2).sum()) <= 50


def test_starting_late(tmp_path: Path) -> None:
    """Tasks that are passed over are herded, too: the first task trained has their exemplars."""
    flags = ["--start_from", "2", "--stop_after", "3", "--n_epochs", "1", *BUFFER]
    _, model, _ = run(tmp_path, *flags, model="icarl")
    assert torch.bincount(model.buffer.labels[: len(model.buffer)]).tolist() == [8] * 6


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--buffer_size 9: .* each class, and seq-digits has 10; use at least 10$"):
        build("icarl", tmp_path, "--buffer_size", "9")
    with pytest.raises(UsageError, match="--task_free 1: icarl needs task boundaries"):
        parse_args(["--model", "icarl", *BUFFER, "--task_free", "1"])


@pytest.mark.parametrize(
    ("dataset", "buffer_size", "lr"),
    [
        ("seq-cifar10", 500, 0.1),
        ("seq-cifar10", 2000, 0.1),
        ("seq-cifar100", 500, 0.3),
        ("seq-cifar100", 2000, 0.3),
        ("seq-tinyimg", 2000, 0.03),
        ("seq-tinyimg", 5000, 0.03),
    ],
)
def test_presets(dataset: str, buffer_size: int, lr: float) -> None:
    flags = ["--model", "icarl", "--dataset", dataset, "--buffer_size", str(buffer_size)]
    args = parse_args([*flags, "--model_config", "best"])
    assert (args.lr, args.optim_wd, args.icarl_reference) == (lr, 1e-5, False)
    args = parse_args(flags)
    assert (args.lr, args.optim_wd) == (0.1, 1e-5)
