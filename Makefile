# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --constraint constraints.txt
NATIVE := $(shell find csrc -name "*.cpp" -o -name "*.h")
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n auto --maxprocesses 8
# Release, RelWithDebInfo or Debug: `make build BUILD_TYPE=Debug` for a debugger.
BUILD_TYPE ?= Release
CMAKE := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN)/ninja)" -DPython_EXECUTABLE="$(abspath $(BIN)/python)" \
  --log-level=WARNING -S .

.PHONY: setup build demo quick test test-everything check format bench docs asan tsan mutations cuda-check torch-versions fresh-install clean

setup: $(VENV)/installed build

# torch, and what builds the modules.
$(VENV)/build-tools: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(PIP) torch --group build
	touch $@

# What develops and tests: takes longer to install than all of the above.
$(VENV)/tools: $(VENV)/build-tools
	$(PIP) torch --group dev
	touch $@

# Editable: the package and its commands are used in place. It is installed again only when pyproject.toml changes.
$(VENV)/installed: $(VENV)/tools
	$(PIP) --no-build-isolation --editable .
	touch $@

# The compiled modules, in src/remint: ninja compiles what changed.
build: $(VENV)/build-tools
	$(CMAKE) -B build/release -DCMAKE_BUILD_TYPE=$(BUILD_TYPE)
	$(BIN)/ninja -C build/release --quiet

# Only what it needs: neither the tools of development nor the test device.
$(VENV)/demo: $(VENV)/build-tools
	$(PIP) --no-build-isolation --editable ".[plan]"
	touch $@

demo: $(VENV)/demo
	$(CMAKE) -B build/release -DCMAKE_BUILD_TYPE=$(BUILD_TYPE)
	$(BIN)/ninja -C build/release --quiet _core _torch
	$(BIN)/python examples/demo

# After every edit, under two minutes: the torch-free tests with few examples, and a smoke set of the rest.
quick: setup
	$(PYTEST) $(PARALLEL) --hypothesis-profile quick -m "(core or runtime or threads or smoke) and not slow" tests

# Everything. The tests of one file stay together: they share what they measured. Those on the test device have processes
# of their own: a process that has loaded it has an accelerator from then on.
test: setup
	$(PYTEST) $(PARALLEL) --dist loadfile
	$(PYTEST) $(PARALLEL) --dist loadfile --accelerator

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
# benchmarks/results. The rest goes on if advice is more than 15% off.
bench: setup
	$(BIN)/python benchmarks/engine_speed.py
	$(BIN)/python benchmarks/dtr_reference.py
	$(BIN)/python benchmarks/coop.py
	$(BIN)/python benchmarks/dtr_slowdown.py
	$(BIN)/python benchmarks/coop_figures.py
	$(BIN)/python benchmarks/largest_input.py
	$(BIN)/python benchmarks/overhead_per_op.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/learned.py
	$(BIN)/python benchmarks/learned_figure.py $(if $(FULL),--again)
	$(BIN)/python benchmarks/departures.py
	$(BIN)/python benchmarks/tiers.py
	$(BIN)/python benchmarks/planned_tiers.py
	$(BIN)/python benchmarks/distributed.py $(if $(FULL),75 60 45)
	$(BIN)/python benchmarks/gloo_scratch.py
	-$(BIN)/python benchmarks/advice.py
	$(BIN)/python benchmarks/advice_fake.py
	$(BIN)/python benchmarks/advice_large.py
	$(BIN)/python benchmarks/dtr_against_optimal.py
	$(BIN)/python benchmarks/online.py --free gpt unet $(if $(FULL),gpt2 resnet)
	$(BIN)/python benchmarks/online.py gpt unet
	$(if $(FULL),$(BIN)/python benchmarks/online.py --smallest gpt unet)
	$(BIN)/python benchmarks/compiled.py
	$(BIN)/python benchmarks/bug_reports.py $(if $(FULL),--inductor)
	$(BIN)/python benchmarks/planning_capture.py build/graphs
	$(BIN)/python benchmarks/planning_table.py build/graphs $(if $(FULL),--full)
	$(BIN)/python benchmarks/planning_checkmate.py build/graphs $(if $(FULL),--full)
	$(BIN)/python benchmarks/planning_scaling.py $(if $(FULL),--full)
	$(BIN)/python benchmarks/planning_small.py $(if $(FULL),--full,--time-limit 20)

# The documentation site, in build/site: open build/site/index.html. It needs packages that nothing else does.
docs: $(VENV)/installed
	$(PIP) --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# The modules with sanitizers, in a package of links to src/remint. torch itself is not instrumented.
define build_sanitized
	$(CMAKE) -B build/$(1) -DREMINT_SANITIZE=$(2) -DREMINT_OUTPUT="$(CURDIR)/build/$(1)/package/remint"
	$(BIN)/ninja -C build/$(1) --quiet
	find build/$(1)/package/remint -type l -delete
	find "$(CURDIR)/src/remint" -mindepth 1 -maxdepth 1 ! -name "*.so" ! -name __pycache__ \
	  -exec ln -s -t build/$(1)/package/remint {} +
endef
# The runtimes of the sanitizers come first; libstdc++ comes with them, or they do not see exceptions.
PRELOAD = LD_PRELOAD="$(foreach name,$(1) stdc++,$(shell g++ -print-file-name=lib$(name).so))"
IS_SANITIZED = from remint import _core, _torch; assert 'build/$(1)' in _core.__file__ and 'build/$(1)' in _torch.__file__
SANITIZED_PYTEST := -m pytest -p no:cacheprovider --hypothesis-profile quick

# Tests once more, on modules that check every access and every assertion, in the core also undefined behaviour. Python
# leaks by design.
asan: ON_ASAN := ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=build/asan/package $(call PRELOAD,asan ubsan) $(BIN)/python
asan: $(VENV)/installed
	$(call build_sanitized,asan,address)
	$(ON_ASAN) -c "import torch; $(call IS_SANITIZED,asan)"
	$(ON_ASAN) $(SANITIZED_PYTEST) $(PARALLEL) -m "(core or runtime or threads) and not slow" tests

# The thread tests once more, on modules that check that threads do not race.
tsan: ON_TSAN := TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1 die_after_fork=0 \
  suppressions=$(CURDIR)/tests/tsan_suppressions.txt" PYTHONPATH=build/tsan/package \
  $(call PRELOAD,tsan) $(BIN)/python
tsan: $(VENV)/installed
	$(call build_sanitized,tsan,thread)
	$(ON_TSAN) -c "import torch; $(call IS_SANITIZED,tsan)"
	$(ON_TSAN) $(SANITIZED_PYTEST) -m "threads and not slow" tests

# Removes each rule that orders streams, one at a time: some test must fail. Builds the runtime once.
mutations: setup
	$(BIN)/python tests/mutations/ordering_rules.py --output benchmarks/results/ordering_rules.$(shell date +%Y-%m-%d).md

# The CUDA backend, compiled against the CUDA build of torch and tested on a CUDA runtime without a GPU. The torch is in
# an environment of its own, of 4.7 GB. The log says what ran. Then each rule that orders streams at soft walls, which
# only CUDA has, is removed: some test must fail.
CUDA_VENV := .venv-cuda
CUDA_LOG := benchmarks/results/cuda_check.$(shell date +%Y-%m-%d).txt
$(CUDA_VENV)/installed:
	test -x $(CUDA_VENV)/bin/python || $(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_VENV)/bin/pip install --quiet "torch===2.13.0" "nvidia-cuda-crt==13.0.*" numpy pybind11 pytest hypothesis rich
	touch $@

cuda-check: setup $(CUDA_VENV)/installed
	$(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN)/ninja)" -DPython_EXECUTABLE="$(abspath $(CUDA_VENV)/bin/python)" \
	  --log-level=WARNING -S . -B build/cuda -DREMINT_TEST_DEVICE=OFF -DREMINT_OUTPUT="$(CURDIR)/build/cuda/package/remint"
	$(BIN)/ninja -C build/cuda --quiet _torch
	find build/cuda/package/remint -type l -delete
	find "$(CURDIR)/src/remint" -mindepth 1 -maxdepth 1 ! -name "_torch.*.so" ! -name __pycache__ \
	  -exec ln -s -t build/cuda/package/remint {} +
	$(CUDA_VENV)/bin/python tests/cuda/build_fake.py build/cuda/libfake_cuda.so
	for delay in 0 200; do \
	  echo "streams wait up to $$delay microseconds"; \
	  FAKE_CUDA_DELAY_US=$$delay LD_PRELOAD="$(CURDIR)/build/cuda/libfake_cuda.so" PYTHONPATH=build/cuda/package \
	    $(CUDA_VENV)/bin/python -m pytest -vv --disable-warnings -p no:cacheprovider tests/cuda || exit 1; \
	done > build/cuda/log.txt 2>&1 || { cat build/cuda/log.txt; exit 1; }
	sed -e "s#$(CURDIR)/##g" -e "s#$(CURDIR)##g" build/cuda/log.txt > "$(CUDA_LOG)"
	tail -n 1 "$(CUDA_LOG)"
	$(BIN)/python tests/mutations/ordering_rules.py --soft \
	  --output benchmarks/results/ordering_rules_soft.$(shell date +%Y-%m-%d).md

# Which versions of torch remint works with: one environment after the other. `VERSIONS="2.13.0 2.15.0"` for some.
torch-versions: $(VENV)/installed
	$(BIN)/python benchmarks/torch_versions.py $(VERSIONS)

# Installs remint as a user does, in fresh environments, and trains. `KINDS="directory sdist"` for some.
fresh-install: $(VENV)/installed
	$(BIN)/python benchmarks/fresh_install.py $(KINDS)

clean:
	rm -rf $(VENV) build src/remint/*.so
