# `make demo` and `make test` install what they need; all they require is Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 3
SEED ?= 1
SECONDS ?= 60

.PHONY: demo test test-long lint ruff types imports dependencies bench accuracy reliability docs published fuzz lock sbom clean

# pip installs nothing whose hash is not in the lock file, and nothing that the lock file does not name.
# With editable_mode=compat, each start of Python reads the path of this folder instead of a program that finds it.
# Many modules are never imported, so most are compiled when they first are. What workers load is compiled here, because
# they write no bytecode, and so are this program and what its main commands load: a command alone would use one core.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
LOADED_BY_WORKERS := numpy onnxruntime openvino
LOADED_BY_COMMANDS := harness.lut.build, harness.report.html, harness.validation.network_validation, \
	bokeh.plotting, onnx, sklearn.ensemble, sklearn.linear_model
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --constraint constraints.txt

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "harness needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes --requirement requirements.lock
	$(INSTALL) --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
	-$(BIN)/python -m compileall -q -j 0 harness device_agents \
		$(addprefix $(VENV)/lib/python*/site-packages/,$(LOADED_BY_WORKERS))
	-PYTHONDONTWRITEBYTECODE= $(BIN)/python -c "import $(LOADED_BY_COMMANDS)"
	touch $(STAMP)

demo: $(STAMP)  ## measure three networks on the emulated NPU; prints a table and writes reports/demo.html
	$(BIN)/harness demo --workspace .

# Test processes run side by side; with one BLAS thread each they do not compete for cores.
test test-long: export OPENBLAS_NUM_THREADS = 1
# They share compiled modules, whatever the environment says of bytecode.
test test-long: export PYTHONDONTWRITEBYTECODE =

# A test process that dies ends the suite with an error; replaced, it would leave the others waiting for ever.
# Files begin in the order of tests/conftest.py: xdist's own begins with those of many tests, not with those that take long.
# Two runs with one seed have the same random cases and, in each file, the same order of tests.
test: $(STAMP)  ## run the test suite; SEED=N draws other random cases
	$(BIN)/python -m pytest --hypothesis-seed=$(SEED) --randomly-seed=$(SEED) -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0

test-long: $(STAMP)  ## run the tests that take minutes
	$(BIN)/python -m pytest -m long --timeout=3600

lint: types ruff imports dependencies  ## check style, types, import contracts and dependencies; -j 2 checks side by side

ruff: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

dependencies: $(STAMP)
	$(BIN)/deptry harness device_agents

lock: $(STAMP)  ## write the lock files, with all hashes of the versions in constraints.txt
	$(INSTALL) --constraint constraints.txt uv
	echo setuptools | $(LOCK) pyproject.toml - --extra test --extra cluster --extra openvino --output-file requirements.lock
	echo atheris | $(LOCK) - --output-file requirements-fuzz.lock

sbom: $(STAMP)  ## write reports/sbom.cdx.json, the packages of the lock file as CycloneDX
	$(BIN)/python -m supply_chain.sbom reports/sbom.cdx.json

docs: $(STAMP)  ## write docs/cli.md from the help texts, docs/api.md from docstrings, and the outputs of the notebook
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python docs/generate_api.py
	$(BIN)/python docs/run_notebook.py

published: $(STAMP)  ## measure the table of npu01 that the package holds, and write its report, reports/npu01.html
	$(BIN)/python -m benchmarks.published

bench: export OPENBLAS_NUM_THREADS = 1
bench: $(STAMP)  ## measure and rewrite docs/performance.md, beside other tools; takes a quarter of an hour
	$(BIN)/python -m benchmarks.performance

accuracy: $(STAMP)  ## measure and rewrite docs/accuracy.md; needs an idle machine for about an hour
	$(BIN)/python -m benchmarks.accuracy

reliability: $(STAMP)  ## inject faults and rewrite docs/reliability.md; needs an idle machine for about an hour
	-$(INSTALL) --require-hashes --requirement requirements-fuzz.lock
	$(BIN)/python -m benchmarks.reliability

fuzz: $(STAMP)  ## fuzz the readers of foreign input for SECONDS each (docs/hostile_input.md)
	-$(INSTALL) --require-hashes --requirement requirements-fuzz.lock
	$(BIN)/python -m fuzz --seconds $(SECONDS)

clean:
	rm -rf $(VENV)
