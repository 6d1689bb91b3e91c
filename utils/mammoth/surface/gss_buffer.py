"""The replay buffer of Gradient-based Sample Selection (Aljundi et al. 2019), greedy variant.

A sample's score is the largest cosine between its gradient and those of some stored samples, plus 1: in [0, 2]. A new
sample takes the place of a stored one, drawn by score, with a probability that grows with the other's score.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from utils.augmentations import apply_transform


class Buffer:
    """Images and labels. The model gives gradients: `model.get_grads(images, labels)`.

    A new sample is compared with `minibatch_size` stored ones.
    """

    examples: Tensor
    labels: Tensor

    def __init__(self, buffer_size: int, device: Any, minibatch_size: int, model: Any = None):
        self.buffer_size, self.device, self.minibatch_size = buffer_size, torch.device(device), minibatch_size
        self.model = model
        self.num_seen_examples = 0
        self.attributes = ["examples", "labels"]
        self.scores = torch.zeros(buffer_size)
        self.reset_fathom()
        self.drop_cache()

    def __len__(self) -> int:
        return min(self.num_seen_examples, self.buffer_size)

    def is_empty(self) -> bool:
        return self.num_seen_examples == 0

    def reset_fathom(self) -> None:
        """Begin another walk through the buffer."""
        self.fathom, self.fathom_mask = 0, torch.from_numpy(np.random.permutation(len(self)))

    def drop_cache(self) -> None:
        """Forget the gradients of the stored samples: the parameters have moved."""
        self._compared: Tensor | None = None

    # -- writing -------------------------------------------------------------------------------------------------------

    def add_data(self, examples: Tensor, labels: Tensor) -> None:
        if self.is_empty():
            self.examples = torch.zeros((self.buffer_size, *examples.shape[1:]), device=self.device)
            self.labels = torch.zeros(self.buffer_size, dtype=torch.int64, device=self.device)
        for image, label in zip(examples, labels, strict=True):
            self._offer(image, label)

    def _offer(self, image: Tensor, label: Tensor) -> None:
        score = self._score(image, label)
        if self.num_seen_examples < self.buffer_size:
            self._store(self.num_seen_examples, image, label, score)
        elif score < 1:  # it points away from all that it was compared with
            weights = self.scores.double().numpy()
            slot = int(np.random.choice(self.buffer_size, p=weights / weights.sum())) if weights.sum() > 0 else 0
            stored = float(self.scores[slot])
            if np.random.rand() < stored / (stored + score):
                self._store(slot, image, label, score)
        self.num_seen_examples += 1

    def _store(self, slot: int, image: Tensor, label: Tensor, score: float) -> None:
        self.examples[slot], self.labels[slot] = image.to(self.device), label.to(self.device)
        self.scores[slot] = score

    def _score(self, image: Tensor, label: Tensor) -> float:
        """The largest cosine to the gradients of stored samples, plus 1; in the beginning the lowest."""
        if self.is_empty():
            return 0.1
        return float(F.cosine_similarity(self._stored_gradients(), self._gradient(image, label)).max()) + 1

    def _gradient(self, image: Tensor, label: Tensor) -> Tensor:
        return self.model.get_grads(image[None], label[None]).detach().reshape(1, -1)

    def _stored_gradients(self) -> Tensor:
        """Gradients of some stored samples, one by one; of the same samples until `drop_cache`."""
        if self._compared is None:
            rows = np.random.permutation(len(self))[: self.minibatch_size]
            self._compared = torch.cat([self._gradient(self.examples[row], self.labels[row]) for row in rows])
        return self._compared

    # -- reading -------------------------------------------------------------------------------------------------------

    def get_data(
        self, size: int, transform: Any = None, give_index: bool = False, random: bool = False, device: Any = None
    ) -> tuple[Tensor, ...]:
        """The next rows of a walk through the buffer, or `random` ones; the index, if wanted, comes last."""
        if random:
            rows = torch.from_numpy(np.random.permutation(len(self))[:size])
        else:
            if self.fathom >= len(self.fathom_mask):
                self.reset_fathom()
            rows = self.fathom_mask[self.fathom : self.fathom + size]
            self.fathom += size
        index = rows.to(self.device)
        images = apply_transform(self.examples[index], transform)
        fields = (images, self.labels[index], *((index,) if give_index else ()))
        return tuple(field.to(device or self.device) for field in fields)

    def get_all_data(self, transform: Any = None, device: Any = None) -> tuple[Tensor, ...]:
        return self.get_data(len(self), transform, random=True, device=device)

    def empty(self) -> None:
        self.num_seen_examples = 0
        self.scores.zero_()
        self.drop_cache()

    def state_dict(self) -> dict[str, Any]:
        """All but the model, which is another's."""
        return {name: value for name, value in vars(self).items() if name not in ("model", "device", "attributes")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
