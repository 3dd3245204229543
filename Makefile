# Needs Python 3.11 or newer and make; everything else goes into .venv, in the versions of
# requirements/. A second set-up compares two time stamps.

PYTHON ?= python3
TARGETS ?=
ARGS ?=
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
MODEL ?= eval/probe_model/checkpoint

VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
# uv installs the same pins, faster, where it is on the PATH; UV= uses venv and pip.
PIP := $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,\
  $(BIN)/python -m pip --quiet --disable-pip-version-check install)
PACKAGES := eval harness kernels reference reports suites

.DELETE_ON_ERROR:
.PHONY: help install gate bench bench-all matrix fresh-seeds test test-all check gpu hf parity eval eval-quick docs site attack starts clean
.DEFAULT_GOAL := help

help:  ## these lines
	@sed -n 's/^\([a-z-]*\):.*## */  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16
	@echo
	@echo '  PYTHON=python3.12             another interpreter for .venv'
	@echo '  TARGETS="reference vllm==0.33.0"  what gate, bench and matrix judge; engines are installed first'
	@echo '  ARGS="..."                    passed on to kvproof gate, kvproof bench or pytest'
	@echo '  CERTIFICATES=FOLDER           more certificates for the site'

install: $(VENV)/.core  ## kvproof and its core dependencies into .venv

gate: $(VENV)/.core engines  ## is everything right and fast? ends with a report
	$(BIN)/kvproof gate $(if $(TARGETS),--targets "$(TARGETS)") $(ARGS)

bench: $(VENV)/.core engines  ## cache managers side by side
	$(BIN)/kvproof bench $(if $(TARGETS),--targets "$(TARGETS)") $(ARGS)

# The newest locked version of each engine, unless TARGETS names some. An engine that cannot be
# installed, or what it does not offer, is skipped with the reason. The same command with the same
# RUN goes on after an interruption.
bench-all: RUN ?= runs/bench-all-$(shell date +%Y%m%d-%H%M%S)
bench-all: TARGETS := $(or $(TARGETS),reference $(shell ls harness/locks | \
  sed -n 's/-\([0-9][0-9.]*\)\.txt$$/==\1/p' | sort -V | awk -F== '{last[$$1]=$$0} END {for (e in last) print last[e]}'))
bench-all: $(VENV)/.core  ## every engine, every case, shared stores, an hour of steps; one report, 25 minutes
	@for target in $(filter-out reference,$(TARGETS)); do \
	  $(BIN)/kvproof targets install $$target || echo "$$target: left out"; done
	OMP_NUM_THREADS=1 $(BIN)/kvproof bench --targets "$(TARGETS)" --skip-absent --output $(RUN) \
	  --cases no_eviction,eviction,python-lists,index,index-eviction,tiers,scheduler \
	  --workload shared-prefix:requests=400,length=2048 --block-size 16 --repetitions 7 \
	  --verify-tokens 131072 $(ARGS)

# Every engine version with a lock file, unless TARGETS names some; as many at once as there are
# cores, each in a record of its own, which are merged.
matrix: TARGETS := $(or $(TARGETS),reference \
  $(shell ls harness/locks | sed -n 's/-\([0-9][0-9.]*\)\.txt$$/==\1/p') \
  $(shell ls harness/adapters | sed -n 's/_engine$$//p' | while read engine; do ls harness/locks | \
    sed -n "s/^$$engine-\([0-9.]*\)\.txt$$/$$engine-engine==\1/p" | sort -V | tail -n 1; done))
matrix: RUNS := runs/matrix-$(shell date +%Y%m%d-%H%M%S)
matrix: $(VENV)/.core  ## every property on every engine and version, what is red first
	@for target in $(filter-out reference,$(TARGETS)); do \
	  $(BIN)/kvproof targets install $$target || exit 1; done
	@mkdir -p $(RUNS); if [ $(words $(TARGETS)) = 1 ]; then \
	  $(BIN)/kvproof run --target $(TARGETS) --level full --output $(RUNS)/all $(ARGS); \
	else \
	  printf '%s\n' $(TARGETS) | xargs -P $(JOBS) -I@ sh -c ' \
	    echo "@: judging, progress in $(RUNS)/@.log"; \
	    $(BIN)/kvproof run --target @ --level full --output $(RUNS)/@ $(ARGS) >$(RUNS)/@.log 2>&1; \
	    echo "@:$$(grep -E "^ [A-Z]+ " $(RUNS)/@.log || tail -n 1 $(RUNS)/@.log)"; :'; \
	  $(BIN)/kvproof merge $(RUNS) --output $(RUNS)/all >/dev/null; \
	fi; status=$$?; $(BIN)/python -m kvproof.reports.render.matrix_page $(RUNS)/all && exit $$status

# Budget pr draws the same histories in every run: this draws others on the reference and on every
# engine that is installed, and keeps each failure with its seed, history and cause.
fresh-seeds: TIME ?= 60m
fresh-seeds: $(VENV)/.core engines  ## new histories for TIME (60m) on TARGETS: a nightly job
	$(BIN)/kvproof fuzz --targets "$(or $(TARGETS),all)" --level full --max-time $(TIME) \
	  --workers $(JOBS) --keep-going --output runs/fresh-seeds-$(shell date +%Y%m%d-%H%M%S) $(ARGS)

test: $(VENV)/.dev  ## the project's own tests without those that take long: minutes
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow" $(ARGS)

test-all: $(VENV)/.dev  ## all of the project's own tests, as before a merge
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(ARGS)

check: $(VENV)/.dev site  ## ruff, mypy, plain English, and the links and images of the site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(PACKAGES:%=-p kvproof.%)
	$(BIN)/mypy examples
	$(BIN)/python -m pytest -q suites/tests/project/test_plain_english.py

gpu: $(VENV)/.gpu  ## torch and Triton into .venv: test and gate then judge the kernels too

hf: $(VENV)/.hf  ## torch and transformers into .venv: test then runs models too

parity: $(VENV)/.hf  ## does cache reuse change what real model families compute? a table
	OMP_NUM_THREADS=1 $(BIN)/python -m kvproof.suites.tests.lab.parity $(ARGS)

eval: model $(VENV)/.eval  ## does reuse cost answers? synthetic LongBench v2 through OpenCompass; goes on if killed
eval-quick: model $(VENV)/.eval  ## the same with 32 short samples, in 4 minutes
eval-quick: ARGS += --quick
eval eval-quick:
	$(BIN)/kvproof eval install
	$(BIN)/kvproof eval longbench-v2 --runner opencompass --prompts kvproof \
	  --config eval/configs/probe.toml --model $(MODEL) --output runs/$@ $(ARGS)

# Before anything is installed for it.
.PHONY: model
model:
	@test -f $(MODEL)/config.json || { \
	  echo "There is no model in $(MODEL). Any local Hugging Face folder: make eval MODEL=FOLDER" >&2; exit 2; }

docs: $(VENV)/.core  ## the table of commands in the README
	$(BIN)/python -m kvproof.suites.tests.documents.write

site: $(VENV)/.site  ## the documentation with its generated pages, in build/site: searchable, offline
	NO_MKDOCS_2_WARNING=1 KVPROOF_CERTIFICATES='$(CERTIFICATES)' $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html"

attack: $(VENV)/.dev  ## hostile input for every verb, a minute; ARGS="--minutes 20 --seed 1"
	$(BIN)/python -m kvproof.suites.tests.attack $(ARGS)

starts: $(VENV)/.dev  ## seconds of CPU until a command answers, on a quiet machine
	$(BIN)/python -m kvproof.suites.tests.cli.starts

clean:  ## remove .venv and everything that was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Engines of TARGETS, each in an environment of its own; at once if they are there.
.PHONY: engines
engines: $(VENV)/.core
	@$(foreach target,$(TARGETS),$(if $(findstring ==,$(target)),\
	  $(BIN)/kvproof targets install $(target) &&)) :

$(VENV)/.core: requirements/core.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "There is no $(PYTHON). Install Python 3.11 or newer, or: make PYTHON=<path>" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), kvproof needs 3.11 or newer:" \
	    "make PYTHON=python3.12" >&2; exit 1; }
	@test -n "$(UV)" || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: the module ensurepip or venv is missing." \
	    "On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || \
	  $(if $(UV),$(UV) venv --quiet --seed --python $$(command -v $(PYTHON)) $(VENV),$(PYTHON) -m venv $(VENV))
	@echo "setting up .venv (half a minute)"
	@$(PIP) -r requirements/core.txt
	@$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.gpu: requirements/gpu.txt $(VENV)/.core
	@echo "installing torch and Triton (a minute or two)"
	@$(PIP) -r requirements/gpu.txt
	@touch $@

$(VENV)/.hf: requirements/hf.txt $(VENV)/.core
	@echo "installing torch and transformers (a minute or two)"
	@$(PIP) -r requirements/hf.txt
	@touch $@

$(VENV)/.eval: requirements/eval.txt requirements/serve.txt $(VENV)/.hf
	@$(PIP) -r requirements/serve.txt -r requirements/eval.txt
	@touch $@

$(VENV)/.site: requirements/site.txt $(VENV)/.core
	@$(PIP) -r requirements/site.txt
	@touch $@

# mypy finds kvproof.<folder> through links, because the folders are not below a kvproof/.
$(VENV)/.dev: requirements/dev.txt requirements/serve.txt $(VENV)/.core
	@$(PIP) -r requirements/dev.txt -r requirements/serve.txt
	@mkdir -p $(VENV)/typing/kvproof
	@for name in $(PACKAGES); do ln -sfn ../../../$$name $(VENV)/typing/kvproof/$$name; done
	@touch $@
