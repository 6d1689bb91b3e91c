"""Dataset files written for Mammoth, given by `--plugin`: their loaders, our methods on them, and exact resume."""

from __future__ import annotations

import copy
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreign_helpers import FOREIGN, on
from helpers import ROOT, assert_same_run, run
from method_helpers import Killed, kill_at
from torchvision import transforms

import datasets
import models
from datasets.utils.continual_dataset import ContinualDataset, MammothDatasetWrapper
from models.dgc_er import DgcEr
from models.er import Er
from models.sgd import Sgd
from utils.cli.parse import parse_args
from utils.errors import UsageError, UserError
from utils.evaluate import mask_classes
from utils.run.identity import relevant_config

ER = ["--buffer_size", "30", "--lr", "0.1"]


def arguments(name: str, *flags: str) -> Namespace:
    args = parse_args(["--model", "sgd", "--seed", "0", "--lr", "0.1", *on(name), *flags])
    args.device = torch.device("cpu")
    return args


def make(name: str, *flags: str) -> Any:
    return datasets.get_dataset(arguments(name, *flags))


def all_tasks(dataset: Any) -> Any:
    for _ in range(dataset.N_TASKS):
        dataset.get_data_loaders()
    return dataset


# -- the dataset by itself ---------------------------------------------------------------------------------------


def test_defaults_and_flags_come_from_the_class() -> None:
    args = arguments("seq-patches")
    assert (args.backbone, args.n_epochs, args.batch_size, args.augment, args.shade) == ("mnistmlp", 2, 16, "crop", 3)
    assert (args.num_classes, args.num_workers) == (6, 0)  # N_CLASSES follows from the tasks
    dataset = make("seq-patches", "--augment", "none", "--shade", "5")
    assert (dataset.augment, dataset.shade) == ("none", 5)
    with pytest.raises(UsageError, match="augment"):
        arguments("seq-patches", "--augment", "all")


@pytest.mark.numeric
def test_tasks_are_cut_out_of_the_whole_set() -> None:
    dataset = make("seq-patches")
    for task in range(3):
        train, test = dataset.get_data_loaders()
        assert dataset.train_loader is train and dataset.test_loaders[task] is test
        assert (dataset.c_task, dataset.current_task, dataset.get_offsets()) == (
            task,
            task + 1,
            (2 * task, 2 * task + 2),
        )
        wrapper = train.dataset
        assert isinstance(wrapper, MammothDatasetWrapper)
        assert isinstance(wrapper.data, np.ndarray) and wrapper.data.shape == (80, 8, 8, 3)
        assert wrapper.targets.dtype == torch.int64 and set(wrapper.targets.tolist()) == {2 * task, 2 * task + 1}
        assert [i % 6 for i in wrapper.indexes] == wrapper.targets.tolist()
        assert (len(train), len(test), len(test.dataset)) == (5, 2, 20)
        images, labels, not_augmented = next(iter(train))
        assert images.shape == not_augmented.shape == (16, 3, 8, 8) and labels.dtype == torch.int64
        assert images.min() < 0 <= not_augmented.min() and not_augmented.max() <= 1
        assert len(next(iter(test))) == 2
    torch.testing.assert_close(
        wrapper.batch(torch.tensor([3])), torch.from_numpy(wrapper.data[[3]]).permute(0, 3, 1, 2) / 255
    )


def test_the_wrapper_reads_and_writes_what_lies_inside() -> None:
    wrapper = make("seq-patches").get_data_loaders()[0].dataset
    assert wrapper.root.endswith("PATCHES") and wrapper.not_aug_transform is wrapper.dataset.not_aug_transform
    wrapper.data = wrapper.data[:10]
    wrapper.targets = wrapper.targets[:10]
    assert len(wrapper) == len(wrapper.dataset.data) == 10
    wrapper.transform = wrapper.not_aug_transform
    assert torch.equal(wrapper[3][0], wrapper[3][2])
    wrapper.logits = torch.arange(10.0)[:, None]
    assert not hasattr(wrapper.dataset, "logits") and len(wrapper[3]) == 3
    wrapper.extra_return_fields += ("logits",)
    assert wrapper[3][3] == 3.0
    wrapper.add_extra_return_field("place", np.arange(240))  # one row per image of the full set
    assert wrapper[3][4] == wrapper.indexes[3]
    other = copy.deepcopy(wrapper)
    other.data[:] = 0
    assert wrapper.data.any() and other[3][3] == 3.0


def test_what_a_method_has_written_can_be_saved_and_redone(tmp_path: Path) -> None:
    wrapper, other = (make("seq-patches").get_data_loaders()[0].dataset for _ in range(2))
    assert wrapper.edits() == {}
    wrapper.data, wrapper.targets = wrapper.data[::2], wrapper.targets[::2].numpy()
    wrapper.add_extra_return_field("logits", torch.arange(40))
    torch.save(wrapper.edits(), tmp_path / "edits.pt")
    other.redo(torch.load(tmp_path / "edits.pt", weights_only=True))
    assert np.array_equal(other.data, wrapper.data) and np.array_equal(other.targets, wrapper.targets)
    assert other.extra_return_fields == ("logits",) and other[7][3] == 7


def test_class_order_and_names() -> None:
    dataset = all_tasks(make("seq-patches", "--custom_class_order", "5,4,3,2,1,0"))
    original = [i % 6 for i in dataset.train_loader.dataset.indexes]
    assert set(original) == {0, 1} and dataset.train_loader.dataset.targets.tolist() == [
        5 - label for label in original
    ]
    assert dataset.get_class_names() == [f"colour {i}" for i in (5, 4, 3, 2, 1, 0)]
    permuted = make("seq-patches", "--permute_classes", "1")
    order = permuted.args.class_order
    assert sorted(order) == list(range(6)) and permuted.get_class_names()[order[4]] == "colour 4"


def test_validation_holds_the_same_images_out_in_every_task() -> None:
    dataset = make("seq-patches", "--validation", "0.1")
    held_out, trained = [], []
    for _ in range(3):
        train, test = dataset.get_data_loaders()
        trained += train.dataset.indexes.tolist()
        held_out += test.dataset.indexes.tolist()
        assert len(test.dataset) == 8 and len(test.dataset[0]) == 2
    assert sorted(trained + held_out) == list(range(240))
    assert sorted(held_out) == sorted(
        i
        for loader in all_tasks(make("seq-patches", "--validation", "10")).test_loaders
        for i in loader.dataset.indexes
    )
    assert [len(loader.dataset) for loader in dataset.true_test_loaders()] == [20, 20, 20]


def test_joint_has_one_training_set_and_all_test_sets() -> None:
    dataset = make("seq-patches", "--joint", "1")
    train, _ = dataset.get_data_loaders()
    assert len(train.dataset) == 240 and dataset.N_TASKS == 1
    assert [sorted(set(loader.dataset.targets.tolist())) for loader in dataset.test_loaders] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(UsageError, match="--joint 1: the tasks of perm-patches"):
        make("perm-patches", "--joint", "1")


def test_a_domain_incremental_task_is_a_function_of_the_seed() -> None:
    dataset, other = all_tasks(make("perm-patches")), make("perm-patches")
    assert (dataset.N_CLASSES, dataset.get_offsets(2), dataset.eval_offsets(1), dataset.c_task) == (
        6,
        (0, 6),
        (0, 6),
        -1,
    )
    np.random.seed(123)  # what others draw makes no difference
    images = [next(iter(loader))[0] for loader in dataset.test_loaders]
    assert torch.equal(next(iter(other.make_test_loader(1)))[0], images[1])
    assert not torch.equal(images[0], images[1])
    assert torch.equal(images[0].flatten(1).sort().values, images[1].flatten(1).sort().values)
    assert other.current_task == 0  # looking ahead has not moved it
    other_seed = datasets.get_dataset(Namespace(**vars(dataset.args) | {"seed": 1}))
    assert not torch.equal(next(iter(other_seed.get_data_loaders()[1]))[0], images[0])


def test_an_explicit_assignment_to_tasks_wins() -> None:
    dataset = make("seq-patches")
    theirs = type(dataset).__mro__[2]
    globals_of_file = theirs.get_data_loaders.__globals__
    train, test = globals_of_file["TrainPatches"]("", True), globals_of_file["Patches"]("", False)
    train.task_ids, test.task_ids = np.arange(240) // 80, np.arange(60) // 20
    store = globals_of_file["store_masked_loaders"]
    for task in range(3):
        loader, test_loader = store(train, test, dataset)
        assert loader.dataset.indexes.tolist() == list(range(80 * task, 80 * task + 80))
        assert len(test_loader.dataset) == 20 and set(test_loader.dataset.targets.tolist()) == set(range(6))


def test_a_file_dropped_into_the_folder_is_found() -> None:
    file = ROOT / "datasets" / "dropped_patches.py"
    text = (FOREIGN / "seq_patches.py").read_text().replace('NAME = "seq-patches"', 'NAME = "other-patches"')
    decorated = text.replace("class SequentialPatches", '@register_dataset("dropped_patches")\nclass SequentialPatches')
    file.write_text(
        decorated.replace(
            "from datasets.utils import", "from datasets import register_dataset\nfrom datasets.utils import"
        )
    )
    try:
        dataset = datasets.get_dataset(parse_args(["--model", "sgd", "--lr", "0.1", "--dataset", "dropped-patches"]))
        assert len(dataset.get_data_loaders()[0].dataset) == 80 and dataset.get_prompt_templates()
    finally:
        file.unlink()


# -- transforms ----------------------------------------------------------------------------------------------------


@pytest.mark.numeric
def test_replayed_images_are_transformed_in_batches_or_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    dataset = make("seq-patches")
    images = torch.rand(5, 3, 8, 8)
    torch.testing.assert_close(
        dataset.get_batch_transform(augment=False)(images), dataset.get_normalization_transform()(images)
    )
    augmented = dataset.get_batch_transform(augment=True)(images)
    assert augmented.shape == images.shape and dataset.get_batch_transform(augment=True).batched
    assert make("perm-patches").get_batch_transform(augment=True) is None
    dataset.TRANSFORM = transforms.Compose([transforms.Lambda(lambda image: image), transforms.ToTensor()])
    assert dataset.get_batch_transform(augment=True).transforms[1] is dataset.TRANSFORM
    assert "Lambda" in caplog.text


def test_a_yaml_may_have_transforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strong.yaml").write_text(
        "N_TASKS: 2\nN_CLASSES_PER_TASK: 3\nn_epochs: 7\nTRANSFORM:\n  - RandomCrop: {size: 8, padding: 2}\n"
        "  - RandomRotation: 10\n  - RandomApply: {p: 0.3, transform: {RandomHorizontalFlip: {p: 1.0}}}\n  - ToTensor\n"
    )
    (tmp_path / "odd.yaml").write_text("TRANSFORM: [RandomCorp]\n")
    monkeypatch.setattr(datasets, "config_folder", lambda name: tmp_path)
    args = arguments("seq-patches", "--dataset_config", "strong")
    assert args.n_epochs == 7
    crop, rotation, apply, to_tensor = datasets.get_dataset_class(args).TRANSFORM.transforms
    assert (crop.size, crop.padding, rotation.degrees, apply.p) == ((8, 8), 2, [-10.0, 10.0], 0.3)
    assert apply.transforms[0].p == 1.0 and isinstance(to_tensor, transforms.ToTensor)
    assert len(all_tasks(datasets.get_dataset(args)).test_loaders) == 2
    assert relevant_config(args)["dataset_fields"]["TRANSFORM"][1] == {"RandomRotation": 10}
    with pytest.raises(UsageError, match=r"odd.yaml: TRANSFORM: 'RandomCorp' is no transform"):
        arguments("seq-patches", "--dataset_config", "odd")
    with pytest.raises(UsageError, match=r"odd.yaml: TRANSFORM: seq-digits takes no transforms"):
        parse_args(["--model", "sgd", "--dataset", "seq-digits", "--dataset_config", "odd"])


# -- methods on it -------------------------------------------------------------------------------------------------

REPLAY = {
    "er": [],
    "derpp": ["--alpha", "0.1", "--beta", "0.5"],
    "xder": "--alpha 0.1 --beta 0.5 --eta 0.01 --m 0.2".split(),
}


@pytest.mark.slow
@pytest.mark.numeric
@pytest.mark.parametrize(
    "flags",
    [
        ["er", *ER],
        ["er", *ER, "--buffer_fill", "task_end"],
        ["derpp", *ER, *REPLAY["derpp"], "--buffer_fill", "task_end"],
        ["xder", *ER, *REPLAY["xder"]],
        ["dgc_er", *ER, "--dgc_estimator", "sampled", "--dgc_m", "3", "--dgc_current", "1"],
        ["dgc_er", *ER, "--dgc_estimator", "closed", "--dgc_diagnostics", "4"],
        ["dgc_derpp", *ER, *REPLAY["derpp"], "--dgc_estimator", "released"],
        ["sgd", "--lr", "0.1", "--enable_other_metrics", "1", "--validation", "20"],
        ["joint", "--lr", "0.1", "--permute_classes", "1"],
    ],
    ids=lambda flags: " ".join(flags[:1] + flags[5:]),
)
def test_our_methods_learn_from_it(flags: list[str], tmp_path: Path) -> None:
    summary, model, _ = run(tmp_path, *on("seq-patches"), *flags[1:], model=flags[0])
    assert summary["task_il"]["FAA"] > 80
    if hasattr(model, "buffer"):
        assert model.buffer.examples.dtype == torch.float32 and set(model.buffer.labels.tolist()) == set(range(6))
        rows = model.buffer.examples[model.buffer.labels >= 4].mul(255).round().permute(0, 2, 3, 1).numpy()
        stored = {row.astype(np.uint8).tobytes() for row in rows}
        # Images as they are, not augmented.
        assert stored <= {image.tobytes() for image in model.dataset.train_loader.dataset.data}


def test_the_batches_do_not_depend_on_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[torch.Tensor]] = {}
    for method, flags in ((Sgd, ["--lr", "0.1"]), (Er, ER)):
        batches = seen[method.NAME] = []
        observe = method.observe

        def recording(self, inputs, *rest, observe=observe, batches=batches, **extra):
            torch.rand(3), np.random.rand(len(batches))  # draws of the method
            batches.append(inputs.clone())
            return observe(self, inputs, *rest)

        monkeypatch.setattr(method, "observe", recording)
        run(tmp_path / method.NAME, *on("seq-patches"), *flags, "--stop_after", "2", model=method.NAME)
    assert len(seen["sgd"]) == len(seen["er"]) == 20
    assert all(torch.equal(a, b) for a, b in zip(seen["sgd"], seen["er"], strict=True))
    assert not torch.equal(seen["sgd"][0], seen["sgd"][5])  # the second epoch is another one


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method", "flags"),
    [
        ("seq-patches", Er, []),
        ("seq-patches", DgcEr, ["--dgc_m", "3"]),
        ("seq-patches", Er, ["--num_workers", "2"]),
        ("perm-patches", Er, ["--n_epochs", "2"]),
        ("gcl-patches", Er, []),
    ],
)
def test_resume_is_exact(name: str, method: Any, flags: list[str], tmp_path: Path) -> None:
    assert_exact_resume(method, tmp_path, *on(name), *ER, *flags)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flags"), [("icarl", ["--buffer_size", "30"]), ("lwf", [])])
def test_resume_is_exact_with_a_method_that_edits_the_training_set(name: str, flags: list[str], tmp_path: Path) -> None:
    """It also comes from a file: iCaRL adds exemplars, LwF a field with logits."""
    command = ["--plugin", str(FOREIGN / f"{name}.py"), *on("seq-patches"), "--lr", "0.1", *flags]
    method = models.get_model_class(parse_args(["--model", name, *command]))
    assert_exact_resume(method, tmp_path, *command, first=14, second=4)  # in task 2, where the set is another one


def assert_exact_resume(method: Any, tmp_path: Path, *command: str, first: int = 4, second: int = 7) -> None:
    """Killed in its step `first`, and in step `second` after the checkpoint that it then begins at."""
    _, _, straight = run(tmp_path / "straight", *command, model=method.NAME)
    for step in (first, second):
        with pytest.MonkeyPatch.context() as patch:
            kill_at(method, step, patch)
            with pytest.raises(Killed):
                run(tmp_path / "broken", *command, "--checkpoint_every", "2", model=method.NAME)
    _, _, resumed = run(tmp_path / "broken", *command, model=method.NAME)
    assert_same_run(resumed, straight)


def test_a_stream_of_unknown_length_is_trained_once(tmp_path: Path) -> None:
    summary, model, directory = run(tmp_path, *on("gcl-patches"), *ER, "--task_free", "1")
    assert summary["steps"] == 9 and summary["n_tasks"] == 1 and model.buffer.num_seen_examples == 240
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert len(lines[0]["loss"]) == 9


def test_classes_that_turn(tmp_path: Path) -> None:
    """As in mnist-360: one declared number of classes, and loaders in a list, of which the stream consists."""
    dataset = make("gcl-turning")
    assert (dataset.N_CLASSES_PER_TASK, dataset.N_TASKS, dataset.args.n_epochs) == (6, 1, 1)
    summary, model, _ = run(tmp_path, *on("gcl-turning"), *ER, "--task_free", "1")
    assert summary["steps"] == 15 and model.cpt == model.num_classes == 6
    assert isinstance(model.dataset.train_loader.dataset, list) and len(model.dataset.test_loaders) == 1
    train, test = dataset.get_data_loaders()
    assert len(next(iter(train))) == 3 and len(next(iter(test))) == 2
    with pytest.raises(UsageError, match="--n_epochs 2: gcl-turning is a stream, which passes once"):
        arguments("gcl-turning", "--n_epochs", "2")
    for flag in ("--enable_other_metrics", "--eval_future"):
        with pytest.raises(UsageError, match=f"{flag} 1: gcl-turning is one stream, with no task to come"):
            arguments("gcl-turning", flag, "1")


@pytest.mark.parametrize("flag", ["--noise_rate", "--label_perc", "--label_perc_by_class"])
def test_labels_of_batches_that_a_dataset_makes_itself_stay_as_they_are(flag: str, tmp_path: Path) -> None:
    """They would be right in a run that is taken for one with wrong labels."""
    with pytest.raises(UserError, match=f"^{flag}: gcl-patches makes its batches itself"):
        run(tmp_path, *on("gcl-patches"), *ER, flag, "0.5")


def test_classes_counted_over_all_tasks_are_those_of_one() -> None:
    dataset = all_tasks(make("rot-patches"))  # it takes its images from the file of perm-patches
    assert (dataset.N_CLASSES, dataset.args.num_classes, dataset.get_offsets(1)) == (6, 6, (0, 6))
    first, second = (next(iter(loader))[0] for loader in dataset.test_loaders)
    assert not torch.equal(first, second)
    image, _, same = dataset.train_loader.dataset[0]
    assert torch.equal(image, same)


OURS = [name for name, entry in models.get_model_entries().items() if entry.module]
SHARED = "needs tasks with classes of their own"
STREAM = "one stream"
NEED_OWN_CLASSES = ("hal", "icarl", "moca", "xder", "dgc-xder", "dynamic-er", "dgc-dynamic-er")
REFUSED = {
    "perm-patches": dict.fromkeys(NEED_OWN_CLASSES, SHARED) | {"joint": "can't be merged"},
    "gcl-patches": dict.fromkeys(NEED_OWN_CLASSES, SHARED)
    | dict.fromkeys(("agem", "gcr", "ssvrg", "dgc-er", "dgc-derpp"), STREAM)
    | {"joint": "can't be merged", "aop": "--aop_horizon"},
}


def command_of(dataset: str, name: str) -> list[str]:
    flags = [] if name in ("sgd", "joint", "aop", "ncm", "ridge") else ["--buffer_size", "30"]
    return [*on(dataset), *flags, "--lr", "0.05", "--n_epochs", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("dataset", ["seq-patches", "grey-patches"])
def test_our_methods_run_on_a_foreign_dataset(dataset: str, name: str, tmp_path: Path) -> None:
    stop = [] if name == "joint" else ["--stop_after", "2"]
    summary, model, _ = run(tmp_path, *command_of(dataset, name), *stop, model=name)
    assert summary["n_tasks"] == (3 if name == "joint" else 2) and summary["class_il"]["FAA"] > 5
    buffer = getattr(model, "buffer", None)
    if buffer is not None:
        assert buffer.examples.dtype == torch.float32 and 0 < len(buffer) <= 30
        stored, *_ = buffer.get_all_data()
        assert stored.min() >= 0 and stored.max() <= 1 and stored.std() > 0.05


@pytest.mark.parametrize(("dataset", "name"), [(dataset, name) for dataset in REFUSED for name in REFUSED[dataset]])
def test_our_methods_refuse_in_one_line_what_they_cannot_do(dataset: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=REFUSED[dataset][name]) as caught:
        run(tmp_path, *command_of(dataset, name), model=name)
    assert "\n" not in str(caught.value)


def test_exemplars_join_a_foreign_training_set_and_leave_it_again() -> None:
    for name in ("seq-patches", "grey-patches"):
        wrapper = make(name).get_data_loaders()[0].dataset
        before, images = wrapper.data.copy() if name == "seq-patches" else wrapper.data.clone(), wrapper.batch(slice(3))
        wrapper.append(images, torch.tensor([5, 4, 3]))
        assert len(wrapper) == 83 and wrapper.targets[80:].tolist() == [5, 4, 3] and wrapper[81][1] == 4
        assert torch.equal(wrapper.batch(slice(80, 83)), images)
        wrapper.drop_appended()
        assert np.array_equal(wrapper.data, before) and len(wrapper.targets) == 80


def test_exemplars_that_do_not_fit_are_reported() -> None:
    wrapper = make("seq-patches").get_data_loaders()[0].dataset
    with pytest.raises(UserError, match=r"exemplars of shape .*the dataset changes the size"):
        wrapper.append(torch.zeros(1, 3, 9, 9), torch.tensor([0]))
    wrapper.data = ["a.png"] * 80
    with pytest.raises(UserError, match="images are a list, no array"):
        wrapper.append(torch.zeros(1, 3, 8, 8), torch.tensor([0]))


@pytest.mark.parametrize("name", ["dgc-er", "aop"])
def test_a_stream_is_for_task_free_methods(name: str, tmp_path: Path) -> None:
    own = ["--aop_horizon", "5"] if name == "aop" else ["--buffer_size", "30"]
    summary, _, _ = run(tmp_path, *on("gcl-patches"), *own, "--lr", "0.05", "--task_free", "1", model=name)
    assert summary["steps"] == 9


@pytest.mark.numeric
def test_mammoths_evaluation_agrees_with_ours(tmp_path: Path) -> None:
    summary, model, _ = run(tmp_path, *on("seq-patches"), *ER)
    class_il, _ = model.dataset.evaluate(model, model.dataset)
    assert np.mean(class_il) == pytest.approx(summary["class_il"]["FAA"])
    last, _, loss = model.dataset.evaluate(model, model.dataset, last=True, return_loss=True)
    assert last == class_il[-1:]
    images, labels = (torch.cat(fields) for fields in zip(*model.dataset.test_loaders[-1], strict=True))
    model.net.eval()
    outputs = model(images).detach()
    assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, labels)), rel=1e-5)
    mask_classes(outputs, model.dataset, 1)
    assert set(outputs.argmax(1).tolist()) <= {2, 3} and outputs[:, :2].max() == -float("inf")


def test_items_that_are_no_triples_are_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make("seq-patches")
    theirs = type(dataset).__mro__[2].get_data_loaders.__globals__
    monkeypatch.setitem(theirs, "TrainPatches", theirs["Patches"])
    with pytest.raises(UserError, match="seq-patches: its training items have 2 parts"):
        dataset.prepare()


def test_no_batch_at_all_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--batch_size 100 leaves no batch of the 80 images of task 1"):
        run(tmp_path, *on("seq-patches"), "--lr", "0.1", "--batch_size", "100", "--drop_last", "1", model="sgd")


def test_ours_need_no_adapter() -> None:
    args = parse_args(["--model", "sgd", "--dataset", "seq-digits"])
    assert datasets.get_dataset_class(args).__mro__[1] is ContinualDataset
