# Everything runs in .venv, which is made from pyproject.toml and constraints.txt when it is missing or older than they are.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint format types ci bench chaos clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  \033[1m%-10s\033[0m %s\n", $$1, $$2}'

demo: $(READY)  ## See the queue at work on an embedded PostgreSQL
	@$(BIN)/python manage.py migrate --verbosity 0
	@$(BIN)/python manage.py demo

test: $(READY)  ## Run the tests on all cores
	@.ci/system-packages
	$(BIN)/python -m pytest -n auto

test-all: $(READY)  ## Run the tests on every supported pair of Python and Django that is here
	$(BIN)/nox

lint: $(READY)  ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python manage.py makemigrations --check --dry-run

format: $(READY)  ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)  ## Check types
	$(BIN)/mypy

ci: lint types test  ## All that must pass before a change is in

bench: $(READY)  ## Measure against raw psycopg on the same server
	$(BIN)/python -m tests.benchmarks

chaos: $(READY)  ## Disturb workers and their database in every way, for some minutes
	@.ci/system-packages
	$(BIN)/python -m tests.chaos

clean:  ## Remove what these targets made, the embedded database included
	[ ! -L .postgres/elsewhere ] || rm -rf "$$(readlink .postgres/elsewhere)"
	rm -rf $(VENV) .postgres .nox .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "delayed_queue needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
