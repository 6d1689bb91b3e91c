"""`python embed.py --dataset seq-cifar100 --backbone torchvision/resnet18 --output a.npz`: embeddings of a dataset.

The file is for `python main.py --dataset seq-embeddings --embeddings a.npz`. The network may be one of this project
(`--backbone resnet18 --loadcheck FILE`, written by `--savecheck`), torchvision's (`torchvision/resnet18`) or timm's
(`timm/vit_small_patch16_224`).
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import utils.cli.installed  # noqa: F401  first of all
from utils.args import ArgumentParser, choice, number
from utils.cli.checks import require_device
from utils.cli.console import one_line_failures, open_standard_streams
from utils.errors import UsageError
from utils.resume.files import file_digest


def parse(argv: list[str]) -> argparse.Namespace:
    parser = ArgumentParser(description=__doc__, prog="embed.py")
    add = parser.add_argument
    add("--dataset", help="a dataset of this project, whose images are embedded")
    add("--images", metavar="FOLDER", help="instead of a dataset: FOLDER/train/CLASS/*.jpg and FOLDER/test/CLASS/*.jpg")
    add("--backbone", required=True, help="a network of this project, torchvision/NAME or timm/NAME")
    add("--loadcheck", metavar="FILE", help="weights of a network of this project, as --savecheck writes them")
    add("--weights", metavar="FILE", help="state dict for any network, in place of what would be fetched")
    add("--num_filters", type=number(int, 1), help="with --weights: width of a network of this project")
    add("--output", metavar="FILE", required=True, help="an .npz file")
    add("--dtype", type=choice("int8", "float16", "float32"), default="float16", help="type of the stored vectors")
    add("--batch_size", type=number(int, 1), default=128, help="images per forward pass")
    add("--device", help="cpu, cuda, …; as for main.py")
    add("--base_path", metavar="DIR", help="root of datasets, as for main.py")
    args = parser.parse_strictly(argv, argparse.Namespace())
    if (args.dataset is None) == (args.images is None):
        raise UsageError("give one of --dataset and --images")
    require_device(args.device)
    if Path(args.output).suffix != ".npz":
        raise UsageError(f"--output {args.output}: embeddings are written as .npz; give such a name")
    return args


def embed(embedder: Any, source: Any, device: Any, batch_size: int, title: str) -> Any:
    """Features [N, d] in float32 of all images of a source."""
    import torch
    from tqdm import tqdm

    parts = []
    with torch.no_grad(), tqdm(total=len(source), desc=title, unit=" images") as bar:
        for groups in source.batches(batch_size):
            images = torch.cat([embedder.resized(group) for group in groups]).to(device)
            parts.append(embedder.features(embedder.normalised(images)).flatten(1).float().cpu())
            bar.update(len(images))
    return torch.cat(parts).numpy()


def stored(train_x: Any, test_x: Any, dtype: str) -> dict[str, Any]:
    """In the type wanted; 8 bits with a scale for each feature, which only the training images decide."""
    import numpy as np

    if dtype != "int8":
        return {"train_x": train_x.astype(dtype), "test_x": test_x.astype(dtype)}
    peak = np.abs(train_x).max(0)
    scale = np.where(peak > 0, peak, 1).astype(np.float32) / 127
    codes = {
        n: (x / scale).round().clip(-127, 127).astype(np.int8) for n, x in (("train_x", train_x), ("test_x", test_x))
    }
    return codes | {"scale": scale}


def provenance(args: argparse.Namespace, argv: list[str]) -> str:
    """The command, and the content of the file of weights."""
    file = args.loadcheck or args.weights
    weights = f"; weights sha256 {file_digest(file)}" if file else ""
    return f"python embed.py {shlex.join(argv)}{weights}"


def run(argv: list[str]) -> None:
    args = parse(argv)
    import numpy as np

    from backbone.pretrained import make_embedder
    from datasets.utils.embedding_file import read_embeddings, write_embeddings
    from datasets.utils.image_source import DatasetSource, dataset_of, folder_sources
    from utils.conf import get_device
    from utils.status import say

    dataset = dataset_of(args.dataset, args.base_path) if args.dataset else None
    if dataset is not None:
        train, test, names = DatasetSource(dataset, True), DatasetSource(dataset, False), dataset.load_class_names()
    else:
        train, test, names = folder_sources(args.images)  # type: ignore[assignment]
    options = {} if args.num_filters is None else {"num_filters": args.num_filters}
    embedder = make_embedder(args.backbone, args.loadcheck, args.weights, dataset, options)
    device = get_device(args.device)
    embedder.net.to(device)
    vectors = [embed(embedder, part, device, args.batch_size, t) for part, t in ((train, "training"), (test, "test"))]
    arrays = stored(*vectors, args.dtype) | {"train_y": train.labels, "test_y": test.labels}
    arrays |= {"class_names": np.array(names), "provenance": np.array(provenance(args, argv))}
    write_embeddings(Path(args.output), arrays)
    content = read_embeddings(args.output)
    say(f"{args.output}: {len(train)} + {len(test)} vectors of {content.width} features, {content.n_classes} classes")


def main(argv: list[str] | None = None) -> None:
    open_standard_streams()
    with one_line_failures():
        run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    main()
