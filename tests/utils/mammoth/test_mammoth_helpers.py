"""The helpers that models written for Mammoth import: they are where such models look, and do what those expect."""

from __future__ import annotations

import importlib
import logging
import sys
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import ROOT, run
from method_helpers import assert_exact_resume, begin_task, build
from PIL import Image
from torch import nn
from torch.optim import SGD
from torchvision import transforms

import main
import utils
import utils.gss_buffer
from datasets.utils.image_set import ImageSet
from models.sgd import Sgd
from models.utils.continual_model import ContinualModel
from utils import conf
from utils.augmentations import cutmix_data, normalize, random_crop, random_flip, random_grayscale, soft_aug, strong_aug
from utils.buffer import Buffer, fill_buffer, icarl_replay
from utils.ring_buffer import RingBuffer
from utils.schedulers import CosineSchedule, CosineSchedulerWithLinearWarmup, get_scheduler
from utils.spkdloss import SPKDLoss

IMPORTS = """
utils.args: add_rehearsal_args ArgumentParser Namespace binary_to_boolean_type
utils: binary_to_boolean_type none_or_float custom_str_underscore field_with_aliases create_if_not_exists smart_joint
    random_id to_parsable_obj disable_logging setup_logging in_notebook
utils.conf: get_device base_path get_checkpoint_path warn_once set_random_seed worker_init_fn create_seeded_dataloader
utils.augmentations: apply_transform cutmix_data rand_bbox normalize random_flip random_crop random_grayscale soft_aug
    strong_aug RepeatedTransform DoubleTransform DoubleCompose CustomRandomCrop CustomRandomHorizontalFlip torch np F TF
    transforms PIL
utils.batch_norm: bn_track_stats
utils.schedulers: get_scheduler CosineSchedule CosineSchedulerWithLinearWarmup
utils.status: progress_bar ProgressBar
utils.evaluate: evaluate mask_classes
utils.kornia_utils: to_kornia_transform KorniaAugNoGrad KorniaMultiAug CustomKorniaRandAugment
utils.autoaugment: CIFAR10Policy ImageNetPolicy SVHNPolicy SubPolicy Cutout
utils.buffer_lws: Buffer
utils.simclrloss: SupConLoss
utils.spkdloss: SPKDLoss
utils.buffer: Buffer icarl_replay fill_buffer BaseSampleSelection ReservoirSampling BalancoirSampling LARSSampling
    LossAwareBalancedSampling ABSSampling
utils.ring_buffer: RingBuffer
utils.gss_buffer: Buffer
utils.checkpoints: mammoth_load_checkpoint save_mammoth_checkpoint to_parsable_obj
utils.training: train
datasets: get_dataset get_dataset_class get_dataset_names get_dataset_config_names register_dataset
datasets.utils: set_default_from_args
datasets.utils.continual_dataset: ContinualDataset
datasets.transforms.denormalization: DeNormalize
datasets.transforms.rotation: Rotation FixedRotation IncrementalRotation
datasets.utils.hf_download: ensure_required_files_from_hf download_dataset_snapshot download_dataset_file
    download_dataset_snapshot_with_patterns
backbone: get_backbone get_backbone_class get_backbone_names register_backbone MammothBackbone xavier num_flat_features
backbone.ResNetBlock: ResNet BasicBlock PreActBlock conv3x3 resnet18 resnet34 reduced_resnet18 preact_resnet18
    resnet18_7x7 resnet18_spr
backbone.ResNetBottleneck: resnet50 resnet50_pt
backbone.ResNet32: resnet32
backbone.MNISTMLP: MNISTMLP BaseMNISTMLP mnistmlp
backbone.MNISTMLP_PNN: MNISTMLP_PNN
backbone.ResNet18_PNN: resnet18_pnn
backbone.utils.modules: AlphaModule ListModule
models: get_model get_model_class get_model_names register_model REGISTERED_MODELS
models.utils.continual_model: ContinualModel
models.utils.lider_model: LiderOptimizer add_lipschitz_args
models.utils.future_model: FutureModel
main: main parse_args initialize
"""


@pytest.mark.parametrize("line", IMPORTS.replace("\n    ", " ").strip().splitlines())
def test_names_are_where_models_look_for_them(line: str) -> None:
    module, _, names = line.partition(": ")
    missing = [name for name in names.split() if not hasattr(importlib.import_module(module), name)]
    assert not missing


# -- utils and utils.conf --------------------------------------------------------------------------------------------


def test_types_of_flags() -> None:
    assert [utils.none_or_float(text) for text in ("None", "none", "0.5")] == [None, None, 0.5]
    kind = utils.field_with_aliases({"symmetric": ["sym", "symm"]})
    assert kind("symm") == kind("symmetric") == "symmetric"
    with pytest.raises(ArgumentTypeError, match="'asym' is none of symmetric"):
        kind("asym")
    assert utils.custom_str_underscore(" er_ace ") == "er-ace"
    assert len({utils.random_id(8) for _ in range(9)}) == 9


def test_messages(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        conf.warn_once("only", "once")
    conf.warn_once("another")
    assert [record.message for record in caplog.records] == ["only once", "another"]
    with utils.disable_logging(logging.WARNING):
        logging.warning("silent")
    logging.warning("loud")
    assert "silent" not in caplog.text and "loud" in caplog.text


def test_folders_are_remembered(tmp_path: Path) -> None:
    before = conf.base_path()
    assert conf.base_path(str(tmp_path)) == conf.base_path() == f"{tmp_path}/"
    conf.base_path(before)


def test_a_seeded_loader_is_the_same_every_time_and_takes_options() -> None:
    args = Namespace(seed=3, num_workers=0)
    first, second = (list(conf.create_seeded_dataloader(args, range(20), batch_size=5, shuffle=True)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert sorted(torch.cat(first).tolist()) == list(range(20)) != torch.cat(first).tolist()
    own = torch.Generator().manual_seed(4)
    assert conf.create_seeded_dataloader(args, range(20), generator=own).generator is own


# -- augmentations and losses ----------------------------------------------------------------------------------------


@pytest.mark.numeric
def test_cutmix_mixes_as_much_as_it_says() -> None:
    np.random.seed(0)
    torch.manual_seed(0)
    x, y = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 3, 10, 10), torch.arange(8)
    mixed, a, b, lam = cutmix_data(x, y, force=True)
    assert torch.equal(a, y) and 0 <= lam < 1
    for image, own, other in zip(mixed, a, b, strict=True):
        assert (image == own).float().mean() == pytest.approx(lam if own != other else 1)
        assert ((image == own) | (image == other)).all()
    assert cutmix_data(x, y, cutmix_prob=0.0)[3] == 1.0
    with pytest.raises(ValueError, match="alpha above 0"):
        cutmix_data(x, y, alpha=0)


@pytest.mark.numeric
def test_batch_augmentations() -> None:
    torch.manual_seed(0)
    x = torch.rand(400, 3, 6, 6)
    flipped = random_flip(x)
    mirrored = (flipped == x.flip(-1)).flatten(1).all(1)
    assert 150 < mirrored.sum() < 250 and ((flipped == x).flatten(1).all(1) | mirrored).all()
    ones = random_crop(torch.ones(300, 1, 6, 6), 2)
    assert ones.mean() == pytest.approx((5 / 6 - 1 / 30) ** 2, abs=0.03)  # a window misses 6/5 of 6 rows on average
    gray = random_grayscale(x, 0.25)
    assert 70 < (gray.std(1) < 1e-6).flatten(1).all(1).sum() < 130
    assert torch.allclose(normalize(x, (0.5, 0.4, 0.3), (2, 2, 2))[:, 1], (x[:, 1] - 0.4) / 2)
    assert soft_aug((0.5,) * 3, (0.2,) * 3)(x).min() == pytest.approx(-2.5)  # the border is 0 before normalisation
    strong = strong_aug(6, torch.tensor([0.5] * 3), torch.tensor([0.2] * 3))(x)
    assert strong.shape == x.shape and strong.min() >= -2.51 and not strong.requires_grad


@pytest.mark.numeric
def test_similarities_are_preserved() -> None:
    a = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    b = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert SPKDLoss("batchmean")(a, 3 * a) == 0
    half = 0.5**0.5
    assert SPKDLoss("sum")(a, b) == pytest.approx(2 * ((1 - half) ** 2 + half**2))


# -- buffers ---------------------------------------------------------------------------------------------------------


def offer(buffer: Buffer, labels: list[int], scores: list[float] | None = None) -> None:
    values = torch.tensor(labels)
    given = None if scores is None else torch.tensor(scores)
    buffer.add_data(examples=values[:, None].float(), labels=values, sample_selection_scores=given)


def test_balancoir_keeps_a_rare_class() -> None:
    np.random.seed(0)
    buffer = Buffer(20, sample_selection_strategy="balancoir")
    offer(buffer, [1] * 10 + [0] * 200 + [1] * 2)
    counts = torch.bincount(buffer.labels)
    assert counts[1] >= 9 and counts.sum() == 20


@pytest.mark.parametrize("strategy", ["lars", "labrs"])
def test_what_is_learnt_well_goes_first(strategy: str) -> None:
    """Slots 0 … 9 have a high loss, the others a low one."""
    np.random.seed(0)
    buffer = Buffer(20, sample_selection_strategy=strategy)
    offer(buffer, list(range(20)), [-5.0] * 10 + [-0.01] * 10)
    offer(buffer, list(range(20, 28)), [-5.0] * 8)
    kept = int((buffer.labels < 10).sum())
    assert kept == 10 if strategy == "lars" else kept >= 8
    assert (buffer.labels >= 20).sum() >= 3
    buffer.sample_selection_fn.update(torch.tensor([3]), torch.tensor([-0.5]))
    copy = Buffer(20, sample_selection_strategy=strategy)
    copy.load_state_dict(buffer.state_dict())
    assert copy.sample_selection_fn.importance_scores[3] == -0.5


def test_abs_looks_at_past_and_present_apart() -> None:
    """From the past, what is learnt worst makes room; from the present, what is learnt best."""
    np.random.seed(0)
    dataset = Namespace(get_offsets=lambda: (10, 20))
    buffer = Buffer(4, sample_selection_strategy="abs", dataset=dataset)
    offer(buffer, [0, 1, 10, 11], [-5.0, -0.1, -5.0, -0.1])
    assert buffer.sample_selection_fn.weights(buffer.labels).tolist() == [2, 0, 0, 2]  # type: ignore[attr-defined]


def test_an_unlimited_buffer_grows() -> None:
    buffer = Buffer(-1, device="cpu", sample_selection_strategy="unlimited")
    offer(buffer, list(range(7)))
    assert (buffer.buffer_size, len(buffer), len(buffer.examples)) == (10**9, 7, 10)
    offer(buffer, list(range(7, 37)))
    assert len(buffer) == 37 and buffer.get_all_data()[1].tolist() == list(range(37))
    buffer.buffer_size = 3  # as iCaRL's functions do
    assert buffer.buffer_size == 10**9


def test_rings() -> None:
    buffer = RingBuffer(6, n_tasks=2)
    assert buffer.is_empty()
    buffer.add_data(examples=torch.arange(5.0)[:, None], labels=torch.arange(5))
    assert buffer.get_all_data()[1].tolist() == [3, 4, 2] and len(buffer) == 3
    buffer.num_seen_examples, buffer.task_number = 0, 1
    assert not buffer.is_empty()
    buffer.add_data(examples=torch.arange(10.0, 12.0)[:, None], labels=torch.arange(10, 12))
    assert buffer.labels.tolist() == [3, 4, 2, 10, 11, 0]
    images, labels = buffer.get_data(100)
    assert sorted(labels.tolist()) == [2, 3, 4, 10, 11] and torch.equal(images[:, 0].long(), labels)
    copy = RingBuffer(6, n_tasks=2)
    copy.load_state_dict(buffer.state_dict())
    assert copy.labels.tolist() == buffer.labels.tolist() and copy.task_number == 1


class Directions:
    """A model whose gradient for an image is the image itself."""

    def get_grads(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return inputs.flatten()


@pytest.mark.numeric
def test_gradients_that_point_elsewhere_replace_those_that_agree() -> None:
    np.random.seed(0)
    buffer = utils.gss_buffer.Buffer(4, "cpu", 4, Directions())
    right, left = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 0.1]])
    buffer.add_data(examples=right.repeat(4, 1), labels=torch.zeros(4))
    buffer.drop_cache()
    buffer.add_data(examples=right.repeat(9, 1), labels=torch.ones(9))
    assert buffer.labels.tolist() == [0] * 4  # nothing new in them
    buffer.add_data(examples=left, labels=torch.full((1,), 2))
    assert buffer.labels.tolist().count(2) == 1
    buffer.reset_fathom()
    rows = [buffer.get_data(2, give_index=True)[-1] for _ in range(2)]
    assert sorted(torch.cat(rows).tolist()) == [0, 1, 2, 3]


# -- exemplars -------------------------------------------------------------------------------------------------------


@pytest.fixture
def replaying(tmp_path: Path) -> ContinualModel:
    """A model in its second task, with four images of the first task in a buffer."""
    model: Any = build("sgd", tmp_path)
    begin_task(model)
    model.meta_end_task(model.dataset)
    images = model.dataset.train_loader.dataset
    model.buffer = Buffer(4)
    model.buffer.add_data(images.batch(slice(0, 4)), images.targets[:4])
    begin_task(model)
    return model


def test_replayed_images_are_the_stored_ones(replaying: Any) -> None:
    dataset = replaying.dataset
    first = dataset.splits.train.data[dataset.splits.train.targets < 2][:4]
    own = len(dataset.train_loader.dataset)
    icarl_replay(replaying, dataset)
    images = dataset.train_loader.dataset
    assert len(images) == own + 4 and len(list(dataset.train_loader)) == len(dataset.train_loader)
    assert torch.equal(images.data[own:], first) and set(images.targets[own:].tolist()) <= {0, 1}


def test_a_part_is_held_out(replaying: Any) -> None:
    dataset, own = replaying.dataset, len(replaying.dataset.train_loader.dataset)
    np.random.seed(0)
    icarl_replay(replaying, dataset, val_set_split=0.25)
    held_out = sum(len(batch[1]) for batch in replaying.val_loader)
    assert held_out + len(dataset.train_loader.dataset) == own + 4 and 50 < held_out < 95
    assert len(next(iter(replaying.val_loader))) == 3


@pytest.mark.parametrize("extend", [False, True])
def test_a_balanced_memory_with_all_that_is_asked_for(extend: bool, replaying: Any) -> None:
    dataset, buffer = replaying.dataset, replaying.buffer
    dataset.args.buffer_size = 10
    icarl_replay(replaying, dataset)
    wanted = ["examples", "labels", "logits", "task_labels"]
    buffer.empty()
    fill_buffer(buffer, dataset, 1, replaying.net, True, wanted, extend_equalize_buffer=extend)
    assert buffer.buffer_size == (12 if extend else 10) and buffer.used_attributes == wanted
    assert torch.bincount(buffer.labels[: len(buffer)])[2:].tolist() == ([3, 3] if extend else [2, 2])
    assert ((buffer.logits >= 0) & (buffer.logits <= 1)).all() and set(buffer.task_labels.tolist()[: len(buffer)]) == {
        1
    }
    assert dataset.train_loader.dataset.targets.min() == 2  # what was replayed is gone
    assert replaying.net.training
    with pytest.raises(utils.errors.UserError, match="--buffer_size 3 has no room"):
        dataset.args.buffer_size = 3
        fill_buffer(buffer, dataset, 1)


# -- training sets that are edited -----------------------------------------------------------------------------------


def image_set() -> ImageSet:
    data = torch.randint(256, (6, 4, 5, 3), dtype=torch.uint8)
    return ImageSet(data, torch.arange(6) % 3)


def test_a_training_set_is_good_for_numpy() -> None:
    images = image_set()
    plain = images.data.clone().numpy()
    assert np.unique(images.targets).tolist() == [0, 1, 2]
    assert np.mean(images.data) == plain.mean() and images.data.astype(np.float32).max() == plain.max()
    assert np.array_equal(np.asarray(Image.fromarray(images.data[2])), plain[2])
    assert np.array_equal(images.data[np.asarray(images.targets) == 1], plain[1::3])
    images.data[0] = np.zeros((4, 5, 3), np.uint8)
    np.asarray(images.data)[1] = 7
    images.targets[images.targets == 2] = 1
    assert images[0][2].max() == 0 and images[1][2].min() == images[1][2].max() == torch.tensor(7 / 255)
    assert [int(images[i][1]) for i in range(6)] == [0, 1, 1, 0, 1, 1]


def test_arrays_can_take_the_place_of_images_and_labels() -> None:
    images, strides = image_set(), image_set().data.stride()
    images.data = np.concatenate([images.data, 255 - np.asarray(images.data)])
    images.targets = np.concatenate([images.targets, np.ones(6)])
    assert len(images) == 12 and images.data.stride() == strides
    assert (images.data.dtype, images.targets.dtype) == (torch.uint8, torch.int64)
    assert torch.equal(images.data[6].int() + images.data[0].int(), torch.full((4, 5, 3), 255))
    images.data = images.data.tolist()
    with pytest.raises(ValueError, match="must be bytes"):
        images.data = np.full((12, 4, 5, 3), 0.5)


def test_another_transform_takes_effect_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A transform of torchvision gets PIL images, as it does in Mammoth."""
    dataset = build("sgd", tmp_path).dataset
    loader, _ = dataset.get_data_loaders()
    loader.dataset.transform = transforms.Compose([transforms.RandomHorizontalFlip(p=1.0), transforms.ToTensor()])
    mirrored, labels, plain = next(iter(loader))
    assert torch.equal(mirrored, plain.flip(-1)) and len(labels) == len(plain)
    assert torch.equal(loader.dataset[3][0], loader.dataset[3][2].flip(-1))
    loader.state_dict()
    assert "the method has replaced the training transform" in caplog.text


class Editing(Sgd):
    """Appends negatives, edits pixels and labels, and replaces the flags it was given."""

    NAME = "editing"

    def begin_task(self, dataset: Any) -> None:
        images = dataset.train_loader.dataset
        images.data = np.concatenate([images.data, 255 - np.asarray(images.data)[:7]])
        images.targets = np.concatenate([np.asarray(images.targets), np.full(7, self.n_past_classes)])
        images.data[np.random.randint(len(images), size=50)] = 0
        self.labels = images.targets[:9]
        images.add_extra_return_field("noise", np.random.rand(len(images)).astype(np.float32))
        self.args.optim_wd = 0.01 * (self.current_task + 1)

    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None, noise: Any = None) -> Any:
        assert noise.shape == labels.shape and noise.dtype == torch.float32
        assert self.labels.astype(np.float32).shape == (9,)  # also after a resume
        _wandb_noise = noise.mean() * self.args.optim_wd
        return super().observe(inputs + noise.view(-1, 1, 1, 1) * np.random.rand(), labels, not_aug_inputs)


def test_edits_survive_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.get_model_class", lambda args: Editing)
    assert_exact_resume(Editing, tmp_path, "--lr", "0.1", model="sgd")
    losses = next((tmp_path / "straight").glob("results/*/*/*/metrics.jsonl")).read_text()
    assert "_wandb_noise" in losses  # by Mammoth's rule for local variables


# -- schedules -------------------------------------------------------------------------------------------------------


def test_get_scheduler_makes_an_optimizer_and_is_lenient(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    model = build("sgd", tmp_path, "--lr_scheduler", "cosine", "--n_epochs", "4")
    before = model.opt
    scheduler = get_scheduler(model, model.args)
    assert model.opt is not before and scheduler is not None and scheduler.optimizer is model.opt
    assert get_scheduler(model.net, model.args) is None and "has no optimizer" in caplog.text


@pytest.mark.numeric
def test_shapes_of_schedules() -> None:
    def rates(make: Any, steps: int) -> list[float]:
        optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
        schedule, found = make(optimizer), []
        for _ in range(steps):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return found

    cosine = rates(lambda opt: CosineSchedule(opt, K=4), 5)
    assert cosine == pytest.approx([2, 2 * np.cos(np.pi / 8), 2 * np.cos(np.pi / 4), 2 * np.cos(3 * np.pi / 8), 0])
    warm = rates(lambda opt: CosineSchedulerWithLinearWarmup(opt, 1.0, warmup_length=2, steps=6), 7)
    assert warm == pytest.approx([0.5, 1, 1, 0.8535534, 0.5, 0.1464466, 0])


class Scheduled(Sgd):
    """Has a schedule of its own, and moves it by itself if `MOVES`."""

    MOVES = False

    def begin_task(self, dataset: Any) -> None:
        self.custom_scheduler = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.5)

    def observe(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().observe(*args, **kwargs)
        if self.MOVES:
            self.custom_scheduler.step()
        return loss


@pytest.mark.numeric
@pytest.mark.parametrize(("mode", "moves", "rate"), [("epoch", False, 2), ("iter", False, 18), ("iter", True, 18)])
def test_a_schedule_of_the_models_own_moves_once(
    mode: str, moves: bool, rate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.get_model_class", lambda args: Scheduled)
    monkeypatch.setattr(Scheduled, "MOVES", moves)
    flags = ("--n_epochs", "2", "--stop_after", "1", "--scheduler_mode", mode, "--lr_scheduler", "cosine")
    _, model, _ = run(tmp_path, "--lr", "1", *flags, model="sgd")
    assert model.opt.param_groups[0]["lr"] == pytest.approx(0.5**rate)


def test_a_schedule_of_the_models_own_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.get_model_class", lambda args: Scheduled)
    assert_exact_resume(Scheduled, tmp_path, "--lr", "0.1", "--scheduler_mode", "iter", model="sgd")


# -- programs --------------------------------------------------------------------------------------------------------


def test_a_program_written_against_mammoth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.argv` and `main()`, with an output stream of the program's own; again, it finds the run by its flags."""
    foreign = ROOT / "tests" / "foreign" / "gdumb.py"  # which changes its flags in the constructor
    flags = f"--plugin {foreign} --model gdumb --buffer_size 20 --lr 0.1 --seed 0 --num_workers 0"
    words = [*flags.split(), "--non_verbose", "1", "--n_epochs", "2", "--stop_after", "2", "--base_path", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["mammoth", *words])
    for said in ("Accuracy for 2 task(s)", "This run is finished"):
        with open(tmp_path / "log", "w+") as log:
            monkeypatch.setattr(sys, "stdout", log)
            main.main()
            assert said in Path(log.name).read_text()
    assert len(list(tmp_path.glob("results/*/*/*"))) == 1


def test_attributes_of_the_flags(tmp_path: Path) -> None:
    args = main.parse_args(["--model", "er", "--buffer_size", "5", "--base_path", str(tmp_path)])
    assert len(args.conf_jobnum) == 36 and args.nowand == 1 and args.minibatch_size == args.batch_size
    assert {"conf_timestamp", "conf_host", "conf_git_hash", "start_from", "debug_mode"} <= vars(args).keys()
    model, dataset, same = main.initialize(args)
    assert same is args is model.args is dataset.args and args.device == model.device
    assert conf.base_path() == f"{tmp_path}/"


def test_a_model_that_predicts_the_future_is_trained_like_any_other(tmp_path: Path) -> None:
    text = (ROOT / "tests" / "foreign" / "sgd.py").read_text()
    text = text.replace("from models.utils.continual_model import ContinualModel", FUTURE_IMPORT)
    text = text.replace("(ContinualModel)", "(FutureModel)")
    (tmp_path / "future.py").write_text(text + FUTURE_METHODS)
    flags = ("--plugin", str(tmp_path / "future.py"), "--lr", "0.1", "--n_epochs", "1", "--stop_after", "2")
    summary, model, _ = run(tmp_path, *flags, model="sgd")
    assert summary["n_tasks"] == 2 and model.future_forward(3) == 3


FUTURE_IMPORT = "from models.utils.future_model import FutureModel"
FUTURE_METHODS = """
    def future_forward(self, x, **kwargs):
        return x

    def change_transform(self, dataset):
        pass
"""
