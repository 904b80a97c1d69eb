# What a developer runs. `make` lists the targets; CONTRIBUTING.md explains them.
#
# Another Python:  make test PYTHON=python3.13 VENV=.venv-3.13
# Some tests:      make test ARGS="tests/search_space -k log"

PYTHON ?= python3
VENV ?= .venv
PYTHON_OLDEST ?= python3.11
VENV_OLDEST ?= .venv-oldest
PYTHON_NEWEST ?= python3.13
VENV_NEWEST ?= .venv-newest
PYTHON_COMPAT ?= python3.11
VENV_COMPAT ?= .venv-compat
UV ?= uv
ARGS ?=

BIN := $(VENV)/bin
PIP := -m pip --disable-pip-version-check --quiet install
LOCK_OPTIONS := --generate-hashes --no-emit-index-url --no-header --no-annotate $(ARGS)

# Half of what tests of models take is XLA compiling, Keras' steps included. XLA's older way to write
# loops compiles in less time; the JAX that is locked for Python 3.12 and newer ends a process that
# is given the option.
OLDER_LOOPS := $(shell $(PYTHON) -c 'import sys; print("--xla_cpu_use_fusion_emitters=false" * (sys.version_info < (3, 12)))')
XLA_IN_TESTS := --xla_backend_optimization_level=0 $(OLDER_LOOPS)

# The wrapper of pyright would ask a server for a newer release on every run.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PRECIOUS: .venv-%/.locked
.PHONY: help env demo docs test-docs test test-all test-numerics test-slow test-chaos test-backends test-sessions test-oldest test-newest test-compat test-strangers test-ui test-trackers test-ray test-chaos-ray lint format bench bench-structural bench-quality bench-plans bench-gpu gpu-wheels bench-prediction bench-talos bench-batch-sizes bench-public-objectives bench-fit bench-examples bench-pbt gallery test-gallery bench-trackers bench-cluster-nodes build test-wheel release-check lock lock-newest

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(VENV)/.installed ## make the environment in .venv (PYTHON, VENV)

demo: env ## search a small model on the embedded digits
	$(BIN)/paceline search examples/digits.py $(ARGS)

test: env ## the fastest test of each promise, on all cores; CI runs it (ARGS go to pytest)
	XLA_FLAGS="$(XLA_IN_TESTS)" $(BIN)/python -m pytest -n auto $(ARGS)

test-all: env ## lint and every suite of tests, in turn, with one summary at the end; an hour
	$(BIN)/python tools/test_all.py

test-numerics: env ## compare every kind of model with Keras' fit in float32 too, run out of memory; takes long
	$(BIN)/python -m pytest -n auto -m "slow or not slow" tests/numerics tests/executor $(ARGS)

test-slow: env ## combinations and long tests that `make test` leaves out
	XLA_FLAGS="$(XLA_IN_TESTS)" $(BIN)/python -m pytest -n auto -m slow $(ARGS)

test-chaos: env ## kill searches at random moments, resume them and compare, 50 times (ARGS="tpe asha --kills 200")
	$(BIN)/python tests/chaos.py $(ARGS)

test-backends: .venv-tensorflow/.installed .venv-torch/.installed ## one suite for executors on TensorFlow and PyTorch (ARGS)
	PACELINE_TEST_BACKEND=tensorflow .venv-tensorflow/bin/python -m pytest tests/backends $(ARGS)
	PACELINE_TEST_BACKEND=jax .venv-tensorflow/bin/python -m pytest tests/backends/test_data_sets.py tests/backends/test_text.py tests/backends/test_keras_hub.py tests/backends/test_tensorflow_operations.py $(ARGS)
	PACELINE_TEST_BACKEND=jax .venv-torch/bin/python -m pytest tests/backends/test_data_sets.py $(ARGS)
	PACELINE_TEST_BACKEND=torch .venv-torch/bin/python -m pytest tests/backends $(ARGS)

test-sessions: .venv-tensorflow/.installed .venv-torch/.installed ## one set of scripts in seven kinds of session, on TensorFlow and PyTorch too (ARGS)
	.venv-tensorflow/bin/python -m pytest tests/sessions $(ARGS)
	.venv-torch/bin/python -m pytest tests/sessions $(ARGS)

test-oldest: $(VENV_OLDEST)/.installed ## run the tests on the oldest releases supported
	$(VENV_OLDEST)/bin/python -m pytest -n auto $(ARGS)

test-newest: $(VENV_NEWEST)/.installed ## run the tests on the newest releases there are; `make lock-newest` looks for newer ones
	$(VENV_NEWEST)/bin/python -m pytest -n auto $(ARGS)

test-wheel: build ## install the wheel in a fresh environment for each Python, and search with it
	.venv-release/bin/python tools/fresh_install.py $(ARGS)

test-compat: $(VENV_COMPAT)/.installed ## run the same user code on Paceline and on the installed Talos, with TensorFlow; SciKeras; Optuna's own callbacks; and Parquet
	$(VENV_COMPAT)/bin/python -m pytest tests/installed $(ARGS)
	$(VENV_COMPAT)/bin/python -m pytest tests/compat/joblib/test_scikeras.py $(ARGS)
	$(VENV_COMPAT)/bin/python -m pytest tests/compat/functions/test_objectives.py -m "slow or not slow" -k "optuna_integration or tensorflow" $(ARGS)
	$(VENV_COMPAT)/bin/python -m pytest tests/cli/test_datasets.py -k parquet $(ARGS)

test-strangers: $(VENV_COMPAT)/.installed ## scripts after those of public users, with their libraries and with Paceline, in five kinds of session (ARGS)
	$(VENV_COMPAT)/bin/python tests/strangers/run.py $(ARGS)

test-ui: .venv-ui/.installed ## look at the site, reports, notebooks and the dashboard in Chromium (ARGS)
	@tools/install_chromium.sh
	$(MAKE) docs ARGS=
	.venv-ui/bin/python -m pytest tests/ui $(ARGS)

test-trackers: .venv-trackers/.installed ## log searches to MLflow, Weights & Biases and TensorBoard, and read them back (ARGS)
	.venv-trackers/bin/python -m pytest tests/trackers $(ARGS)

test-ray: .venv-ray/.installed ## search on real nodes of a Ray cluster on this machine, and kill them (ARGS)
	XLA_FLAGS="$(XLA_IN_TESTS)" .venv-ray/bin/python -m pytest -m "slow or not slow" tests/on_ray \
		tests/tuner/test_on_cluster.py::test_sixty_deaths_at_random_rounds_show_in_no_history $(ARGS)

test-chaos-ray: .venv-ray/.installed ## kill workers and nodes at 60 random moments (ARGS="--kills 200")
	XLA_FLAGS="$(XLA_IN_TESTS)" .venv-ray/bin/python tests/chaos_ray.py $(ARGS)

docs: .venv-docs/.installed ## build the documentation site in site/html; its notebooks run, without a network
	.venv-docs/bin/sphinx-build --color -b html -c docs -d site/doctrees -n -W --keep-going $(ARGS) . site/html

test-docs: env ## run every code block and command of README and docs, the long ones too (ARGS)
	XLA_FLAGS="$(XLA_IN_TESTS)" $(BIN)/python -m pytest -n auto -m "slow or not slow" tests/docs $(ARGS)

lint: env ## ruff, pyright, plain English, and the directions of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python tools/plain_english.py
	$(BIN)/lint-imports

format: env ## let ruff lay out the code and mend what it safely can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: env ## measure the README's table beside other tuners, on a quiet machine, and write it; goes on where it was stopped
	$(BIN)/python benchmarks/search_speed.py --works digits16 digits64 structures mnist gru fashion --rounds 1 $(ARGS)
	$(BIN)/python benchmarks/page_tables.py
	$(BIN)/python tools/speed_figure.py

bench-structural: env ## the same for searches over widths, layers and activations: the guide of speed
	$(BIN)/python benchmarks/search_speed.py --works intro intro64 layers structures narrow conv_widths --sides paceline keras_tuner --rounds 1 \
		--name search_speed_structural $(ARGS)
	$(BIN)/python benchmarks/page_tables.py

bench-quality: env ## how good the best model is after so many seconds, beside other tuners; hours, goes on where it was stopped
	$(BIN)/python benchmarks/quality_per_second.py $(ARGS)
	$(BIN)/python benchmarks/page_tables.py
	$(BIN)/python tools/quality_figure.py

bench-plans: env ## plan x slots for one model of each kind, on this device
	$(BIN)/python benchmarks/plans.py $(ARGS)

bench-gpu: .venv-gpu/.installed ## what a GPU makes of it (ARGS="scan --sides paceline"; ARGS=--quick tries it on a CPU)
	.venv-gpu/bin/python benchmarks/gpu.py $(ARGS)

gpu-wheels: ## packages for `make bench-gpu` on a machine without a network, into wheels/ (ARGS="--python 3.12 --accelerator-is-there")
	$(PYTHON) tools/gpu_environment.py download $(ARGS)

bench-prediction: env ## five searches predicted by `paceline bench`, then run; ARGS=--quick tries it
	$(BIN)/python benchmarks/prediction.py $(ARGS)

bench-talos: $(VENV_COMPAT)/.installed ## scans of Talos users, on Paceline and on Talos with TensorFlow (PACELINE_DATA names the data)
	$(VENV_COMPAT)/bin/python benchmarks/talos_scan.py $(ARGS)

bench-batch-sizes: env ## seconds and accuracy at batch sizes 32 to 1,024, five seeds; hours on a CPU (PACELINE_DATA names the data)
	$(BIN)/python benchmarks/batch_sizes.py $(ARGS)

bench-public-objectives: env ## ten scripts after public ones, with Optuna and with Paceline (PACELINE_DATA names the data)
	$(BIN)/python benchmarks/public_objectives.py $(ARGS)

bench-fit: env ## the fit executor beside Keras' own loop, and what callbacks cost a pack
	$(BIN)/python benchmarks/fit.py $(ARGS)

bench-examples: env ## the examples on real data, beside KerasTuner (ARGS="--tensorflow PYTHON --floors")
	$(BIN)/python benchmarks/examples.py $(ARGS)

bench-pbt: .venv-tune/.installed ## population based training, here and in Ray Tune (PACELINE_DATA names the data)
	.venv-tune/bin/python benchmarks/pbt.py $(ARGS)

gallery: .venv-gallery/.installed ## run the gallery's studies, beside Keras' fit, and write its pages and figures (PACELINE_DATA names the data)
	@tools/install_chromium.sh
	.venv-gallery/bin/python benchmarks/gallery.py $(ARGS)
	.venv-gallery/bin/python tools/gallery_pages.py

test-gallery: .venv-gallery/.installed ## run the gallery's studies, small (PACELINE_DATA names the data)
	XLA_FLAGS="$(XLA_IN_TESTS)" .venv-gallery/bin/python -m pytest -m "slow or not slow" tests/test_gallery.py $(ARGS)

bench-trackers: .venv-trackers/.installed ## what MLflow, wandb and TensorBoard cost a search
	.venv-trackers/bin/python benchmarks/trackers.py $(ARGS)

bench-cluster-nodes: .venv-ray/.installed ## what a second node of one core brings on a Ray cluster (PACELINE_DATA names the data)
	.venv-ray/bin/python benchmarks/cluster_nodes.py $(ARGS)

# Every other benchmark: `make bench-warm-start-from` runs benchmarks/warm_start_from.py.
bench-%: env ## any other file of benchmarks/: bench-asking, bench-live, bench-storage, ...
	$(BIN)/python benchmarks/$(subst -,_,$*).py $(ARGS)

build: .venv-release/.locked ## the sdist and the wheel, in dist/: made, and checked for what they hold
	rm -rf dist
	.venv-release/bin/python -m build --no-isolation
	.venv-release/bin/python -m twine check --strict dist/*
	.venv-release/bin/python tools/dist_contents.py

release-check: .venv-release/.locked ## what a release still waits for: texts, version, wheel, ages of results
	.venv-release/bin/python tools/release_check.py $(ARGS)

lock-newest: ## look for newer releases of everything, for `make test-newest`
	$(UV) pip compile pyproject.toml requirements/newest.in --universal --python-version 3.13 --no-python-downloads --upgrade \
		$(LOCK_OPTIONS) -o requirements/newest.lock > /dev/null

lock: ## work the locks out anew; ARGS=--upgrade takes the newest releases
	$(UV) pip compile pyproject.toml --extra tensorflow --group backends --group hub --universal --python-version 3.11 \
		$(LOCK_OPTIONS) -o requirements/tensorflow.lock > /dev/null
	$(UV) pip compile pyproject.toml --extra torch --group backends --universal --python-version 3.11 \
		$(LOCK_OPTIONS) -o requirements/torch.lock > /dev/null
	$(UV) pip compile pyproject.toml --extra dashboard --group backends --group ui --universal --python-version 3.11 \
		$(LOCK_OPTIONS) -o requirements/ui.lock > /dev/null
	$(UV) pip compile pyproject.toml --extra mlflow --extra wandb --extra tensorboard --group trackers --universal --python-version 3.11 \
		$(LOCK_OPTIONS) -o requirements/trackers.lock > /dev/null
	$(UV) pip compile pyproject.toml --extra ray --group ray --universal --python-version 3.11 \
		$(LOCK_OPTIONS) -o requirements/ray.lock > /dev/null
	$(UV) pip compile pyproject.toml --group docs --universal --python-version 3.11 \
		$(LOCK_OPTIONS) -o requirements/docs.lock > /dev/null
	$(UV) pip compile pyproject.toml --group gallery --universal --python-version 3.11 \
		$(LOCK_OPTIONS) -o requirements/gallery.lock > /dev/null
	$(UV) pip compile pyproject.toml --group tune --universal --python-version 3.11 \
		$(LOCK_OPTIONS) -o requirements/tune.lock > /dev/null
	$(UV) pip compile pyproject.toml --extra cuda --group gpu --universal --python-version 3.11 \
		$(LOCK_OPTIONS) -o requirements/gpu.lock > /dev/null
	$(UV) pip compile pyproject.toml --group dev --universal --python-version 3.11 \
		$(LOCK_OPTIONS) -o requirements/dev.lock > /dev/null
	$(UV) pip compile --group release --universal --python-version 3.11 \
		$(LOCK_OPTIONS) -o requirements/release.lock > /dev/null
	$(UV) pip compile requirements/oldest.in --python-version 3.11 \
		$(LOCK_OPTIONS) -o requirements/oldest.lock > /dev/null
	$(UV) pip compile pyproject.toml requirements/compat.in --python-version 3.11 \
		$(LOCK_OPTIONS) -o requirements/compat.lock > /dev/null

# An environment is made from scratch when its lock changes, so that nothing the lock dropped lingers.
# The package itself is installed in place: a change of the code needs no new install.
$(VENV)/.locked: requirements/dev.lock
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or \
		sys.exit("Paceline needs Python 3.11 or newer, found " + v + "; try: make PYTHON=python3.12")'
	@echo "making $(VENV) from requirements/dev.lock; this takes a minute"
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python $(PIP) --require-hashes -r requirements/dev.lock
	touch $@

.venv-%/.locked: requirements/%.lock
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/python $(PIP) --require-hashes -r requirements/$*.lock
	touch $@

.venv-gpu/.locked: requirements/gpu.lock
	$(PYTHON) tools/gpu_environment.py make .venv-gpu
	touch $@

$(VENV_OLDEST)/.locked: requirements/oldest.lock
	$(PYTHON_OLDEST) -m venv --clear $(VENV_OLDEST)
	$(VENV_OLDEST)/bin/python $(PIP) --require-hashes -r requirements/oldest.lock
	touch $@

$(VENV_NEWEST)/.locked: requirements/newest.lock
	$(PYTHON_NEWEST) -m venv --clear $(VENV_NEWEST)
	$(VENV_NEWEST)/bin/python $(PIP) --require-hashes -r requirements/newest.lock
	touch $@

$(VENV_COMPAT)/.locked: requirements/compat.lock
	$(PYTHON_COMPAT) -m venv --clear $(VENV_COMPAT)
	$(VENV_COMPAT)/bin/python $(PIP) --require-hashes -r requirements/compat.lock
	touch $@

%/.installed: %/.locked pyproject.toml
	$*/bin/python $(PIP) --no-build-isolation --no-deps -e .
	touch $@
