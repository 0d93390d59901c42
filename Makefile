# Two commands are enough: `make run` and `make test`. The first call makes .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test demo drill bench bench-full lint format clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(VENV)/installed: pyproject.toml requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements-dev.txt --editable '.[dev]'
	touch $@

run: $(VENV)/installed  ## the daemon, on an embedded PostgreSQL and the public relay
	$(BIN)/letta-indexer run

demo: $(VENV)/installed  ## a simulated network, indexed live, offline
	$(BIN)/letta-indexer demo

test: $(VENV)/installed  ## every test that this machine can run; what it can't is listed last
	$(BIN)/pytest --numprocesses auto --dist loadfile

drill: $(VENV)/installed  ## every fault in its long form, some 45 minutes; root and Debian's faketime; figures last
	INDEXER_TEST_DRILL=long INDEXER_TEST_REQUIRE_ALL=1 $(BIN)/pytest --numprocesses 0 tests/drills

bench: $(VENV)/installed  ## what it costs, beside its peers; within 25 minutes, the table last
	$(BIN)/python -m benchmarks

bench-full: $(VENV)/installed  ## the same with as many rounds for the long rows
	$(BIN)/python -m benchmarks --full

lint: $(VENV)/installed  ## style, format and types: zero findings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed  ## rewrite to the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
