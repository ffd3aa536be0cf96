# Thin: the work is done by Python modules, so that Windows needs no make (see README.md).
# Every target sets itself up; an interrupted set-up or build is simply run again.

PYTHON ?= python3
PIP_FLAGS ?=
PY := .venv/bin/python
# File names and texts are UTF-8, whatever the locale says.
export PYTHONUTF8 := 1

.PHONY: help ready book check test lab run studies living mutants bench assets offline pdf clean

help:
	@echo "make book    build the book into _build/html"
	@echo "make offline pack the book into one zip that works from the disk"
	@echo "make pdf     print the book into one PDF (wants a Chromium or Chrome)"
	@echo "make check   style, types, import order and the package's own tests: after every edit"
	@echo "make test    run every test (wants a Chromium or Chrome for the browser tests)"
	@echo "make lab     open the chapters in JupyterLab"
	@echo "make run     execute the chapters and store their outputs"
	@echo "make studies run the recorded studies whose code has changed, and store their rows"
	@echo "make living  write the weights and the language of the living model's page"
	@echo "make mutants plant small mistakes in the package and list those that no test notices"
	@echo "make bench   time the package beside the code that people use, and store the numbers"
	@echo "make assets  make the browser's files only"
	@echo "make clean   remove what was built (.venv stays)"

book: ready
	@$(PY) -m book.tools.publish

offline: ready
	@$(PY) -m book.tools.offline

check: ready
	@$(PY) -m pytest tests/house tests/package src/transformer_block

test: ready
	@$(PY) -m book.tools.assets
	@$(PY) -m pytest --cov

pdf: ready
	@$(PY) -m book.tools.pdf

lab: ready
	@$(PY) -m nbformat.sign chapters/*.ipynb  # else JupyterLab hides their pictures
	@$(PY) -m jupyterlab --LabApp.default_url=/lab/tree/chapters

run: ready
	@$(PY) -m book.tools.execute

studies: ready
	@$(PY) -m book.tools.studies

living: ready
	@$(PY) -m book.tools.living

mutants: ready
	@$(PY) -m book.tools.mutants

bench: ready
	@$(PY) -m book.tools.bench

assets: ready
	@$(PY) -m book.tools.assets

clean:
	rm -rf _build node_modules book/static/vendor .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# With the environment's own Python where it runs, else with the one that is named.
ready:
	@python=$(PY); \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || python=$(PYTHON); \
	command -v $$python >/dev/null 2>&1 || { \
	  echo "$$python was not found. Install Python 3.11 or newer, or name yours: make PYTHON=python3.12 book" >&2; exit 1; }; \
	version=`$$python -c 'import platform; print(platform.python_version())'` || { \
	  echo "$$python does not run; it says why above." >&2; exit 1; }; \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "This book needs Python 3.11 or newer; $$python is $$version." >&2; \
	  echo "Name a newer one: make PYTHON=python3.12 book" >&2; exit 1; }; \
	$$python -m book.tools.set_up $(PIP_FLAGS)
