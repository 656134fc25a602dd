# `make swarm` and `make test` work from a fresh clone: they call `setup`, which makes .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
ARGS ?=

.PHONY: setup swarm test check check-slow bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 14) else \
	  f"potluck needs Python 3.11 to 3.14; {sys.executable} is {sys.version.split()[0]}: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[text,plots,dev]"
	@touch $@

swarm: setup ## a bootstrap server and four peers on this machine; make swarm ARGS="--seed 1"
	$(BIN)/potluck swarm --peers 4 $(ARGS)

test: setup ## everything but the slow tests
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

check: setup ## style, types, and the arrows between packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-slow: setup ## the slow tests, and more examples of the property tests
	$(BIN)/python -m pytest -m slow $(ARGS)
	$(BIN)/python -m pytest -m "not slow" --hypothesis-profile=thorough tests/protocol tests/aggregation

bench: setup ## every benchmark, one after the other
	@for benchmark in $(wildcard benchmarks/*.py); do $(BIN)/python $$benchmark $(ARGS) || exit 1; done

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
