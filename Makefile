# The two commands of the README are `make demo` and `make test`; each makes the environment it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Modules are compiled when they are first imported; most never are, and compiling all of them takes a minute.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: demo test faults lint check format bench clean

demo: .venv/core
	$(BIN)/resid demo

test: .venv/dev
	$(BIN)/python -m pytest --cov --numprocesses logical --dist worksteal  # a process for every core

FAULTS := $(BIN)/python -m pytest --numprocesses logical
faults: .venv/dev # takes hours; the last lines of each part are the counts
	RESID_FAULT_TRIALS=5000 $(FAULTS) tests/faults/test_inputs.py
	RESID_FAULT_TRIALS=500 $(FAULTS) tests/faults/test_damage.py tests/faults/test_full_disk.py tests/faults/test_concurrency.py
	RESID_FAULT_TRIALS=300 $(FAULTS) tests/serve/test_schema.py
	RESID_FAULT_TRIALS=10 $(FAULTS) tests/faults/test_kills.py

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers auto

check: lint test

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/compare
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/busy.py
	$(BIN)/python benchmarks/prepare.py
	$(BIN)/python benchmarks/famae.py
	$(BIN)/python benchmarks/quantize.py
	$(BIN)/python benchmarks/letter.py
	$(BIN)/python benchmarks/generator.py
	$(BIN)/python benchmarks/decode.py
	$(BIN)/python benchmarks/items.py
	$(BIN)/python benchmarks/update.py
	$(BIN)/python benchmarks/sequential.py
	$(BIN)/python benchmarks/serve.py

clean:
	rm -rf .venv build src/resid.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage

.venv/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "resid needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/core: .venv/python pyproject.toml constraints.txt
	$(INSTALL) -e .
	@touch $@

.venv/dev: .venv/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	@touch $@

.venv/compare: .venv/dev
	$(INSTALL) -e '.[compare]'
	@touch $@
