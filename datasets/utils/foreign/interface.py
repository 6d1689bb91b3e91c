"""What code written for Mammoth asks of a dataset beyond its tasks: transforms of single images, evaluation."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from datasets.transforms.denormalization import DeNormalize
from utils.evaluate import evaluate
from utils.loggers import mean_accuracy_line
from utils.prompt_templates import templates
from utils.status import say

if TYPE_CHECKING:  # torchvision is imported where it is used: reading the flags takes half the time without it
    from torchvision import transforms


class MammothDataset:
    """The part of `ContinualDataset` that our own loaders, methods and training loop do without."""

    NAME: str
    SIZE: tuple[int, int]
    MEAN: tuple[float, ...] | None
    STD: tuple[float, ...] | None
    CROP_PADDING: int
    HORIZONTAL_FLIP: bool

    @property
    def TRANSFORM(self) -> transforms.Compose:
        """The training transform for one PIL image, in torchvision's terms."""
        from torchvision import transforms

        augment: list[Any] = []
        if self.CROP_PADDING:
            augment.append(transforms.RandomCrop(self.SIZE, padding=self.CROP_PADDING))
        if self.HORIZONTAL_FLIP:
            augment.append(transforms.RandomHorizontalFlip())
        return transforms.Compose([*augment, *self.TEST_TRANSFORM.transforms])

    @property
    def TEST_TRANSFORM(self) -> transforms.Compose:
        from torchvision import transforms

        normalisation = self.get_normalization_transform()
        return transforms.Compose([transforms.ToTensor(), *([normalisation] if normalisation else [])])

    def get_transform(self) -> transforms.Compose:
        """For code that transforms image by image; the loaders and the buffer use `get_batch_transform`."""
        from torchvision import transforms

        return transforms.Compose([transforms.ToPILImage(), self.TRANSFORM])

    def get_normalization_transform(self) -> transforms.Normalize | None:
        if self.MEAN is None or self.STD is None:
            return None
        from torchvision import transforms

        return transforms.Normalize(self.MEAN, self.STD)

    def get_denormalization_transform(self) -> DeNormalize | None:
        if self.MEAN is None or self.STD is None:
            return None
        return DeNormalize(self.MEAN, self.STD)

    def get_prompt_templates(self) -> list[str]:
        return templates[self.NAME]

    @staticmethod
    def evaluate(model: Any, dataset: Any, last: bool = False, return_loss: bool = False) -> tuple[Any, ...]:
        return evaluate(model, dataset, last, return_loss)

    @staticmethod
    def log(args: Namespace, logger: Any, accs: tuple[Any, Any], t: int, setting: str, *_: Any, **__: Any) -> None:
        """Print the mean accuracies; the training loop does its own recording."""
        say(mean_accuracy_line(*accs))
