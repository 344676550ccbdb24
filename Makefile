# From a fresh clone, with nothing installed but Python 3.11-3.13, pip and make:
#   make demo    two workers answer support tickets in several languages, and show it
#   make test    everything that CI runs
# `make help` lists the rest. PYTHON=/path/to/python picks an interpreter, VENV=DIR another environment.

SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
TEST_PROCESSES ?= 3
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
# The first that runs and is supported: a version manager's stand-in may exist and still refuse to start.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo $$p; break; }; done)
# pip's own environment variables (an index, a CPU-only build of torch) reach it as they are.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo up page test lint format docs dev hooks clean fuzz

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.stamp-run ## two workers, many languages, one table
	@$(BIN)/laya-workers demo

up: $(VENV)/.stamp-run ## a server, a worker and Flower until Ctrl-C
	@$(BIN)/laya-workers up

page: $(VENV)/.stamp-dev ## the example page, beside `make up`: http://127.0.0.1:8000
	@LAYA_CHECKPOINTS=$${LAYA_CHECKPOINTS:-small} $(BIN)/uvicorn examples.backends.fastapi_app:app

# Files side by side, in their order: the long ones, in which things are killed, come early. TEST_PROCESSES=1 for one.
test: lint ## everything that CI runs
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.stamp-dev ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fuzz: $(VENV)/.stamp-dev ## ten minutes of random messages; what breaks something is kept for the tests
	$(BIN)/python tests/fuzz.py --minutes 10

format: $(VENV)/.stamp-dev ## rewrite the files as ruff wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.stamp-dev ## the pages as a site, in build/docs
	$(BIN)/sphinx-build -W docs build/docs

dev: $(VENV)/.stamp-dev ## the environment for working on this, without running anything

hooks: $(VENV)/.stamp-dev ## run formatting, lint and types before each commit
	$(BIN)/pre-commit install

clean: ## remove the environment and the tools' caches
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A system Python may come without ensurepip, then pip is put there from outside.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 found: install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c '$(SUPPORTED)' || { echo "$(PYTHON) is not a Python 3.11, 3.12 or 3.13: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

$(VENV)/.stamp-run: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what a worker needs (torch is the large one) ..."
	@$(PIP) -e '.[small,monitor]'
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what a worker and the tests need (torch is the large one) ..."
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.stamp-run
