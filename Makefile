# `make run` and `make test` are all that a fresh machine with Python 3.11+ needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Options for pip, such as an index with CPU builds of torch.
PIP_ARGS ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt

.PHONY: help run test lint types check matrix bench clean

help: ## what can be made here
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

# torch first and by its pinned version: left to an open range, pip fetches gigabytes of CUDA.
$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvprobe needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch numpy
	$(PIP) -e '.[server]'
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) -e '.[dev]'
	touch $@

run: $(VENV)/.run ## install, then load the bundled server with a shared prefix and say what it means
	$(BIN)/kvprobe run workloads/shared_prefix.yaml

test: $(VENV)/.dev ## install, then run the tests
	$(BIN)/python -m pytest

lint: $(VENV)/.dev ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## mypy --strict
	$(BIN)/mypy

check: lint types test ## all that the CI asks

matrix: $(VENV)/.dev ## every known illness of the bundled server, and healthy runs: what the diagnosis says
	$(BIN)/python benchmarks/diagnosis_matrix.py

bench: $(VENV)/.dev ## the client's clock against a server that knows the truth
	$(BIN)/python benchmarks/client_truth.py

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist
