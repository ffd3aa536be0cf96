# Thin: the work is done by Python modules, so that Windows needs no make (see README.md).
# Every target sets itself up; an interrupted set-up or build is simply run again.

PYTHON ?= python3
PIP_FLAGS ?=
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.set-up

.PHONY: help book test lab run studies assets clean
.DELETE_ON_ERROR:

help:
	@echo "make book    build the book into _build/html"
	@echo "make test    run every test (wants a Chromium or Chrome for the browser tests)"
	@echo "make lab     open the chapters in JupyterLab"
	@echo "make run     execute the chapters and store their outputs"
	@echo "make studies run the recorded studies whose code has changed, and store their rows"
	@echo "make assets  make the browser's files only"
	@echo "make clean   remove what was built (.venv stays)"

book: $(READY)
	@$(PY) -m book.tools.publish

test: $(READY)
	@$(PY) -m book.tools.assets
	@$(PY) -m pytest --cov

lab: $(READY)
	@$(PY) -m jupyterlab --LabApp.default_url=/lab/tree/chapters

run: $(READY)
	@$(PY) -m book.tools.execute

studies: $(READY)
	@$(PY) -m book.tools.studies

assets: $(READY)
	@$(PY) -m book.tools.assets

clean:
	rm -rf _build node_modules book/static/vendor .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "$(PYTHON) was not found. Install Python 3.11 or newer, or name yours: make PYTHON=python3.12 book" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "This book needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) -c 'import platform; print(platform.python_version())'`." >&2; \
	  echo "Name a newer one: make PYTHON=python3.12 book" >&2; exit 1; }
	@$(PY) -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Making $(VENV) ..."; $(PYTHON) -m venv --clear $(VENV); } || { \
	  echo "The virtual environment could not be made. On Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }
	@echo "Installing the pinned packages into $(VENV) (a few minutes the first time) ..."
	@$(PY) -m pip install --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e ".[dev]" || { \
	  echo "The packages could not be installed; most often the network is the reason. Run the same command again." >&2; exit 1; }
	@touch $(READY)
