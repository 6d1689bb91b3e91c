"""Make the files that are shipped here from the original files of CIFAR-100: a network and its embeddings.

    python -m datasets.embedded.make --base_path data

A seed parts the 100 classes in two halves. The network is trained on one half and on nothing else. The embeddings are
those of the other half, so that they are to the network what new data are to a network that was trained before. With
`--embed_only 1` the shipped network embeds as many images as wanted, for `--dataset seq-embeddings --embeddings FILE`:

    python -m datasets.embedded.make --base_path data --embed_only 1 --train_images 500 --output embeddings.npz
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from backbone.ResNetBlock import ResNet, resnet8
from datasets.seq_cifar100 import SequentialCIFAR100
from datasets.seq_embeddings import EMBEDDED
from datasets.utils.embedding_file import write_npz
from datasets.utils.torchvision_files import load_cifar
from utils.augmentations import BatchTransform

WEIGHTS = EMBEDDED.with_name("cifar100_resnet8.npz")
SEED = 0
FILTERS, CLASSES = 32, 50  # 4 · 32 features; the network's classes, and as many others
EPOCHS, BATCH, RATE, MOMENTUM, DECAY = 30, 128, 0.1, 0.9, 5e-4
EMBED_BATCH = 250
SIZE, MEAN, STD = SequentialCIFAR100.SIZE, SequentialCIFAR100.MEAN, SequentialCIFAR100.STD
NOTES = ("seed", "class_names", "provenance")  # in the file of weights: what is no weight


class Images(NamedTuple):
    """Some classes: uint8 [N, 3, 32, 32] in channels_last memory, labels from 0."""

    x: Tensor
    y: Tensor


def split_classes(seed: int = SEED) -> tuple[list[int], list[int]]:
    """Original labels of the network's classes and of the embedded ones, in the order of the new labels.

    `RandomState` is the generator that numpy has promised to keep.
    """
    order = np.random.RandomState(seed).permutation(2 * CLASSES).tolist()
    return order[:CLASSES], order[CLASSES:]


def read_images(base_path: str, train: bool, classes: list[int], per_class: int | None = None) -> Images:
    """The first `per_class` images of each class in the order of the original file; all by default."""
    split = load_cifar("CIFAR100", base_path, train)
    labels = np.array(split.targets)
    rows = [np.flatnonzero(labels == original)[:per_class] for original in classes]
    x = torch.from_numpy(split.data[np.concatenate(rows)]).permute(0, 3, 1, 2)
    return Images(x, torch.repeat_interleave(torch.arange(len(classes)), torch.tensor([len(r) for r in rows])))


def read_class_names(base_path: str, classes: list[int]) -> list[str]:
    names = load_cifar("CIFAR100", base_path, train=False).classes
    return [names[original] for original in classes]


def transform(augment: bool, generator: torch.Generator | None = None) -> BatchTransform:
    padding = SequentialCIFAR100.CROP_PADDING if augment else 0
    return BatchTransform(SIZE, MEAN, STD, padding, augment, generator, torch.channels_last)


def train(net: ResNet, images: Images, schedule: Any, *, epochs: int, batch_size: int, seed: int, **sgd: float) -> None:
    """Epochs of SGD with the settings `sgd` on cropped and flipped images; `schedule(optimizer, steps)` is per step."""
    generator = torch.Generator().manual_seed(seed)
    augment, batches = transform(True, generator), -(-len(images.y) // batch_size)
    optimizer = torch.optim.SGD(net.parameters(), **sgd)  # type: ignore[arg-type]
    scheduler = schedule(optimizer, epochs * batches)
    net.to(memory_format=torch.channels_last).train()
    for epoch in range(epochs):
        start, total = time.perf_counter(), 0.0
        for rows in torch.randperm(len(images.y), generator=generator).split(batch_size):
            loss = F.cross_entropy(net(augment(images.x[rows])), images.y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / batches:.3f}, {time.perf_counter() - start:.0f} s", flush=True)


@torch.no_grad()
def outputs(net: ResNet, images: Images, returnt: Any = "out") -> Tensor:
    """What the network in eval mode makes of the un-augmented images."""
    plain = transform(False)
    net.to(memory_format=torch.channels_last).eval()
    return torch.cat([net(plain(x), returnt=returnt) for x in images.x.split(EMBED_BATCH)])


def accuracy(net: ResNet, images: Images) -> float:
    """In percent."""
    return 100 * (outputs(net, images).argmax(1) == images.y).double().mean().item()


def train_network(base_path: str, seed: int, epochs: int) -> ResNet:
    """On the first half of the classes, the learning rate falling to 0 on a cosine."""
    images = read_images(base_path, True, split_classes(seed)[0])
    torch.manual_seed(seed)
    net = resnet8(CLASSES, FILTERS)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR
    sgd = {"lr": RATE, "momentum": MOMENTUM, "weight_decay": DECAY}
    train(net, images, cosine, epochs=epochs, batch_size=BATCH, seed=seed, **sgd)
    return net


def save_network(path: Path, net: ResNet, **notes: Any) -> None:
    """Parameters and running statistics in float16; batches are not counted, which only training would need."""
    state = {name: value for name, value in net.state_dict().items() if not name.endswith("num_batches_tracked")}
    halves = {name: value.contiguous().half().numpy() for name, value in state.items()}
    write_npz(path, halves | {name: np.array(notes[name]) for name in NOTES})


def load_network(path: Path = WEIGHTS) -> ResNet:
    """In float32 and eval mode."""
    with np.load(path, allow_pickle=False) as file:
        state = {name: torch.from_numpy(file[name]).float() for name in file.files if name not in NOTES}
    net = resnet8(len(state["classifier.bias"]), len(state["conv1.weight"]))
    missing, unexpected = net.load_state_dict(state, strict=False)
    if unexpected or any(not name.endswith("num_batches_tracked") for name in missing):
        raise ValueError(f"{path} does not fit a ResNet-8: missing {missing}, unexpected {unexpected}")
    return net.eval()


def seed_of(path: Path = WEIGHTS) -> int:
    """The seed that chose the classes of a network."""
    with np.load(path, allow_pickle=False) as file:
        return int(file["seed"])


def quantise(features: Tensor, scale: Tensor) -> np.ndarray:
    """int8, such that feature = int8 · scale to within half a step; what exceeds 127 steps is cut."""
    return (features / scale).round_().clamp_(-127, 127).to(torch.int8).numpy()


def embed_cifar100(base_path: str, train_images: int = 200, weights: Path = WEIGHTS) -> dict[str, np.ndarray]:
    """The arrays of a file of embeddings: the classes that the network has not seen, as it sees them.

    The steps of 8 bits are taken from the network's own classes, so that they say nothing about the embedded ones.
    """
    net, seed = load_network(weights), seed_of(weights)
    own, others = split_classes(seed)
    peak = outputs(net, read_images(base_path, True, own), "features").amax(0)
    scale = torch.where(peak > 0, peak, 1) / 127
    training, test = read_images(base_path, True, others, train_images), read_images(base_path, False, others)
    provenance = (
        f"CIFAR-100 (Krizhevsky, 2009): {CLASSES} classes, the first {train_images} training and all test images of "
        f"each; features of a ResNet-8 of {FILTERS} filters that was trained on the other {CLASSES} classes; "
        f"python -m datasets.embedded.make --seed {seed}"
    )
    return {
        "train_x": quantise(outputs(net, training, "features"), scale),
        "train_y": training.y.numpy().astype(np.uint8),
        "test_x": quantise(outputs(net, test, "features"), scale),
        "test_y": test.y.numpy().astype(np.uint8),
        "scale": scale.numpy(),
        "class_names": np.array(read_class_names(base_path, others)),
        "provenance": np.array(provenance),
    }


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base_path", default="data", help="folder with cifar-100-python/ or CIFAR100/")
    parser.add_argument("--seed", type=int, default=SEED, help="of the classes, the initial weights and the batches")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="epochs of training the network")
    parser.add_argument("--train_images", type=int, default=200, help="training images of each class to be embedded")
    parser.add_argument("--embed_only", type=int, choices=(0, 1), default=0, help="use the network that is there")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="file of the network")
    parser.add_argument("--output", type=Path, default=EMBEDDED, help="file of the embeddings")
    return parser.parse_args(arguments)


def make_network(args: argparse.Namespace) -> None:
    start = time.perf_counter()
    net = train_network(args.base_path, args.seed, args.epochs)
    names = read_class_names(args.base_path, split_classes(args.seed)[0])
    provenance = (
        f"ResNet-8 of {FILTERS} filters, trained {args.epochs} epochs on {CLASSES} classes of CIFAR-100 "
        f"(Krizhevsky, 2009); python -m datasets.embedded.make --seed {args.seed}"
    )
    save_network(args.weights, net, seed=args.seed, class_names=names, provenance=provenance)
    print(f"trained in {(time.perf_counter() - start) / 60:.1f} minutes")


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    torch.set_num_threads(1)  # sums in another order would be other bytes
    if not args.embed_only:
        make_network(args)
    own, _ = split_classes(seed_of(args.weights))
    found = accuracy(load_network(args.weights), read_images(args.base_path, False, own))
    print(f"accuracy on the test images of the network's own {CLASSES} classes: {found:.1f} %")
    write_npz(args.output, embed_cifar100(args.base_path, args.train_images, args.weights))
    for path in (args.weights, args.output):
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
