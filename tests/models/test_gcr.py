"""GCR: the choice of a coreset against slow twins, its two stores, the weighted loss, and exact resume."""

from __future__ import annotations

import copy
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import run, uncapturable
from method_helpers import PAPER_COLUMNS, RESNET, assert_exact_resume, assert_sgd_step, begin_task, build
from torch import Tensor, nn

from datasets.seq_digits import SequentialDigits
from models.gcr import Gcr
from models.gcr_utils.candidates import CandidateReservoir
from models.gcr_utils.coreset import Examples, weighted_mean
from models.gcr_utils.selection import class_quotas, gram_matrix, logit_gradients, matching_pursuit, select
from utils.augmentations import to_uint8
from utils.cli.parse import parse_args
from utils.errors import UsageError

pytestmark = pytest.mark.numeric

BUFFER = ["--buffer_size", "50"]


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -- the choice --------------------------------------------------------------------------------------------------------


def test_gram_matrix_is_that_of_the_last_layers_gradients() -> None:
    """One backward pass for each image, through weight and bias, against the closed form."""
    n, classes, width, alpha, beta = 6, 4, 5, 0.3, 0.7
    head = nn.Linear(width, classes).double()
    features = torch.randn(n, width, generator=random(), dtype=torch.float64)
    stored = torch.randn(n, classes, generator=random(1), dtype=torch.float64)
    labels = torch.tensor([0, 3, 1, 1, 2, 0])
    gradients = []
    for phi, z, label in zip(features, stored, labels, strict=True):
        output = head(phi)
        loss = beta * -output.log_softmax(0)[label] + alpha * sum((output[c] - z[c]) ** 2 for c in range(4)) / 4
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(head.parameters()))]))
    explicit = torch.stack(gradients)
    deltas = logit_gradients(head(features).detach(), labels, stored, alpha, beta)
    torch.testing.assert_close(gram_matrix(deltas, features), explicit @ explicit.T)
    torch.testing.assert_close(deltas, explicit[:, -4:])  # the bias's part


def literal_pursuit(atoms: Tensor, goal: Tensor, budget: int, ridge: float) -> Tensor:
    """Orthogonal matching pursuit with the vectors themselves: residual, regularised least squares, drop, stop."""
    chosen: list[int] = []
    weights = torch.zeros(len(atoms), dtype=torch.float64)
    for _ in range(budget):
        residual = goal - sum((w * atom for w, atom in zip(weights, atoms, strict=True)), torch.zeros_like(goal))
        products = torch.stack([atom @ residual for atom in atoms])
        best = int(products.argmax())
        if best in chosen or products[best] <= 1e-10 * (atoms @ goal).abs().max():
            break
        chosen.append(best)
        while True:  # ‖Aᵀw − g‖² + ridge·‖w‖² is the least-squares problem of A with √ridge·I below it
            stacked = torch.cat((atoms[chosen].T, ridge**0.5 * torch.eye(len(chosen), dtype=torch.float64)))
            right = torch.cat((goal, torch.zeros(len(chosen), dtype=torch.float64)))
            fitted = torch.linalg.lstsq(stacked, right[:, None], driver="gelsd").solution[:, 0]
            if len(chosen) == 1 or (fitted >= 0).all():
                break
            chosen.pop(int(fitted.argmin()))
        weights.zero_()
        weights[chosen] = fitted
    return weights


def test_the_pursuit_is_the_literal_one() -> None:
    """Gradients long and short beside the penalty: with the short ones it stops early, with the long ones at 0."""
    sizes = {}
    for scale in (0.1, 0.3, 1.0, 5.0):
        for seed in range(10):
            atoms = scale * (torch.randn(30, 12, generator=random(seed), dtype=torch.float64) + 0.2)
            goal = (3 * torch.rand(30, generator=random(seed + 50), dtype=torch.float64)) @ atoms
            if seed % 2:  # not a sum of them: some weights would have to be negative
                goal = scale * 10 * torch.randn(12, generator=random(seed), dtype=torch.float64)
            for budget in (1, 4, 30):
                found = matching_pursuit(atoms @ atoms.T, atoms @ goal, budget, 0.5)
                torch.testing.assert_close(found, literal_pursuit(atoms, goal, budget, 0.5), atol=1e-9, rtol=1e-7)
                sizes[scale, seed, budget] = int((found > 0).sum())
    assert max(n for (_, _, budget), n in sizes.items() if budget == 4) == 4  # the budget
    assert max(n for (scale, _, budget), n in sizes.items() if scale == 0.1 and budget == 30) < 6
    assert min(n for (scale, _, budget), n in sizes.items() if scale == 5.0 and budget == 30) > 6


def test_it_stops_when_the_best_item_is_chosen_already() -> None:
    """Orthogonal gradients of squared lengths s with weights 1, λ = 0.5: w = s / (s + λ), and λw is left of s.

    4 joins (0.44 is left of it), then 1 (0.33); 0.25 is less than what is left of the first. Then two of the others
    fill the block, with weight 1.
    """
    lengths = torch.tensor([0.25, 4.0, 0.1, 1.0, 0.2], dtype=torch.float64)
    expected = torch.tensor([0, 4 / 4.5, 0, 1 / 1.5, 0], dtype=torch.float64)
    torch.testing.assert_close(matching_pursuit(torch.diag(lengths), lengths, 5, 0.5), expected)
    torch.testing.assert_close(
        matching_pursuit(torch.diag(lengths), lengths, 1, 0.5), torch.tensor([0, 4 / 4.5, 0, 0, 0]).double()
    )
    deltas, filled = torch.diag(lengths.sqrt()), set()
    for seed in range(20):
        rows, weights = select(
            deltas, torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64), torch.ones(5), 4, 0.5, random(seed)
        )
        found = dict(zip(rows.tolist(), weights.tolist(), strict=True))
        others = set(found) - {1, 3}
        assert found[1] == pytest.approx(4 / 4.5) and found[3] == pytest.approx(1 / 1.5)
        assert len(others) == 2 and all(found[row] == 1 for row in others)
        filled |= others
    assert filled == {0, 2, 4}


def test_a_pool_no_larger_than_the_block_keeps_its_weights() -> None:
    deltas, labels = torch.eye(3, dtype=torch.float64), torch.tensor([0, 0, 1])
    for budget in (3, 4):
        for old in (torch.ones(3), torch.tensor([0.5, 2.0, 1.0])):
            rows, weights = select(deltas, torch.ones(3, 2), labels, old, budget, 0.5, random())
            assert rows.tolist() == [0, 1, 2] and torch.equal(weights, old)


def test_a_weight_that_would_become_negative_leaves() -> None:
    """g₀ correlates most with either goal, but to reach the second one g₂ would need it subtracted."""
    atoms = torch.tensor([[4.0, 4.0], [1.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    gram, goal = atoms @ atoms.T, torch.tensor([2.0, 5.0], dtype=torch.float64)
    alone = matching_pursuit(gram, atoms @ goal, 1, 1e-9)
    both = matching_pursuit(gram, atoms @ goal, 2, 1e-9)
    assert alone.nonzero().tolist() == [[0]] and alone[0].item() == pytest.approx(28 / 32)
    torch.testing.assert_close(both, torch.tensor([0.125, 0.0, 1.5], dtype=torch.float64), atol=1e-6, rtol=1e-6)
    goal = torch.tensor([1.0, 5.0], dtype=torch.float64)  # beyond g₂, seen from g₀
    both = matching_pursuit(gram, atoms @ goal, 2, 1e-9)
    torch.testing.assert_close(both, torch.tensor([0.0, 0.0, 1.6], dtype=torch.float64), atol=1e-6, rtol=1e-6)


def test_the_coreset_is_better_than_chance() -> None:
    """‖Σ wᵢgᵢ − Σ gᵢ‖ of 12 of 60 images, against the mean over random ones of weight 5, the unbiased choice."""
    deltas = torch.randn(60, 5, generator=random(), dtype=torch.float64) + 0.5
    features = torch.rand(60, 16, generator=random(1)).double()
    gram, labels = gram_matrix(deltas, features), torch.zeros(60, dtype=torch.int64)

    def error(w: Tensor) -> float:
        left = w - 1
        return float(left @ gram @ left) ** 0.5

    def sparse(rows: Tensor, values: Any) -> Tensor:
        w = torch.zeros(60, dtype=torch.float64)
        w[rows] = values
        return w

    rows, weights = select(deltas, features, labels, torch.ones(60), 12, 0.5, random())
    assert len(rows) == len(set(rows.tolist())) == 12
    chance = [error(sparse(torch.randperm(60, generator=random(seed))[:12], 5.0)) for seed in range(50)]
    assert error(sparse(rows, weights.double())) < 0.5 * statistics.mean(chance)
    assert error(sparse(rows, weights.double())) < min(chance)


def test_quotas_by_hand() -> None:
    counts = torch.tensor([10, 0, 30, 20])
    assert class_quotas(counts, 12).tolist() == [2, 0, 6, 4]
    assert class_quotas(counts, 10).tolist() == [2, 0, 5, 3]  # 1.67, 5, 3.33: the largest remainder is rounded up
    assert class_quotas(counts, 2).tolist() == [1, 0, 1, 1]  # at least one
    assert class_quotas(torch.tensor([1, 99]), 20).tolist() == [1, 19]
    assert class_quotas(counts, 60).tolist() == [10, 0, 30, 20]
    assert class_quotas(torch.tensor([3, 3]), 4).tolist() == [2, 2]


def test_surplus_and_shortfall() -> None:
    """Orthogonal gradients of lengths 1, 2, 3 in three classes, weights 4, 1, 1: w = l²·weight / (l² + λ)."""
    deltas = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    features, labels, old = torch.zeros(3, 2), torch.arange(3), torch.tensor([4.0, 1.0, 1.0])
    rows, weights = select(deltas, features, labels, old, 2, 0.5, random())  # a quota of one for each of the three
    assert rows.tolist() == [0, 2]
    torch.testing.assert_close(weights, torch.tensor([4 / 1.5, 9 / 9.5]))
    deltas[:2] = 0  # nothing to gain from them: one joins only to fill up
    joined = set()
    for seed in range(20):
        rows, weights = select(deltas, features, labels, old, 2, 0.5, random(seed))
        assert len(rows) == 2 and rows[1] == 2 and weights[0] == 1 and weights[1].item() == pytest.approx(9 / 9.5)
        joined.add(int(rows[0]))
    assert joined == {0, 1}


# -- candidates --------------------------------------------------------------------------------------------------------


def offer(reservoir: CandidateReservoir, numbers: Tensor, wanted: Tensor) -> None:
    """Images of one pixel, whose value, label and logit are a number."""
    images = (numbers / 255).view(-1, 1, 1, 1).to(reservoir.device)
    reservoir.offer(
        wanted.to(images.device), images, numbers.to(images.device), numbers.to(images.device)[:, None] + 0.5
    )


def test_reservoir_is_the_slow_one_over_the_wanted_images(device: torch.device) -> None:
    wanted = torch.rand(120, generator=random(5)) < 0.4
    draws = torch.cat([torch.empty(30, dtype=torch.int64).random_(generator=g) for g in [random(3)] for _ in range(4)])
    slow: list[int] = []
    for number, (want, draw) in enumerate(zip(wanted.tolist(), draws.tolist(), strict=True)):
        n = int(wanted[:number].sum())
        if want and n < 10:
            slow.append(number)
        elif want and draw % (n + 1) < 10:
            slow[draw % (n + 1)] = number
    assert len(slow) == 10 and slow != wanted.nonzero()[:10, 0].tolist()
    reservoir = CandidateReservoir(10, device, random(3))
    for numbers in torch.arange(120).split(30):
        offer(reservoir, numbers, wanted[numbers])
    images, labels, logits = reservoir.content()
    assert labels.tolist() == images.flatten().tolist() == slow
    assert (logits[:, 0] - 0.5).tolist() == slow
    assert reservoir.taken == wanted.sum() and reservoir.num_seen_examples == 120
    assert not reservoir.examples[10].any() and not reservoir.logits[10].any()  # the row for what is not kept
    reservoir.empty()
    assert reservoir.taken == 0 and reservoir.is_empty()


def test_reservoir_is_uniform() -> None:
    counts = torch.zeros(40)
    wanted = torch.arange(40) % 2 == 0
    for seed in range(400):
        reservoir = CandidateReservoir(5, torch.device("cpu"), random(seed))
        for numbers in torch.arange(40).split(16):
            offer(reservoir, numbers, wanted[numbers])
        counts[reservoir.content()[1]] += 1
    assert (counts[1::2] == 0).all() and counts.sum() == 2000
    assert (counts[::2] - 100).abs().max() < 5 * (400 * 0.25 * 0.75) ** 0.5


def test_draws_take_filled_slots_of_the_first_ones() -> None:
    reservoir = CandidateReservoir(20, torch.device("cpu"), random())
    offer(reservoir, torch.arange(30), torch.arange(30) < 6)
    seen = set()
    for _ in range(60):
        slots = reservoir.draw(8, 9).tolist()
        assert set(slots[:6]) == set(range(6)) and slots[6:] == slots[:2]  # the filled ones, then again
        seen.add(slots[0])
        assert set(reservoir.draw(4, 4).tolist()) == set(range(4))
        more = reservoir.draw(7, 3).tolist()  # all of them, then again in the same order
        assert set(more[:3]) == {0, 1, 2} and more[3:] == (more[:3] * 2)[:4]
    assert seen == set(range(6))
    reservoir.start_anew()
    assert len(set(reservoir.draw(8, 9).tolist())) == 1


def test_candidates_are_classified_right_and_of_this_task(tmp_path: Path) -> None:
    model = build("gcr", tmp_path, *BUFFER, "--n_epochs", "2", "--candidate_size", "20", "--lr", "0.2")
    for task in range(2):
        batches, right = begin_task(model), []
        assert model.candidates.is_empty() and model.candidates.taken == 0
        for inputs, labels, not_aug_inputs in batches:
            outputs = copy.deepcopy(model.net)(inputs).detach()  # train mode, before the step
            model.observe(inputs, labels, not_aug_inputs)
            hit = outputs.argmax(1) == labels
            right += list(zip(to_uint8(not_aug_inputs[hit]), labels[hit], outputs[hit], strict=True))
        assert 20 < len(right) < len(model.dataset.train_loader.dataset) == model.candidates.num_seen_examples
        assert model.candidates.taken == len(right)
        images, labels, logits = model.candidates.content()
        assert len(labels) == 20 and (labels // 2 == task).all() and (logits.argmax(1) == labels).all()
        for image, label, z in zip(images, labels, logits, strict=True):
            assert any(torch.equal(image, x) and label == y and torch.allclose(z, f, atol=1e-5) for x, y, f in right)
        model.meta_end_task(model.dataset)

    single = build("gcr", tmp_path, *BUFFER, "--n_epochs", "1")
    single.observe(*begin_task(single)[0])
    assert single.candidates.taken == 32  # no second chance: all are wanted


# -- a step ------------------------------------------------------------------------------------------------------------


def test_weighted_mean() -> None:
    values = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    assert weighted_mean(values, torch.tensor([1.0, 3.0, 0.0])).item() == 1.75
    nothing = weighted_mean(values, torch.zeros(3))
    nothing.backward()
    assert nothing == 0 and values.grad is not None and (values.grad == 0).all()


def record_replays(model: Gcr) -> list[Examples]:
    found: list[Examples] = []
    replay = model.replay
    model.replay = lambda: found.append(replay()) or found[-1]  # type: ignore
    return found


def train_task(model: Gcr, steps: int = 9) -> None:
    for batch in begin_task(model)[:steps]:
        model.observe(*batch)


def test_step_is_the_gradient_of_the_weighted_terms(device: torch.device, tmp_path: Path) -> None:
    flags = ["--alpha", "0.3", "--beta", "0.7", "--device", device.type, "--n_epochs", "1"]
    model = build("gcr", tmp_path, *BUFFER, *RESNET, *flags)
    first = model.observe(*begin_task(model)[0])
    assert (first["loss"], first["loss_mse"], first["loss_replay"]) == (first["loss_ce"], 0, 0)  # nothing is stored
    model.meta_end_task(model.dataset)
    batches = begin_task(model)
    for batch in batches[:3]:
        model.observe(*batch)
    model.weights[: len(model.buffer)] = torch.arange(len(model.buffer)) + 0.5
    inputs, labels, _ = batches[3]
    net, replays = copy.deepcopy(model.net), record_replays(model)
    terms = model.observe(*batches[3])
    (images1, _, stored, w1), (images2, labels2, _, w2) = replays
    assert len(set(w1.tolist())) > 2 and not torch.equal(images1, images2)

    outputs, outputs1, outputs2 = net(inputs), net(images1), net(images2)
    squares = [sum((outputs1[i, c] - stored[i, c]) ** 2 for c in range(10)) / 10 for i in range(len(w1))]
    crossed = [-outputs2[i].log_softmax(0)[y] for i, y in enumerate(labels2)]
    expected = {
        "loss_ce": torch.stack([-outputs[i].log_softmax(0)[y] for i, y in enumerate(labels)]).mean(),
        "loss_mse": sum(w * s for w, s in zip(w1, squares, strict=True)) / w1.sum(),
        "loss_replay": sum(w * c for w, c in zip(w2, crossed, strict=True)) / w2.sum(),
    }
    expected["loss"] = expected["loss_ce"] + 0.3 * expected["loss_mse"] + 0.7 * expected["loss_replay"]
    assert_sgd_step(model.net, net, terms, expected, lr=0.03)


@pytest.mark.parametrize(
    ("task", "past", "new", "expected"),
    [
        (0, 0, 0, 0),
        (0, 0, 20, 20),  # no more than there are
        (0, 0, 500, 32),
        (1, 1000, 0, 0),
        (1, 1000, 31, 0),  # ⌊32 · 31 / 1031⌋
        (1, 1000, 1000, 16),
        (3, 900, 300, 8),
        (3, 900, 9000, 25),  # ⌊32 · 10/11⌋ = 29, but a quarter of the slots are 25
    ],
)
def test_share_of_the_candidates(task: int, past: int, new: int, expected: int, tmp_path: Path) -> None:
    model = build("gcr", tmp_path, "--buffer_size", "100")
    model._current_task, model.past_taken = task, past  # private: only the training loop counts tasks
    model.candidates.taken.fill_(new)
    assert model.n_candidates(32) == expected


def test_the_share_counts_images_that_are_classified_right(tmp_path: Path) -> None:
    """In this task and in finished ones: 30 of 64 and 90 of 300 make a quarter of a batch, whatever was shown."""
    model = build("gcr", tmp_path, "--buffer_size", "100", "--n_epochs", "2")
    for shown, right in ((300, 90), (64, 30)):
        begin_task(model)
        zeros = torch.zeros(shown, dtype=torch.int64)
        model.candidates.offer(torch.arange(shown) < right, torch.rand(shown, 1, 8, 8), zeros, torch.zeros(shown, 10))
        if shown == 300:
            model.meta_end_task(model.dataset)
    assert model.past_taken == 90 and model.n_candidates(32) == 8


def fill(model: Gcr, coreset: int, candidates: int) -> None:
    """Coreset: labels 0, weights 2, 3, …, of a past with as many candidates; candidates: labels 1, out of 500."""
    images = torch.rand(500, 1, 8, 8, generator=random())
    zeros = torch.zeros(500, dtype=torch.int64)
    if coreset:
        model.buffer.add_data(images[:coreset], zeros[:coreset], torch.zeros(coreset, 10), task_labels=zeros[:coreset])
        model.weights[:coreset] = torch.arange(coreset) + 2.0
        model.past_taken = candidates
    model.candidates.offer(torch.arange(500) < candidates, images, zeros + 1, torch.ones(500, 10))


def test_replay_mixes_the_two_stores(tmp_path: Path) -> None:
    for coreset, candidates, old, new in [(60, 40, 16, 16), (60, 5, 27, 5), (60, 0, 32, 0), (20, 0, 32, 0)]:
        model = build("gcr", tmp_path / f"{coreset} {candidates}", "--buffer_size", "64")
        model._current_task = 1  # private: only the training loop counts tasks
        fill(model, coreset, candidates)
        batch = model.replay()
        past = batch.labels == 0
        assert (int(past.sum()), int((batch.labels == 1).sum())) == (old, new)
        assert (batch.weights[~past] == 1).all() and (batch.logits[~past] == 1).all()
        drawn = batch.weights[past]
        assert drawn.min() >= 2 and len(drawn.unique()) == min(old, coreset)  # distinct where there are enough
        rows = (drawn - 2).long()
        expected = (model.buffer.examples[rows].float() / 255 - 0.3058) / 0.3764
        torch.testing.assert_close(batch.images[past], expected)
        assert len({tuple(x.flatten().tolist()) for x in batch.images[~past]}) == new


def test_in_the_first_task_candidates_fill_the_batch(tmp_path: Path) -> None:
    """n of them, each ⌊32 / n⌋ times or once more; while there is none, the batch has no weight."""
    model = build("gcr", tmp_path, "--buffer_size", "64")
    for candidates, times in [(1, {32}), (5, {6, 7}), (20, {1, 2}), (500, {1})]:
        model.candidates.empty()
        fill(model, 0, candidates)
        batch = model.replay()
        assert len(batch.labels) == 32 and (batch.labels == 1).all() and (batch.weights == 1).all()
        counts = batch.images.flatten(1).unique(dim=0, return_counts=True)[1]
        assert len(counts) == min(candidates, 32) and set(counts.tolist()) == times
    model.candidates.empty()
    fill(model, 0, 0)
    assert (model.replay().weights == 0).all()


def test_without_candidates_the_step_is_that_of_the_stream(tmp_path: Path) -> None:
    model = build("gcr", tmp_path, *BUFFER, *RESNET, "--n_epochs", "2", "--alpha", "0.3")
    batch, second, *_ = begin_task(model)
    with torch.no_grad():
        model.net.classifier.bias[9] = 1e4  # digits of the first task are 0 and 1
    model.observe(*batch)
    net, replays = copy.deepcopy(model.net), record_replays(model)
    terms = model.observe(*second)
    assert model.candidates.taken == 0 < model.candidates.num_seen_examples
    loss = nn.functional.cross_entropy(net(second[0]), second[1])
    for replay in replays:
        net(replay.images)  # which moves running statistics, and nothing else
    expected = {"loss": loss, "loss_ce": loss, "loss_mse": loss * 0, "loss_replay": loss * 0}
    assert_sgd_step(model.net, net, terms, expected, lr=0.03)


# -- the coreset -------------------------------------------------------------------------------------------------------


def test_blocks_after_each_task(tmp_path: Path) -> None:
    """M = 23: ⌊23 / t⌋ of each old task, the new one has the rest. What stays is what was there."""
    model = build("gcr", tmp_path, "--buffer_size", "23", "--n_epochs", "1")
    before: dict[int, set[Any]] = {}
    for task, sizes in enumerate([[23], [11, 12], [7, 7, 9], [5, 5, 5, 8], [4, 4, 4, 4, 7]]):
        train_task(model, steps=2)
        candidates = {tuple(image.flatten().tolist()) for image in model.candidates.content()[0]}
        model.meta_end_task(model.dataset)
        buffer = model.buffer
        assert buffer.task_labels.bincount().tolist() == sizes and len(buffer) == 23
        assert torch.equal(buffer.labels // 2, buffer.task_labels)
        assert buffer.examples.dtype == torch.uint8 and (model.weights > 0).all()
        before[task] = candidates
        for old in range(task + 1):
            images = {tuple(x.flatten().tolist()) for x in buffer.examples[buffer.task_labels == old]}
            assert images <= before[old]
            before[old] = images
        assert model.candidates.is_empty() and model.past_taken == 64 * (task + 1)


def test_what_the_end_of_a_task_computes(tmp_path: Path) -> None:
    """Gradients in eval mode, of un-augmented images; targets have the weights until now; the network stays."""
    flags = ["--buffer_size", "20", *RESNET, "--n_epochs", "1", "--alpha", "0.3", "--ridge", "0.01"]
    model = build("gcr", tmp_path, *flags)
    train_task(model, steps=4)
    model.meta_end_task(model.dataset)
    model.weights[:] = torch.linspace(0.5, 1.5, 20)  # not all 1
    pool = Examples(*(field.clone() for field in (model.buffer.examples, model.buffer.labels, model.buffer.logits)),
                    model.weights.clone())  # fmt: skip
    train_task(model, steps=4)
    model.net.layer3.eval()  # modules may be in different modes
    net = copy.deepcopy(model.net)
    model.meta_end_task(model.dataset)
    for name, value in model.net.state_dict().items():
        assert torch.equal(value, net.state_dict()[name]), name
    assert [m.training for m in model.net.modules()] == [m.training for m in net.modules()]

    images = (pool.images.float() / 255 - 0.3058) / 0.3764
    outputs, features = net.eval()(images, returnt="both")
    deltas = logit_gradients(outputs.detach(), pool.labels, pool.logits, 0.3, 0.5)
    counts, expected = pool.labels.bincount(), {}
    for label, quota in enumerate(class_quotas(counts, 10).tolist()):
        rows = (pool.labels == label).nonzero()[:, 0]
        atoms = torch.cat([(deltas[rows][:, :, None] * features[rows].double()[:, None]).flatten(1), deltas[rows]], 1)
        found = literal_pursuit(atoms.detach(), pool.weights[rows].double() @ atoms.detach(), quota, 0.01)
        for row, weight in zip(rows.tolist(), found.tolist(), strict=True):
            if weight:
                expected[tuple(pool.images[row].flatten().tolist())] = weight
    assert len(expected) >= 4
    found = {
        tuple(image.flatten().tolist()): weight
        for image, weight in zip(model.buffer.examples[:10], model.weights[:10].tolist(), strict=True)
    }
    for image, weight in expected.items():
        assert found.pop(image) == pytest.approx(weight, rel=1e-3)
    assert all(weight == 1 for weight in found.values())  # the block was filled up


@pytest.mark.slow
def test_weights_do_not_collapse(tmp_path: Path) -> None:
    """Blocks are chosen again after each task. Were the whole budget fitted, their weights would vanish together with
    the gradients (here 0.3 on average, and less in longer training). What fills them up has weight 1."""
    for seed in range(3):
        model = build("gcr", tmp_path, "--buffer_size", "97", "--n_epochs", "8", "--lr", "0.1", seed=seed)
        for _ in range(3):
            begin_task(model)
            for _ in range(8):
                for batch in model.dataset.train_loader:
                    model.meta_observe(*batch)
            model.meta_end_task(model.dataset)
        means = [float(model.weights[model.buffer.task_labels == block].mean()) for block in range(3)]
        assert min(means) > 0.7 and max(means) < 2, means
        assert (model.weights == 1).float().mean() > 0.5


def test_task_free_blocks_stand_for_equal_stretches_of_the_stream(tmp_path: Path) -> None:
    """20 images, batches of 64: each ends a stretch of 40. After the 20th neighbours join, and two batches are one."""
    flags = ["--buffer_size", "20", "--batch_size", "64", "--n_epochs", "1", "--task_free", "1"]
    model = build("gcr", tmp_path, *flags)
    loader, source = model.dataset.get_data_loaders()[0], {}
    batches = [batch for _ in range(6) for batch in loader if len(batch[1]) == 64][:22]
    for k, (inputs, labels, raw) in enumerate(batches, 1):
        model.meta_observe(inputs, labels, raw)
        for image in raw:
            source.setdefault(tuple((255 * image).round().flatten().int().tolist()), []).append(k - 1)
        sizes = model.buffer.task_labels[: len(model.buffer)].bincount().tolist()
        if k < 20:
            assert sizes == [20 // k] * (k - 1) + [20 - (k - 1) * (20 // k)] and model.n_blocks == k
        elif k < 22:
            assert sizes == [2] * 10 and (model.n_blocks, model.stretch) == (10, 80)
        else:
            assert sizes == [1] * 10 + [10] and model.n_blocks == 11
        assert model.past_taken + model.candidates.num_seen_examples == 64 * k
    for image, block in zip(model.buffer.examples, model.buffer.task_labels.tolist(), strict=True):
        assert any(batch // 2 == block for batch in source[tuple(image.flatten().int().tolist())])


def test_task_free_with_fewer_images_than_stretches_and_none_classified_right(tmp_path: Path) -> None:
    model = build("gcr", tmp_path, "--buffer_size", "3", "--n_epochs", "2", "--task_free", "1")
    with torch.no_grad():
        model.net.classifier.bias[9] = 1e4  # digits of the first task are 0 and 1
    for batch in model.dataset.get_data_loaders()[0]:
        model.meta_observe(*batch)
    assert model.buffer.is_empty() and 0 < model.n_blocks <= 3
    model.args.n_epochs = 1  # from now on all images are candidates
    for batch in [*model.dataset.get_data_loaders()[0]] * 20:
        model.meta_observe(*batch)
    assert len(model.buffer) == 3 and len(set(model.buffer.task_labels.tolist())) > 1


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("network", [[], [*RESNET, "--batch_size", "70", "-O", "1"]], ids=["mlp", "resnet"])
def test_tasks_of_any_size_and_a_buffer_smaller_than_the_classes(
    network: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SequentialDigits, "N_CLASSES_PER_TASK", [3, 1, 4, 2])
    monkeypatch.setattr(SequentialDigits, "N_TASKS", 4)
    _, model, _ = run(tmp_path, "--buffer_size", "3", "--n_epochs", "2", *network, model="gcr")
    assert model.buffer.task_labels[: len(model.buffer)].tolist() == [3, 3, 3]  # ⌊3 / 4⌋ = 0 of past tasks
    assert uncapturable(model) == []


def test_a_task_without_candidates(tmp_path: Path) -> None:
    model = build("gcr", tmp_path, *BUFFER, "--n_epochs", "2")
    for task in range(3):
        batch = begin_task(model)[0]
        if task != 1:
            with torch.no_grad():
                model.net.classifier.bias[:] = torch.where(torch.arange(10) == 9, 99.0, 0.0)  # always wrong
            assert model.observe(*batch)["loss"].isfinite()
        model.meta_end_task(model.dataset)
        assert model.buffer.is_empty()
    model.observe(*begin_task(model)[0])


def test_a_coreset_from_another_run_is_replayed(tmp_path: Path) -> None:
    flags = [*BUFFER, "--n_epochs", "1"]
    run(tmp_path / "first", *flags, "--stop_after", "2", "--savecheck", "last", "--checkpoint_path", str(tmp_path),
        model="gcr")  # fmt: skip
    (path,) = tmp_path.glob("*.pt")
    more = ["--start_from", "2", "--stop_after", "3", "--loadcheck", str(path)]
    _, model, _ = run(tmp_path / "second", *flags, *more, model="gcr")
    assert model.buffer.task_labels.bincount().tolist() == [16, 16, 18]
    sizes = [len(model.dataset.splits.train.subset(model.dataset.splits.train.targets // 2 == k)) for k in range(3)]
    assert model.past_taken == sum(sizes)


@pytest.mark.slow
def test_resume_is_exact(tmp_path: Path) -> None:
    assert_exact_resume(Gcr, tmp_path, *BUFFER, "--candidate_size", "30", "--fitting_mode", "iters", "--n_iters", "9")
    assert_exact_resume(
        Gcr, tmp_path / "resnet", *BUFFER, *RESNET, "--fitting_mode", "iters", "--n_iters", "9", tasks=2
    )
    assert_exact_resume(Gcr, tmp_path / "free", *BUFFER, "--candidate_size", "30", "--task_free", "1")


@pytest.mark.slow
def test_it_beats_fine_tuning(tmp_path: Path) -> None:
    flags, gains = ["--n_epochs", "2", "--lr", "0.1"], []
    for seed in range(5):
        sgd, _, _ = run(tmp_path / f"sgd{seed}", *flags, model="sgd", seed=seed)
        gcr, _, _ = run(tmp_path / f"gcr{seed}", *flags, "--buffer_size", "100", model="gcr", seed=seed)
        gains.append(gcr["class_il"]["FAA"] - sgd["class_il"]["FAA"])
    assert statistics.mean(gains) > 30


@pytest.mark.parametrize(("dataset", "size"), PAPER_COLUMNS)
def test_presets(dataset: str, size: int) -> None:
    flags = ["--model", "gcr", "--dataset", dataset, "--buffer_size", str(size)]
    for section in ("default", "best"):
        args = parse_args([*flags, "--model_config", section])
        assert (args.lr, args.alpha, args.beta, args.ridge, args.candidate_size) == (0.03, 0.1, 0.5, 0.5, size)
    assert parse_args([*flags, "--candidate_size", "70"]).candidate_size == 70


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ridge", "0"], "--ridge: 0 is out of range: it must be greater than 0"),
        (["--candidate_size", "0"], "--candidate_size: 0 is out of range"),
        (["--alpha", "-1"], "--alpha: -1 is out of range"),
    ],
)
def test_refusals(flags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_args(["--model", "gcr", *BUFFER, *flags])
