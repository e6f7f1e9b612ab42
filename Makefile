# `make run` and `make test` each work as the first command on a fresh clone with Python >= 3.11, pip and make.
# A virtual environment is made without ensurepip, which Debian leaves out of its Python: the host's pip fills it.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check install --quiet --constraint constraints.txt
ARGS ?=

.PHONY: help run test errors attack replay pins check setup setup-test bench clean

help:  ## what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: $(VENV)/.installed  ## install if needed, then the main job: the GPT-2 block, by the synthesizer
	$(BIN)/agent run --target gpt2-block --proposer synthesizer $(ARGS)

test: $(VENV)/.installed-test  ## install if needed, then the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --numprocesses auto --dist worksteal $(ARGS)

errors: $(VENV)/.installed-test  ## the whole error table: each class is found, and mended by its hint (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m errors --numprocesses auto --dist worksteal tests/agent/test_errors.py $(ARGS)

attack: $(VENV)/.installed-test  ## every cheat is rejected, every honest kernel accepted, on three seeds (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m attack --numprocesses auto --dist worksteal tests/adversarial $(ARGS)

replay: $(VENV)/.installed-test  ## the recording that ships, replayed whole and held to what it should say (a minute)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m replay tests/agent/test_recording.py $(ARGS)

pins: $(VENV)/.installed-test  ## constraints.txt also resolves with PyTorch's CUDA build (asks the package registry)
	$(BIN)/python -m pytest -q -m pins tests/test_packaging.py $(ARGS)

check: $(VENV)/.installed-test  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(VENV)/.installed  ## the installation alone, into .venv

setup-test: $(VENV)/.installed-test  ## the installation with what the tests need

bench: $(VENV)/.installed  ## the benchmark scripts, one JSON line each
	@for script in benchmarks/*.py; do $(BIN)/python $$script; done

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("tilewright needs Python 3.11 or later: make PYTHON=/path/to/python3.11 " + "run") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv --without-pip $(VENV)

# TileGym pins an old transformers: it is installed without its dependencies and imports without them.
$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) hatchling editables
	$(INSTALL) --no-build-isolation --editable .
	$(INSTALL) --no-deps tilegym==1.5.1
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(INSTALL) --no-build-isolation --editable '.[test]'
	@touch $@

clean:  ## remove the virtual environment and the caches (not runs/)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
