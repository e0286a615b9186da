# Two commands do everything on a fresh machine with Python >= 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEV    := $(VENV)/.ready-dev

.PHONY: demo test check lint docs results bench clean

demo: $(READY)
	$(BIN)/uqgan demo --output demo

test: $(DEV)
	$(BIN)/pytest -n auto --dist loadscope

check: lint test

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

results: $(DEV)
	$(BIN)/python docs/make_results.py
	$(BIN)/python docs/make_methods.py

bench: $(DEV)
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/iteration.py mnist --device cpu
	$(BIN)/python benchmarks/pretraining.py mnist --device cpu
	$(BIN)/python benchmarks/predict.py mnist --device cpu
	$(BIN)/python benchmarks/data.py $(if $(UQGAN_DATA),--data-root $(UQGAN_DATA))

clean:
	rm -rf $(VENV) demo site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "uqgan needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY) $@
