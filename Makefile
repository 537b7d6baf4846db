# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --constraint constraints.txt
NATIVE := $(shell find csrc -name "*.cpp" -o -name "*.h")
# Release, RelWithDebInfo or Debug: `make build BUILD_TYPE=Debug` for a debugger.
BUILD_TYPE ?= Release
CMAKE := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN)/ninja)" -DPython_EXECUTABLE="$(abspath $(BIN)/python)" \
  --log-level=WARNING -S .
SANITIZED := build/sanitized
# Python itself leaks by design; the preloaded runtime must come first.
ON_SANITIZED := ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$(SANITIZED) \
  LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" $(BIN)/python

.PHONY: setup build demo test test-everything check format bench sanitize clean

setup: $(VENV)/installed build

$(VENV)/tools: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(PIP) torch --group dev
	touch $@

# Editable: the package and its commands are used in place. It is installed again only when pyproject.toml changes.
$(VENV)/installed: $(VENV)/tools
	$(PIP) --no-build-isolation --editable .
	touch $@

# The compiled modules, in src/remint: ninja compiles what changed.
build: $(VENV)/tools
	$(CMAKE) -B build/release -DCMAKE_BUILD_TYPE=$(BUILD_TYPE)
	$(BIN)/ninja -C build/release --quiet

demo: setup
	$(BIN)/python examples/demo

test: setup sanitize
	$(BIN)/python -m pytest

# Every model at every budget, with both policies and both optimizers; every sample of PyTorch's operator database.
test-everything: setup
	$(BIN)/python -m pytest --everything tests/runtime/test_bits.py tests/runtime/test_chaos.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

# Quick by default; `make bench FULL=1` runs everything, about two hours. Each line is one figure or table, kept in
# benchmarks/results.
bench: setup
	$(BIN)/python benchmarks/engine_speed.py
	$(BIN)/python benchmarks/dtr_reference.py
	$(BIN)/python benchmarks/coop.py
	$(BIN)/python benchmarks/dtr_slowdown.py
	$(BIN)/python benchmarks/coop_figures.py
	$(BIN)/python benchmarks/largest_input.py
	$(BIN)/python benchmarks/overhead_per_op.py
	$(BIN)/python benchmarks/dtr_against_optimal.py
	$(BIN)/python benchmarks/online.py --free gpt unet $(if $(FULL),gpt2 resnet)
	$(BIN)/python benchmarks/online.py gpt unet
	$(if $(FULL),$(BIN)/python benchmarks/online.py --smallest gpt unet)
	$(BIN)/python benchmarks/compiled.py
	$(BIN)/python benchmarks/planning_capture.py build/graphs
	$(BIN)/python benchmarks/planning_table.py build/graphs $(if $(FULL),--full)
	$(BIN)/python benchmarks/planning_checkmate.py build/graphs $(if $(FULL),--full)
	$(BIN)/python benchmarks/planning_scaling.py $(if $(FULL),--full)

# The core's tests once more, on a core that checks every access, every shift and every assertion.
sanitize: $(SANITIZED)/tested

$(SANITIZED)/tested: $(VENV)/installed $(shell find src/remint tests -name "*.py")
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)/remint
	cp -r src/remint $(SANITIZED)/ && rm -f $(SANITIZED)/remint/*.so
	REMINT_SANITIZE=1 $(BIN)/python setup.py --quiet build_ext --build-lib $(SANITIZED) --build-temp build/sanitized-objects
	$(ON_SANITIZED) -c "from remint import _core; assert '$(SANITIZED)' in _core.__file__, _core.__file__"
	$(ON_SANITIZED) -m pytest -p no:cacheprovider --hypothesis-profile quick -m core tests
	touch $@

clean:
	rm -rf $(VENV) build src/remint/*.so src/*.egg-info
