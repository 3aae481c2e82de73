# Two commands set everything up by themselves, in .venv:
#   make demo   install the simulator, run scenarios/quickstart.yaml, leave a report in reports/
#   make test   install torch and the test tools, then check style, types and layers, and run the tests
# More: make check (no tests), make test-simulator (in an environment without torch), make bench (speed, scale, balancing,
# published results, transfers, validation), make clean

PYTHON ?= python3
BIN := .venv/bin
# Tests that start ranks run one after another in one process, the others beside them.
PYTEST := -m pytest --numprocesses=2 --dist=loadgroup
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: demo test check test-simulator bench clean

demo: .venv/.simulator
	$(BIN)/odcsim run scenarios/quickstart.yaml

test: check
	$(BIN)/python $(PYTEST)

check: .venv/.tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-simulator: .venv-simulator/.tests
	.venv-simulator/bin/python $(PYTEST) tests/odcsim tests/test_surface.py tests/test_published.py tests/test_validation.py

bench: .venv/.tests
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/balance.py
	$(BIN)/python benchmarks/published.py
	$(BIN)/python benchmarks/transfers.py
	$(BIN)/python benchmarks/runtime.py
	$(BIN)/python benchmarks/validate.py --recorded

# A failed installation leaves no stamp, and is tried again.
.venv/.simulator: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) install --editable .
	@touch $@

.venv/.tests: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) install --editable '.[test,rt,examples]'
	@touch .venv/.simulator $@

.venv-simulator/.tests: pyproject.toml
	$(PYTHON) -m venv .venv-simulator
	.venv-simulator/bin/python -m pip --quiet --disable-pip-version-check install --editable '.[test]'
	@touch $@

clean:
	rm -rf .venv .venv-simulator .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
