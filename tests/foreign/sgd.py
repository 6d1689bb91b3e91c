"""Plain fine-tuning."""

from models.utils.continual_model import ContinualModel


class Sgd(ContinualModel):
    NAME = "sgd"
    COMPATIBILITY = ["class-il", "domain-il", "task-il", "general-continual"]

    def observe(self, inputs, labels, not_aug_inputs, epoch=None, **kwargs):
        self.opt.zero_grad()
        outputs = self.net(inputs)
        loss = self.loss(outputs, labels)
        loss.backward()
        self.opt.step()
        return loss.item()
