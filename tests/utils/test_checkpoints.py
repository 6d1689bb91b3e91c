"""Checkpoints survive kills, full disks, damage and malice; hand-over files say why they do not fit."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import random
import re
import signal
import time
import zipfile
from argparse import Namespace
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from utils.buffer import Buffer
from utils.checkpoints import mammoth_load_checkpoint, save_mammoth_checkpoint, to_parsable_obj
from utils.errors import UserError
from utils.resume import store
from utils.resume.store import load, save

FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
NEWEST, PREVIOUS, MANIFEST = "checkpoint.pt", "checkpoint.previous.pt", "checkpoint.json"


def state(step: int) -> dict:
    return {"step": step, "weights": torch.full((1000,), float(step)), "nested": [(step, {"a": torch.tensor(step)})]}


def step_of(content: dict | None) -> int | None:
    """The step of a state, after a check that its parts belong together."""
    if content is None:
        return None
    step = content["step"]
    assert torch.equal(content["weights"], torch.full((1000,), float(step)))
    assert content["nested"][0][0] == step and content["nested"][0][1]["a"] == step
    return step


def child(function: Callable[[], None]) -> int:
    """Run in a forked process, which has torch already; its id.

    A fork has none of the parent's worker threads and would wait for them for ever, so it must do with one thread.
    """
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        signal.alarm(60)  # whatever it waits for, it ends
        try:
            function()
        except BaseException:
            os._exit(70)
        os._exit(0)
    return pid


def exit_status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


class Poison:
    def __reduce__(self):
        raise ZeroDivisionError("poison")


# -- resume ------------------------------------------------------------------------------------------------


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    assert load(tmp_path / "absent") is None


def test_newest_and_previous_are_kept_with_the_digests_of_what_was_written(tmp_path: Path) -> None:
    for step in range(4):
        save(tmp_path, state(step))
        assert step_of(load(tmp_path)) == step
    assert sorted(path.name for path in tmp_path.iterdir()) == [MANIFEST, PREVIOUS, NEWEST]
    digests = json.loads((tmp_path / MANIFEST).read_text())["sha256"]
    for position, name in enumerate((NEWEST, PREVIOUS)):
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digests[position]
    (tmp_path / NEWEST).unlink()
    assert step_of(load(tmp_path)) == 2


def test_all_plain_types_come_back_as_they_are(tmp_path: Path, device: torch.device) -> None:
    shared = torch.arange(6.0, device=device).reshape(2, 3)
    content = {
        "scalars": [None, True, 2**100, 0.1, float("inf"), 1j, "ä", b"\0", torch.bfloat16, torch.Size([2]), {1, 2}],
        "containers": (OrderedDict(b=1, a=2), Counter("aab"), {3: {}, "x": ()}),
        "tensors": [shared, shared, nn.Parameter(shared.clone()), torch.empty(0), torch.tensor(3)],
        "channels_last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    }
    save(tmp_path, content)
    loaded = load(tmp_path)
    assert loaded is not None
    assert loaded["scalars"] == content["scalars"] and loaded["containers"] == content["containers"]
    assert all(tensor.device.type == "cpu" for tensor in loaded["tensors"])
    assert loaded["tensors"][0] is loaded["tensors"][1]
    assert torch.equal(loaded["tensors"][2], shared.cpu())
    assert loaded["channels_last"].stride() == content["channels_last"].stride()


def test_what_could_not_be_loaded_is_not_written(tmp_path: Path) -> None:
    save(tmp_path, state(1))
    for bad in (Poison(), np.float64(1), np.zeros(2), Namespace(), print):
        with pytest.raises(TypeError, match=r"state\['a'\]\[1\] is a .*tensors and plain containers"):
            save(tmp_path, {"a": [0, bad]})
    assert step_of(load(tmp_path)) == 1


def test_error_in_the_middle_of_pickling_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch) -> None:
    save(tmp_path, state(1))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(store, "compact", lambda value, path, done: value)
    with pytest.raises(ZeroDivisionError):
        save(tmp_path, {"weights": torch.zeros(1000), "bad": Poison()})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_view_does_not_bring_its_whole_storage_along(tmp_path: Path) -> None:
    images = torch.randn(1000, 3, 8, 8).to(memory_format=torch.channels_last)
    save(tmp_path, {"rows": images[:2], "again": images[:2], "column": torch.eye(300)[:, 0]})
    assert (tmp_path / NEWEST).stat().st_size < 20_000
    loaded = load(tmp_path)
    assert loaded is not None
    assert torch.equal(loaded["rows"], images[:2]) and loaded["rows"].stride() == images.stride()
    assert torch.equal(loaded["column"], torch.eye(300)[:, 0])


@pytest.mark.slow
@FORK
@pytest.mark.parametrize("damaged", [None, NEWEST, PREVIOUS, MANIFEST])
@pytest.mark.parametrize("existing", [0, 1, 2])
def test_death_at_any_point_leaves_a_loadable_checkpoint(tmp_path: Path, existing: int, damaged: str | None) -> None:
    """The child dies before its n-th call to the system that changes files, for every n."""
    prepared = 0
    for point in range(100):
        directory = tmp_path / str(point)
        for step in range(existing):
            save(directory, state(step))
        if damaged is not None and (directory / damaged).exists():
            (directory / damaged).write_bytes(b"damage")
        store._sound.clear()  # as in a new process
        survivors = [] if existing == 0 or (existing == 1 and damaged == NEWEST) else [existing - 1]
        if existing == 2 and damaged == NEWEST:
            survivors = [0]
        status = exit_status(child(lambda directory=directory, point=point: save_and_die(directory, existing, point)))
        if status == 0:
            assert step_of(load(directory)) == existing
            break
        assert status == 9
        prepared += 1
        if survivors:
            assert step_of(load(directory)) in [*survivors, existing]
    assert prepared >= 6 and status == 0


def save_and_die(directory: Path, step: int, point: int) -> None:
    calls = 0

    def deadly(function):
        def wrapped(*arguments, **keywords):
            nonlocal calls
            if calls == point:
                os._exit(9)
            calls += 1
            return function(*arguments, **keywords)

        return wrapped

    for name in ("replace", "fsync", "open", "unlink", "mkdir"):
        setattr(os, name, deadly(getattr(os, name)))
    save(directory, state(step))


@pytest.mark.slow
@FORK
def test_sigkill_while_saving_in_a_loop(tmp_path: Path) -> None:
    started = tmp_path.parent / f"{tmp_path.name}-started"

    def work() -> None:
        step = first
        started.touch()
        while True:
            save(tmp_path, state(step))
            step += 1

    moments = random.Random(0)
    last = -1
    for _ in range(20):
        first = last + 1
        started.unlink(missing_ok=True)
        pid = child(work)
        while not started.exists():  # a busy machine may take its time to begin
            time.sleep(0.001)
        time.sleep(moments.uniform(0.005, 0.06))
        os.kill(pid, signal.SIGKILL)
        assert exit_status(pid) == -signal.SIGKILL
        step = step_of(load(tmp_path))
        assert (last == -1 and step is None) or (step is not None and step >= last)
        last = -1 if step is None else step
    assert last > 0


@pytest.mark.parametrize("name", [NEWEST, PREVIOUS, MANIFEST])
def test_truncation_at_every_quarter_and_flipped_bytes(tmp_path: Path, name: str, caplog) -> None:
    save(tmp_path, state(0))
    save(tmp_path, state(1))
    good = (tmp_path / name).read_bytes()
    places = sorted({0, 1, len(good) // 4, len(good) // 2, 3 * len(good) // 4, len(good) - 1})
    flips = [good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :] for place in places]
    for bad in [*(good[:place] for place in places), *flips]:
        (tmp_path / name).write_bytes(bad)
        caplog.clear()
        step = step_of(load(tmp_path))
        if name == NEWEST:
            assert step == 0
            assert len(caplog.records) == 1 and caplog.records[0].levelno == logging.WARNING
            assert NEWEST in caplog.text and PREVIOUS in caplog.text
        elif name == PREVIOUS:
            assert step == 1 and not caplog.records
        else:  # a damaged digest may cost the newest file; a lost manifest costs nothing
            assert step in (0, 1)
    (tmp_path / name).write_bytes(good)
    assert step_of(load(tmp_path)) == 1


def test_without_the_manifest_the_archive_itself_is_checked(tmp_path: Path) -> None:
    save(tmp_path, state(0))
    save(tmp_path, state(1))
    (tmp_path / MANIFEST).unlink()
    assert step_of(load(tmp_path)) == 1
    content = bytearray((tmp_path / NEWEST).read_bytes())
    content[content.index(torch.full((4,), 1.0).numpy().tobytes())] ^= 1
    (tmp_path / NEWEST).write_bytes(content)
    assert torch.load(tmp_path / NEWEST, weights_only=True)["step"] == 1  # torch itself does not notice
    assert step_of(load(tmp_path)) == 0
    save(tmp_path, state(2))
    (tmp_path / NEWEST).unlink()
    assert step_of(load(tmp_path)) == 0


def test_both_damaged_says_what_to_do(tmp_path: Path) -> None:
    save(tmp_path, state(0))
    save(tmp_path, state(1))
    for name in (NEWEST, PREVIOUS):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(
        UserError, match=r"checkpoint\.pt is damaged .*previous\.pt is damaged .*; --overwrite 1"
    ) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value) and "with the run's own command and seed, without --resume" in str(
        caught.value
    )


def test_malicious_checkpoint_is_refused_and_its_code_not_run(tmp_path: Path, caplog) -> None:
    """Also by whoever can write the manifest."""
    mark = tmp_path / "mark"
    save(tmp_path, state(0))
    save(tmp_path, state(1))
    torch.save({"step": 2, "x": Evil(mark)}, tmp_path / NEWEST)
    digests = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in (NEWEST, PREVIOUS)]
    (tmp_path / MANIFEST).write_text(json.dumps({"sha256": digests}))
    assert step_of(load(tmp_path)) == 0
    assert (
        re.search(r"refused, since it asks for \w*\.open: only tensors", caplog.text) and "\n" not in caplog.messages[0]
    )
    (tmp_path / PREVIOUS).unlink()
    with pytest.raises(UserError, match=r"refused.*; --overwrite 1"):
        load(tmp_path)
    assert not mark.exists()
    torch.load(tmp_path / NEWEST, weights_only=False)["x"].close()  # the trap itself works
    assert mark.exists()


@FORK
def test_full_disk_is_one_line_and_the_checkpoint_stays(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    save(tmp_path, state(0))
    save(tmp_path, state(1))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    message = tmp_path.parent / f"{tmp_path.name}-message"
    big = {"big": torch.zeros(100_000)}

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        try:
            save(tmp_path, big)
        except UserError as error:
            message.write_text(str(error))
            os._exit(error.exit_code)

    assert exit_status(child(work)) == 1
    expected = f"cannot write {tmp_path / NEWEST}: File too large; free some space there or choose another --base_path"
    assert message.read_text() == expected
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert step_of(load(tmp_path)) == 1


# -- hand-over ---------------------------------------------------------------------------------------------


class StandInBuffer:
    """What `utils.buffer.Buffer` offers to a checkpoint."""

    def __init__(self, size: int):
        self.examples, self.labels = torch.zeros(size, 2), torch.zeros(size, dtype=torch.int64)
        self.num_seen_examples = 0

    def serialize(self) -> dict[str, torch.Tensor]:
        return {"examples": self.examples, "labels": self.labels}


class StandInModel(nn.Module):
    def __init__(self, classes: int = 3, buffer_size: int = 4):
        super().__init__()
        self.net = nn.Sequential()
        self.net.add_module("body", nn.Linear(2, 5))
        self.net.add_module("classifier", nn.Linear(5, classes))
        self.buffer = StandInBuffer(buffer_size)

    def load_buffer(self, fields: dict[str, torch.Tensor]) -> None:
        assert len(fields["labels"]) == len(self.buffer.labels), "capacities differ"
        vars(self.buffer).update(fields)
        self.buffer.num_seen_examples = len(self.buffer.labels)


@pytest.fixture
def args(tmp_path: Path) -> Namespace:
    return Namespace(
        model="er",
        dataset="seq-digits",
        dataset_config=None,
        buffer_size=4,
        n_epochs=2,
        checkpoint_path=str(tmp_path),
        savecheck="task",
        stop_after=1,
        ckpt_name="mine",
        device=torch.device("cpu"),
        lr=np.float64(0.1),
        milestones=[np.int64(3)],
        joint=0,
    )


def test_hand_over_round_trip(tmp_path: Path, args: Namespace) -> None:
    model = StandInModel()
    model.buffer.examples += 1
    model.buffer.num_seen_examples = 116
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = [[[np.float64(91.5)]], [[92.5]]]
    first = save_mammoth_checkpoint(0, 2, args, model, rows, optimizer.state_dict(), None)
    second = save_mammoth_checkpoint(1, 2, args, model, rows)
    assert first is not None and second is not None
    pattern = r"mine_er_seq-digits_None_4_2_\d{8}-\d{6}_[0-9a-f]{8}_"
    assert re.fullmatch(pattern + r"0\.pt", first.name) and second.name == first.name.replace("_0.pt", "_1.pt")
    assert args.ckpt_name == "mine"

    content = torch.load(first, weights_only=True)
    assert {"model", "optimizer", "scheduler", "args", "results", "buffer"} <= content.keys()
    assert content["args"]["lr"] == 0.1 and type(content["args"]["lr"]) is float
    assert content["args"]["milestones"] == [3] and content["args"]["device"] == "cpu"
    assert content["optimizer"]["param_groups"][0]["lr"] == 0.1
    assert list(content["buffer"]) == ["examples", "labels"]

    stored = mammoth_load_checkpoint(first, return_only_args=True)
    assert stored["buffer_size"] == 4 and not stored.keys() & {"savecheck", "stop_after", "ckpt_name", "device"}
    fresh = StandInModel()
    loaded, results = mammoth_load_checkpoint(first, fresh)
    assert loaded is fresh and results == [[[91.5]], [[92.5]]] and type(results[0][0][0]) is float
    for name, weight in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], weight)
    assert torch.equal(fresh.buffer.examples, model.buffer.examples) and fresh.buffer.num_seen_examples == 116


def test_names_of_last_joint_and_given(tmp_path: Path, args: Namespace) -> None:
    model, args.ckpt_name, args.savecheck = StandInModel(), None, "last"
    assert save_mammoth_checkpoint(0, 2, args, model) is None
    last = save_mammoth_checkpoint(1, 2, args, model)
    assert last is not None and last.name.startswith("er_seq-digits_") and last.name.endswith("_last.pt")
    given = save_mammoth_checkpoint(0, 2, args, model, checkpoint_name="x")
    assert given == tmp_path / "x.pt" and given.exists()
    args.joint = 1
    joint = save_mammoth_checkpoint(0, 1, args, model)
    assert joint is not None and joint.name.endswith("_joint.pt")
    other = save_mammoth_checkpoint(0, 1, args, StandInModel())
    assert other != joint  # two runs of one process do not overwrite each other


def test_bare_state_dict_is_backbone_weights(tmp_path: Path) -> None:
    source, target = StandInModel(), StandInModel()
    torch.save({f"module.{name}": weight for name, weight in source.net.state_dict().items()}, tmp_path / "net.pt")
    assert mammoth_load_checkpoint(tmp_path / "net.pt", return_only_args=True) == {}
    _, results = mammoth_load_checkpoint(str(tmp_path / "net.pt"), target)
    assert results is None and torch.equal(target.net.body.weight, source.net.body.weight)


def test_other_architecture_is_named_and_nothing_is_loaded(tmp_path: Path, args: Namespace) -> None:
    path = save_mammoth_checkpoint(0, 1, args, StandInModel(classes=3))
    target = StandInModel(classes=7)
    before = {name: weight.clone() for name, weight in target.state_dict().items()}
    with pytest.raises(UserError, match=r"net\.classifier\.weight is \(3, 5\) in the file and \(7, 5\) here; use"):
        mammoth_load_checkpoint(path, target)
    assert all(torch.equal(target.state_dict()[name], weight) for name, weight in before.items())
    mammoth_load_checkpoint(path, target, ignore_classifier=True)
    assert not torch.equal(target.net.body.weight, before["net.body.weight"])
    assert torch.equal(target.net.classifier.weight, before["net.classifier.weight"])

    torch.save({"body.weight": torch.zeros(5, 2)}, tmp_path / "net.pt")
    with pytest.raises(UserError, match=r"body\.bias is absent in the file and \(5,\) here"):
        mammoth_load_checkpoint(tmp_path / "net.pt", target)
    torch.save({**target.net.state_dict(), "extra": torch.zeros(1)}, tmp_path / "net.pt")
    with pytest.raises(UserError, match=r"extra is \(1,\) in the file and absent here"):
        mammoth_load_checkpoint(tmp_path / "net.pt", target)


def test_buffer_of_another_size(args: Namespace) -> None:
    path = save_mammoth_checkpoint(0, 1, args, StandInModel(buffer_size=4))
    with pytest.raises(UserError, match=r"does not fit \(capacities differ\); it was made with --buffer_size 4"):
        mammoth_load_checkpoint(path, StandInModel(buffer_size=9))


def test_other_settings_are_reported(args: Namespace, caplog) -> None:
    path = save_mammoth_checkpoint(0, 1, args, StandInModel())
    args.lr, args.savecheck = 0.5, None
    mammoth_load_checkpoint(path, StandInModel(), args=args)
    assert caplog.messages == [f"{path} was made with other settings (lr: 0.1 → 0.5)"]


def test_files_that_are_no_hand_over(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as empty:
        empty.writestr("x", "y")
    contents = {"empty": b"", "text": b"hello", "zip": archive.getvalue()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    torch.save({"args": {}, "model": Evil(mark)}, tmp_path / "evil")
    torch.save([1, 2], tmp_path / "list")
    torch.save({"args": {}, "model": {"a": 1}}, tmp_path / "numbers")
    for name in [*contents, "evil", "list", "numbers", "absent"]:
        with pytest.raises(
            UserError, match=f"{tmp_path / name} .*; give --loadcheck a file written by --savecheck"
        ) as caught:
            mammoth_load_checkpoint(tmp_path / name, StandInModel())
        assert "\n" not in str(caught.value)
    assert not mark.exists()


def test_a_damaged_hand_over_is_refused_though_torch_reads_it(tmp_path: Path, args: Namespace) -> None:
    model = StandInModel()
    path = save_mammoth_checkpoint(0, 1, args, model)
    assert path is not None
    intact = path.read_bytes()
    weights = model.net.body.weight.detach().numpy().tobytes()
    path.write_bytes(intact.replace(weights, bytes(16) + weights[16:]))
    assert torch.load(path, weights_only=True)["model"].keys() == model.state_dict().keys()
    for only_args in (True, False):
        with pytest.raises(
            UserError, match=r"checkpoint .* is damaged \(its CRC-32 does not match\); give --loadcheck"
        ):
            mammoth_load_checkpoint(path, StandInModel(), return_only_args=only_args)
    torch.save(model.net.state_dict(), tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    mammoth_load_checkpoint(tmp_path / "legacy.pt", StandInModel())


def test_refused_directory_names_its_own_flag(tmp_path: Path, args: Namespace) -> None:
    (tmp_path / "file").write_text("")
    args.checkpoint_path = str(tmp_path / "file")
    with pytest.raises(UserError, match=r"choose another --checkpoint_path$"):
        save_mammoth_checkpoint(0, 1, args, StandInModel())


def test_to_parsable_obj() -> None:
    value = Namespace(a=np.float32(0.5), b=(np.int64(1), [np.array([1.5, 2])]), c={np.str_("k"): Path("x")}, d=None)
    assert to_parsable_obj(value) == {"a": 0.5, "b": (1, [[1.5, 2.0]]), "c": {"k": "x"}, "d": None}
    assert type(to_parsable_obj(np.bool_(True))) is bool


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"args": ["--lr", 1]}, "its args are of type list, not flags by name"),
        ({"args": {3: 4}}, "its args are of type dict, not flags by name"),
        ({"args": 3}, "its args are of type int, not flags by name"),
        ({"buffer": [1]}, "its buffer is not tensors by name"),
        ({"buffer": {"examples": 3}}, "its buffer is not tensors by name"),
        ({"num_seen_examples": "many"}, "its num_seen_examples is 'many'"),
    ],
)
def test_strange_content_of_a_file_is_one_line(changes: dict, reason: str, tmp_path: Path, args: Namespace) -> None:
    path = save_mammoth_checkpoint(0, 1, args, StandInModel())
    assert path is not None
    torch.save(torch.load(path, weights_only=True) | changes, path)
    for model in (None, StandInModel()):
        with pytest.raises(UserError, match=f"is damaged: {reason}; give --loadcheck a file written by --savecheck"):
            mammoth_load_checkpoint(path, model, return_only_args=model is None)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"checkpoint {tmp_path} is a directory; give --loadcheck a file"):
        mammoth_load_checkpoint(tmp_path, return_only_args=True)


def test_a_field_never_hides_what_a_buffer_can_do() -> None:
    buffer = Buffer(4)
    fields = {"examples": torch.zeros(4, 2), "get_data": torch.zeros(4)}
    with pytest.raises(ValueError, match="get_data is no field of a buffer"):
        buffer.load_state_dict({"buffer_size": 4, "num_seen_examples": 4, "fields": fields})
