# Two targets do everything from a fresh clone: `make demo` and `make test`. They need Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 3
SECONDS ?= 60

.PHONY: demo test test-long lint benchmark accuracy reliability docs fuzz clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "harness needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $(STAMP)

demo: $(STAMP)  ## the main job on three networks, ends with a table and reports/demo.html
	$(BIN)/harness demo --workspace .

# Several processes whose linear algebra each wants all cores keep each other waiting.
test test-long: export OPENBLAS_NUM_THREADS = 1

test: $(STAMP)  ## the whole suite, under ten minutes on two cores
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-long: $(STAMP)  ## checks that take minutes
	$(BIN)/python -m pytest -m long

lint: $(STAMP)  ## style, types, import contracts, dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry harness device_agents

docs: $(STAMP)  ## docs/cli.md from the help texts
	$(BIN)/python docs/generate_cli.py

benchmark: $(STAMP)  ## figures of docs/performance.md and docs/emulator.md
	$(BIN)/python benchmarks/controller_cost.py
	$(BIN)/python benchmarks/emulator_speed.py
	$(BIN)/python benchmarks/emulator_networks.py
	$(BIN)/python benchmarks/emulator_anchors.py

accuracy: $(STAMP)  ## measures all that docs/accuracy.md tells and rewrites it; a quiet machine for an hour or so
	$(BIN)/python benchmarks/accuracy.py

reliability: $(STAMP)  ## breaks what docs/reliability.md tells of and rewrites it; a quiet machine for an hour or so
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[fuzz]'
	$(BIN)/python benchmarks/reliability.py

fuzz: $(STAMP)  ## the four readers of foreign input under atheris, SECONDS each; a table and JSON, docs/security.md explains them
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[fuzz]'
	$(BIN)/python -m fuzz --seconds $(SECONDS)

clean:
	rm -rf $(VENV)
