"""What dataset files of Mammoth import from those of CIFAR: torchvision's classes under Mammoth's names."""

from __future__ import annotations

from functools import cache
from typing import Any

from utils.conf import base_path


def sibling(module: str, name: str, source: str) -> Any:
    """`TCIFAR10`, `MyCIFAR10` and `base_path` for the module of CIFAR-10; made when asked for, by torchvision."""
    if name == "base_path":
        return base_path
    if name in (f"T{source}", f"My{source}"):
        return _classes(source)[name]
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


@cache
def _classes(source: str) -> dict[str, type]:
    import torchvision
    from torchvision import transforms

    published: Any = getattr(torchvision.datasets, source)

    class Fetched(published):
        """Downloads what is missing or damaged, whatever `download` says."""

        def __init__(
            self,
            root: str,
            train: bool = True,
            transform: Any = None,
            target_transform: Any = None,
            download: bool = False,
        ):
            self.root = root  # read by the check
            super().__init__(root, train, transform, target_transform, download=not self._check_integrity())

    class Triples(Fetched):
        """Items are (transformed image, label, image); also logits, once there are any."""

        def __init__(self, *args: Any, **kwargs: Any):
            self.not_aug_transform = transforms.ToTensor()
            super().__init__(*args, **kwargs)

        def __getitem__(self, index: int) -> tuple[Any, ...]:
            image = transforms.functional.to_pil_image(self.data[index])
            label = self.targets[index] if self.target_transform is None else self.target_transform(self.targets[index])
            shown = image if self.transform is None else self.transform(image)
            more = (self.logits[index],) if hasattr(self, "logits") else ()
            return shown, label, self.not_aug_transform(image), *more

    for cls, name in ((Fetched, f"T{source}"), (Triples, f"My{source}")):
        cls.__name__ = cls.__qualname__ = name
    return {"T" + source: Fetched, "My" + source: Triples}
