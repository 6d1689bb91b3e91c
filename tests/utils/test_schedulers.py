"""Learning-rate schedules within a task."""

from __future__ import annotations

import pytest
import torch

from utils.schedulers import LinearSchedule


def test_the_linear_schedule_falls_to_zero_and_stays_there() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    schedule, rates = LinearSchedule(optimizer, 4), []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.1, 0, 0])
    assert schedule.get_last_lr() == [0.0]


def test_the_linear_schedule_goes_on_where_it_was_saved() -> None:
    def made() -> tuple[torch.optim.Optimizer, LinearSchedule]:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
        return optimizer, LinearSchedule(optimizer, 4)

    (first, schedule), (second, other) = made(), made()
    first.step()
    schedule.step()
    second.load_state_dict(first.state_dict())
    other.load_state_dict(schedule.state_dict())
    other.step()
    assert second.param_groups[0]["lr"] == pytest.approx(0.2)
