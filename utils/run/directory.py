"""The directory that a run owns. Its name carries a hash of what matters to the result.

    config.yaml  metrics.jsonl  accuracy.csv  per_class.csv  confusion.csv  summary.json  timing.json  environment.json
    checkpoint.pt  checkpoint.previous.pt  checkpoint.json  run.lock

So the same command finds the same directory: it resumes an unfinished run and shows a finished one.
"""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import yaml

from utils.errors import UsageError, UserError
from utils.resume.files import RunLock, atomic_write_text, one_line_errors, remove_leftovers, results_flag
from utils.resume.store import NEWEST, PREVIOUS
from utils.run.identity import config_hash, difference, model_name, recorded_args, relevant_config, stored_config
from utils.run.read_results import check_finished


class RunDirectory:
    """Files of one run; use as a context manager to hold its lock."""

    def __init__(self, args: Namespace):
        self.args = args
        self.config = relevant_config(args)
        self.hash = config_hash(self.config)
        name = f"seed{args.seed}-{self.hash}"
        by_hash = Path(args.base_path, args.results_path, args.dataset, model_name(args), name)
        self.path = Path(args.resume) if args.resume else by_hash

    def __enter__(self) -> RunDirectory:
        # The option that puts the directory elsewhere; --resume names it as it is.
        flag = "" if self.args.resume else results_flag(self.args.results_path)
        self._lock = RunLock(self.path / "run.lock", flag=flag)
        try:
            self._prepare()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None and issubclass(kind, UserError) and self._lock.holds() and not self._begun():
            shutil.rmtree(self.path, ignore_errors=True)  # what could not begin leaves nothing behind
        self._lock.release()

    def _begun(self) -> bool:
        return any((self.path / name).exists() for name in (NEWEST, PREVIOUS, "metrics.jsonl", "summary.json"))

    def _prepare(self) -> None:
        remove_leftovers(self.path)
        if self.args.overwrite:
            self._clear()
        self._refuse_other_settings()
        config_file = self.path / "config.yaml"
        if not config_file.exists():
            content: dict[str, Any] = {"hash": self.hash, "config": self.config, "args": recorded_args(self.args)}
            content |= {"command_sha256": getattr(self.args, "command_sha256", None)}  # see utils.cli.known_command
            plain = json.loads(json.dumps(content))  # without the anchors that YAML gives to a list used twice
            atomic_write_text(config_file, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))

    def _refuse_other_settings(self) -> None:
        """A run, finished or not, is that of its `config.yaml`, whatever flags stand beside --resume."""
        if not (self.path / "config.yaml").exists():
            return
        if changes := difference(stored_config(self.path), self.config):
            raise UsageError(
                f"{self.path} was begun with other settings ({changes}); repeat those, or start another run"
            )

    def _clear(self) -> None:
        """Remove an earlier run's files, the config last: a removal that is killed is still known for what it was."""
        entries = sorted(self.path.iterdir(), key=lambda path: path.name == "config.yaml")
        with one_line_errors(self.path):
            for entry in entries:
                if entry.is_dir():
                    shutil.rmtree(entry)
                elif entry.name != "run.lock":
                    entry.unlink()

    def finished(self) -> dict[str, Any] | None:
        """The summary of a finished run, else None."""
        found = check_finished(self.path)
        if found is None:
            return None
        self._refuse_other_settings()
        return found.summary
