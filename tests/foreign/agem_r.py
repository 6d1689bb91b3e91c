"""A-GEM with a reservoir: derives from a sibling, and draws from the buffer without a transform."""

from models.agem import AveragedGradients


class AveragedGradientsOfStream(AveragedGradients):
    NAME = "agem_r"
    COMPATIBILITY = ["class-il", "domain-il", "task-il", "general-continual"]

    def end_task(self, dataset):
        pass

    def draw(self):
        return self.buffer.get_data(self.args.minibatch_size, device=self.device)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        loss = super().observe(inputs, labels, not_aug_inputs)
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return loss
