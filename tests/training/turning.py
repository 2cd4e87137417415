"""A made-up objective, as one file: two views of each image, and how far the second was turned."""

import torch
from torch import nn

from smallvit.augment.randomness import uniform, whole
from smallvit.models.features import feature_shape, features_of
from smallvit.training.objective import Objective


class Turning(Objective):
    """Predicts by how many quarter turns two views of an image differ."""

    numbers = ("turns_right", "brightness")
    decides = "turns_right"
    views = 2

    def __init__(self, model, config, dataset, precision):
        super().__init__(model, config, dataset, precision)
        self.first = self.augmentation(config.augment, dataset)
        self.second = self.augmentation(config.augment, dataset, view=1)
        dim, _ = feature_shape(model, dataset.image_size, dataset.channels)
        self.head = nn.Linear(2 * dim, 4)

    def forward(self, images, labels, step, positions, *, mixed):
        turns = whole(uniform(self.path_seed + 1, step, positions, 1)[:, 0], 4)
        first, _ = self.first(images, labels, step, positions)
        second, _ = self.second(images, labels, step, positions)
        ways = torch.stack([second.rot90(k, (2, 3)) for k in range(4)])
        second = ways[turns, torch.arange(len(turns))]
        with self.autocast(first.device):
            features, _ = features_of(self.model, torch.cat([first, second]))
        logits = self.head(torch.cat(features.pooled.float().chunk(2), 1))
        right = (logits.argmax(1) == turns).sum().float()
        brightness = images.float().mean((1, 2, 3)).sum()
        loss = nn.functional.cross_entropy(logits, turns)
        return loss, torch.stack([right, brightness])
