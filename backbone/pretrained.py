"""Networks that embed images: ours with trained weights, torchvision's and timm's, and how each wants its images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from backbone.utils.imagenet import fetched
from utils.errors import UsageError, UserError, nearest

BY_HAND = "give it by --weights"


@dataclass(frozen=True)
class Embedder:
    """A network, the features that it gives of a batch, and the images that it wants."""

    name: str
    net: nn.Module
    features: Callable[[Tensor], Tensor]
    resize: Sequence[int]  # [shorter side], or [height, width]
    crop: Sequence[int] | None  # [height, width] in the middle of the resized image
    mean: Sequence[float] | None
    std: Sequence[float] | None
    interpolation: str = "bilinear"
    channels: int = 3

    def resized(self, images: Tensor) -> Tensor:
        """Bytes NCHW of any size as bytes of the network's size."""
        from torchvision.transforms.v2 import functional as tv  # not above: it takes as long to import as torch

        images = images.expand(-1, self.channels, -1, -1) if images.shape[1] == 1 else images
        if images.shape[1] != self.channels:
            raise UserError(f"{self.name} takes images of {self.channels} channels, not of {images.shape[1]}")
        if list(images.shape[2:]) != list(self.resize):
            size = self.resize[0] if len(self.resize) == 1 else self.resize
            images = tv.resize(images, size, tv.InterpolationMode(self.interpolation), antialias=True)  # type: ignore
        return images if self.crop is None else tv.center_crop(images, list(self.crop))

    def normalised(self, images: Tensor) -> Tensor:
        """Bytes as the floats that enter the network."""
        inputs = images.float() / 255
        if self.mean is None or self.std is None:
            return inputs
        mean, std = (torch.tensor(values, device=images.device).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return (inputs - mean) / std


def make_embedder(backbone: str, loadcheck: str | None, weights: str | None, dataset: Any, options: Any) -> Embedder:
    """`timm/…`, `torchvision/…` or a network of this project, in eval mode."""
    library, slash, name = backbone.partition("/")
    if slash and loadcheck:
        raise UsageError(f"--loadcheck {loadcheck} is for networks of this project; give {backbone} its --weights")
    if slash and library not in LIBRARIES:
        raise UsageError(f"--backbone {backbone}: {library} is no library known here; use timm/… or torchvision/…")
    found = LIBRARIES[library](name, weights) if slash else _own(backbone, loadcheck, weights, dataset, options)
    found.net.eval().requires_grad_(False)
    return found


# -- ours --------------------------------------------------------------------------------------------------------------


def _own(name: str, loadcheck: str | None, weights: str | None, dataset: Any, options: Any) -> Embedder:
    """Weights from a run (`--savecheck`), whose dataset also says how images are normalised, or from a state dict."""
    from backbone import get_backbone_class
    from datasets import get_dataset_class
    from utils.checkpoints import read_mammoth_checkpoint

    if (loadcheck is None) == (weights is None):
        raise UsageError(f"--backbone {name} needs trained weights: give one of --loadcheck and --weights")
    stored = read_mammoth_checkpoint(Path(loadcheck)).get("args") or {} if loadcheck else {}
    if stored.get("dataset"):
        from argparse import Namespace

        dataset = get_dataset_class(Namespace(dataset=stored["dataset"], dataset_config=stored.get("dataset_config")))
    if dataset is None:
        raise UsageError(f"--backbone {name}: nothing says how it wants its images; give the --loadcheck of a run")
    state = {key.removeprefix("net."): value for key, value in read_state(str(loadcheck or weights)).items()}
    factory, parameters = get_backbone_class(name, True)
    height, width = dataset.SIZE
    known = {"in_channels": dataset.CHANNELS, "input_size": dataset.CHANNELS * height * width} | stored | options
    known["num_classes"] = len(state["classifier.bias"]) if "classifier.bias" in state else stored.get("num_classes", 1)
    net = factory(**{n: known[n] for n in parameters if n in known})
    _load(net, state, f"--{'loadcheck' if loadcheck else 'weights'} {loadcheck or weights}")
    return Embedder(
        name, net, lambda x: net(x, returnt="features"), [height, width], None, dataset.MEAN, dataset.STD,
        channels=dataset.CHANNELS,
    )  # fmt: skip


def read_state(file: str) -> dict[str, Tensor]:
    """A state dict in .npz, .safetensors or torch's own format, read without running code."""
    from datasets.utils.embedding_file import read_arrays
    from utils.checkpoints import read_mammoth_checkpoint

    path = Path(file)
    if not path.is_file():
        raise UserError(f"--weights {file} does not exist; give a state dict in .pth, .safetensors or .npz")
    if path.suffix in (".npz", ".safetensors"):
        arrays = read_arrays(path, "--weights")
        floats = {name: array for name, array in arrays.items() if np.asarray(array).dtype.kind == "f"}  # not its notes
        return {name: torch.from_numpy(array.copy()).float() for name, array in floats.items()}
    content = read_mammoth_checkpoint(path)
    return content["model"] if "args" in content else content


def _load(net: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """All weights must be there; counters of batches need not, nor a head that is not used."""
    try:
        missing, unexpected = net.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise UserError(f"{source} does not fit the network: {' '.join(str(error).split())[:300]}") from None
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    unused = {"fc.", "head.", "heads.", "classifier."}
    wrong = missing + [name for name in unexpected if not any(name.startswith(part) for part in unused)]
    if wrong:
        raise UserError(f"{source} does not fit the network: {', '.join(wrong[:3])}; name the backbone that it is of")


# -- others' -----------------------------------------------------------------------------------------------------------


def _torchvision(name: str, weights: str | None) -> Embedder:
    from torchvision import models

    if name not in models.list_models(module=models):
        raise UsageError(f"--backbone torchvision/{name} is unknown{nearest(name, models.list_models(module=models))}")
    default = models.get_model_weights(name).DEFAULT
    net: nn.Module = models.get_model(name, weights=None)
    state = (
        read_state(weights) if weights else fetched(lambda: default.get_state_dict(progress=True), default.url, BY_HAND)
    )
    _load(net, state, f"--weights {weights}" if weights else default.url)
    replace_head(net)
    wants = default.transforms()
    return Embedder(
        f"torchvision/{name}", net, net, wants.resize_size, wants.crop_size * (2 // len(wants.crop_size)), wants.mean,
        wants.std, wants.interpolation.value,
    )  # fmt: skip


def _timm(name: str, weights: str | None) -> Embedder:
    try:
        import timm
    except ImportError:
        raise UsageError(f"--backbone timm/{name}: timm is not installed; `pip install timm` adds it") from None
    if not timm.is_model(name):
        raise UsageError(f"--backbone timm/{name} is unknown{nearest(name, timm.list_models())}")
    net = fetched(lambda: timm.create_model(name, pretrained=weights is None, num_classes=0), f"timm/{name}", BY_HAND)
    if weights:
        _load(net, read_state(weights), f"--weights {weights}")
    wants = timm.data.resolve_model_data_config(net)
    _, *size = wants["input_size"]
    resize = [round(min(size) / wants.get("crop_pct", 1.0))]
    return Embedder(
        f"timm/{name}", net, net, resize, size, wants["mean"], wants["std"], wants.get("interpolation", "bilinear")
    )


LIBRARIES = {"torchvision": _torchvision, "timm": _timm}


def replace_head(net: nn.Module) -> None:
    """Let a classifier's last linear layer pass its input on."""
    name = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)][-1]
    parent, _, own = name.rpartition(".")
    setattr(net.get_submodule(parent), own, nn.Identity())
