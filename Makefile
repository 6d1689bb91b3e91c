# make demo: fine-tuning, replay, calibrated replay and joint training on the embedded vectors.
# make check: lint, types and the fast tests.   make test: all checks and tests.
# make gpu: on a machine with a GPU, what the code does there: tests, every method, steps/s, memory, waits, hours → gpu.json
# make traces: record the loss traces in tests/losses again.   make traces-against REV=main: compare them with a
# revision's, byte for byte.
# make requirements: the files that pip installs from, after a change of the dependencies in pyproject.toml.
# make lock: the exact versions of requirements-lock.txt again; make REQUIREMENTS=requirements-lock.txt installs those.
# make TORCH_INDEX=https://download.pytorch.org/whl/cpu: without CUDA, for a machine that has no GPU.
PYTHON ?= python3
BIN := .venv/bin
REQUIREMENTS ?= requirements.txt
TORCH_INDEX ?=
# Of the same version pip takes the one with a suffix: 2.14.0+cpu of that index before the 2.14.0 of PyPI.
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# Whole files go to one process each, so that the tests of a file can share the runs they look at; tests/conftest.py says
# in which order.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

.PHONY: demo check test test-numeric coverage gpu lint types traces traces-against requirements lock clean

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
.venv/installed: $(REQUIREMENTS)
	@echo "Installing into .venv, about $(if $(TORCH_INDEX),2,6) GB on disk, most of it PyTorch"
	$(PYTHON) -m venv .venv
	$(PIP) -r $(REQUIREMENTS)
	touch $@

.venv/installed-dev: requirements-dev.txt .venv/installed
	$(PIP) -r requirements-dev.txt
	touch $@

requirements: .venv/installed
	$(BIN)/python -m docs.requirements

# Resolved as for an empty environment, whatever is installed in this one.
lock: .venv/installed
	$(BIN)/python -m docs.lock > requirements-lock.new
	mv requirements-lock.new requirements-lock.txt

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
