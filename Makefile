# Two commands set everything up by themselves, in .venv:
#   make demo   install the simulator, run scenarios/quickstart.yaml, leave a report in reports/
#   make test   install the test tools, then check style, types and layers, and run the tests
# More: make check (no tests), make bench (speed, scale, published results), make clean

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: demo test check bench clean

demo: .venv/.simulator
	$(BIN)/odcsim run scenarios/quickstart.yaml

test: check
	$(BIN)/python -m pytest

check: .venv/.tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.tests
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/published.py

# A failed installation leaves no stamp, and is tried again.
.venv/.simulator: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) install --editable .
	@touch $@

.venv/.tests: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) install --editable '.[test]'
	@touch .venv/.simulator $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
