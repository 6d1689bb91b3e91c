"""`embed.py`: what a network says about images becomes a file that `seq-embeddings` trains on."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import run
from PIL import Image
from torch import nn

import embed
from backbone.pretrained import make_embedder
from datasets.utils.embedding_file import read_embeddings
from utils.errors import UsageError, UserError


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint of a small network on the digits, and the model in it."""
    folder = tmp_path_factory.mktemp("trained")
    flags = ["--dataset", "seq-digits", "--n_epochs", "1", "--savecheck", "last", "--checkpoint_path", str(folder)]
    _, model, _ = run(folder, *flags, model="sgd")
    return next(folder.glob("*.pt")), model


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_a_network_of_ours_embeds_a_dataset(tmp_path: Path, trained: tuple[Path, Any], dtype: str) -> None:
    checkpoint, model = trained
    output = tmp_path / "digits.npz"
    line = ["--dataset", "seq-digits", "--backbone", "mnistmlp", "--loadcheck", str(checkpoint), "--dtype", dtype]
    embed.run([*line, "--output", str(output), "--device", "cpu"])
    content = read_embeddings(str(output))
    images, labels = model.dataset.load_split(train=True)
    batch = torch.from_numpy(images).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = model.net(model.normalization_transform(batch), returnt="features").numpy()
    scale = np.load(output)["scale"] if dtype == "int8" else 1.0
    error = {"int8": 0.51 * np.max(scale), "float16": 2e-3 * np.abs(expected).max(), "float32": 1e-4}[dtype]
    assert np.abs(content.train_x * scale - expected).max() <= error and np.array_equal(content.train_y, labels)
    assert content.train_x.dtype == dtype and content.class_names == [str(digit) for digit in range(10)]
    assert "--backbone mnistmlp" in content.provenance and "sha256" in content.provenance
    flags = ["--dataset", "seq-embeddings", "--embeddings", str(output), "--n_tasks", "5", "--buffer_size", "50"]
    summary, _, _ = run(tmp_path, *flags, "--n_epochs", "2", model="er")
    assert summary["class_il"]["FAA"] > 60


def folder_of_images(root: Path) -> Path:
    """Two classes, by colour, of images that differ in size."""
    random = np.random.RandomState(0)
    for part, count in (("train", 6), ("test", 3)):
        for name, colour in (("blue", (0, 0, 200)), ("red", (200, 0, 0))):
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = np.clip(np.array(colour) + random.randint(0, 50, (30 + i, 40, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{i}.png")
    return root


@pytest.mark.slow
def test_torchvision_embeds_a_folder_with_weights_from_a_file(tmp_path: Path) -> None:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    net, weights, output = resnet18(), tmp_path / "weights.pth", tmp_path / "folder.npz"
    torch.save(net.state_dict(), weights)
    line = ["--images", str(folder_of_images(tmp_path / "images")), "--backbone", "torchvision/resnet18"]
    embed.run([*line, "--weights", str(weights), "--output", str(output), "--device", "cpu", "--batch_size", "4"])
    content = read_embeddings(str(output))
    assert content.train_x.shape == (12, 512) and content.class_names == ["blue", "red"]
    assert content.train_y.tolist() == [0] * 6 + [1] * 6
    net.fc = nn.Identity()  # type: ignore[assignment]
    from torchvision.models import ResNet18_Weights

    prepare = ResNet18_Weights.DEFAULT.transforms()
    with torch.no_grad(), Image.open(tmp_path / "images" / "train" / "blue" / "0.png") as image:
        expected = net.eval()(prepare(torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]))[0].numpy()
    assert np.abs(content.train_x[0].astype(float) - expected).max() < 5e-3 * np.abs(expected).max()


def test_timm_says_how_it_wants_its_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm is not among the dependencies: what is asked of it here is its documented interface."""
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    wants = {
        "input_size": (3, 16, 16),
        "mean": (0.5,) * 3,
        "std": (0.25,) * 3,
        "crop_pct": 0.8,
        "interpolation": "bicubic",
    }
    fake = SimpleNamespace(
        is_model=lambda name: name == "tiny",
        list_models=lambda: ["tiny"],
        create_model=lambda name, pretrained, num_classes: net,
        data=SimpleNamespace(resolve_model_data_config=lambda net: wants),
    )
    monkeypatch.setitem(sys.modules, "timm", fake)
    embedder = make_embedder("timm/tiny", None, None, None, {})
    images = embedder.resized(torch.full((2, 3, 40, 60), 255, dtype=torch.uint8))
    assert images.shape == (2, 3, 16, 16) and embedder.resize == [20]
    assert torch.allclose(embedder.features(embedder.normalised(images)), torch.full((2, 3), 2.0))
    with pytest.raises(UsageError, match="did you mean 'tiny'"):
        make_embedder("timm/tony", None, None, None, {})


def test_weights_that_cannot_be_fetched_say_where_to_put_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("torch.hub.download_url_to_file", unreachable)
    monkeypatch.setattr("torch.hub.get_dir", lambda: "/nowhere/hub")
    with pytest.raises(UserError, match=r"/nowhere/hub/checkpoints/resnet18-.*pth or give it by --weights") as caught:
        make_embedder("torchvision/resnet18", None, None, None, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--dataset", "seq-digits"], "--backbone resnet18 needs trained weights"),
        ([], "give one of --dataset and --images"),
        (["--dataset", "seq-digits", "--images", "x"], "give one of --dataset and --images"),
        (["--images", "/nowhere"], "/nowhere/train is missing"),
        (["--dataset", "seq-digits", "--output", "a.txt"], "written as .npz"),
        (["--dataset", "seq-digits", "--device", "gpu"], "^--device gpu can't be used; give cpu, cuda or cuda:0"),
    ],
)
def test_a_wrong_command_is_one_line(flags: list[str], reason: str) -> None:
    backbone = ["--backbone", "torchvision/resnet18", "--weights", "x.pth"] if "--images" in flags else []
    output = [] if "--output" in flags else ["--output", "a.npz"]
    with pytest.raises(UserError, match=reason):
        embed.run([*(backbone or ["--backbone", "resnet18"]), *output, *flags])


def test_what_is_missing_has_no_preset_to_come_from() -> None:
    with pytest.raises(UsageError, match=r"^missing --backbone, --output: no default .*; give a value$"):
        embed.run(["--dataset", "seq-digits"])


def test_nothing_is_written_when_embedding_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "embed", lambda *_: np.full((1, 4), np.nan, np.float32))
    torch.save({"classifier.bias": torch.zeros(10)}, tmp_path / "w.pth")
    monkeypatch.setattr("backbone.pretrained.make_embedder", lambda *_: SimpleNamespace(net=nn.Identity()))
    with pytest.raises(UserError):
        embed.run(["--dataset", "seq-digits", "--backbone", "mnistmlp", "--output", str(tmp_path / "a.npz")])
    assert not (tmp_path / "a.npz").exists()
