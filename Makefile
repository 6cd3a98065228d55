# make demo: compare DSpodFL with its baselines.   make test: run the test suite.   Both set everything up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# --no-compile: modules are compiled when they are first imported, and most never are.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
SOURCES := src tests benchmarks scripts
# worksteal: tests of one file stay in one process, and share what the file sets up.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo test check lint types layers api coverage nightly goldens bench clean locked

demo: $(VENV)/.core
	$(BIN)/dspodfl run

test: $(VENV)/.dev
	$(PYTEST)

check: lint types layers api test

# The tests with the lines that they run; fails below the floor of [tool.coverage.report] in pyproject.toml.
coverage: $(VENV)/.dev
	$(PYTEST) --cov --cov-report=term

# Other random examples every time, and more of them; and the tests that are marked as long.
nightly: $(VENV)/.dev
	HYPOTHESIS_PROFILE=nightly $(PYTEST) -m 'long or not long'

lint: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports

# Every public name has a docstring, and docs/api.md is made of them; python -m scripts.api_docs writes it.
# docs/algorithms.md is made of the registry; python -m scripts.algorithms_docs writes it.
api: $(VENV)/.dev
	$(BIN)/python -m scripts.api_docs --check
	$(BIN)/python -m scripts.algorithms_docs --check

goldens: $(VENV)/.dev
	$(BIN)/python -m scripts.goldens check

bench: $(VENV)/.core
	$(BIN)/python -m benchmarks cpu --quick

# What CI installs: the versions of the lock, and no file with another digest (CUDA libraries of torch excepted).
locked: $(BIN)/python
	$(BIN)/python -m scripts.lock --check
	$(PIP) --require-hashes --no-deps --requirement requirements.lock
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $(VENV)/.core $(VENV)/.dev

clean:
	rm -rf $(VENV) .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache .coverage .coverage.* htmlcov

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed (make PYTHON=python3.12 ...)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing (PyTorch is large: a few minutes the first time) ..."
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[dev]'
	@touch $@
