# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE_SOURCES := setup.py pyproject.toml $(wildcard csrc/*.cpp csrc/*.h csrc/bindings/*.cpp csrc/bindings/*.h csrc/torch/*.cpp csrc/torch/*.h)
PIP := $(BIN)/pip install --quiet --constraint constraints.txt

.PHONY: setup demo test check bench sanitize format clean
.DELETE_ON_ERROR:

setup: $(VENV)/installed

$(VENV)/tools: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "setuptools>=77" wheel pybind11 ninja
	$(PIP) $$($(BIN)/python -c "import tomllib; print(*(repr(d) for d in tomllib.load(open('pyproject.toml','rb'))['dependency-groups']['dev']))" | tr -d "'")
	touch $@

# Editable, against what is installed: Python files are used in place, the core is rebuilt when its sources change.
$(VENV)/installed: $(VENV)/tools $(CORE_SOURCES)
	$(PIP) --no-build-isolation --editable .
	touch $@
