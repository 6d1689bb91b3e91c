# make demo: train ER and DGC-ER on the embedded digits and compare them.   make test: all checks and tests.
# make traces: record the loss traces in tests/losses again.   make traces-against REV=main: compare them with a
# revision's, byte for byte.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types traces traces-against clean

demo: .venv/installed
	$(BIN)/python -m utils.demo

test: .venv/installed-dev lint types
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed-dev
	$(BIN)/mypy

traces: .venv/installed-dev
	$(BIN)/python tests/losses/record.py

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
