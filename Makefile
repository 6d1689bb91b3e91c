# make demo: fine-tuning, replay, calibrated replay and joint training on the embedded vectors.
# make check: lint, types and the fast tests.   make test: all checks and tests.
# make gpu: on a machine with a GPU, what the code does there: tests, every method, steps/s, memory, waits, hours → gpu.json
# make traces: record the loss traces in tests/losses again.   make traces-against REV=main: compare them with a
# revision's, byte for byte.
PYTHON ?= python3
BIN := .venv/bin
# Whole files go to one process each, so that the tests of a file can share the runs they look at; tests/conftest.py says
# in which order.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

.PHONY: demo check test test-numeric coverage gpu lint types traces traces-against clean

demo: .venv/installed
	$(BIN)/python -m experiments.demo

check: lint types
	$(PYTEST) -m "not slow and not browser and not slurm"

test: lint types
	$(PYTEST)

# As on a processor without vector instructions: results may then differ in rounding, and only in that.
test-numeric: .venv/installed-dev
	ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=1 $(PYTEST) -m numeric

coverage: .venv/installed-dev
	$(PYTEST) --cov=models --cov=utils --cov=datasets --cov-branch

gpu: .venv/installed-dev
	$(BIN)/python -m benchmarks.gpu --output gpu.json

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed-dev
	$(BIN)/mypy

traces: .venv/installed-dev
	PYTHONPATH=. $(BIN)/python tests/losses/record.py

traces-against: .venv/installed-dev
	$(BIN)/python tests/losses/record.py --against $(or $(REV),$(error give the revision: make traces-against REV=main))

# The stamps are newer than the requirements once these are installed, so a second call installs nothing.
.venv/installed: requirements.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -q -r requirements.txt
	touch $@

.venv/installed-dev: requirements-dev.txt .venv/installed
	$(BIN)/python -m pip install --disable-pip-version-check -q -r requirements-dev.txt
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
