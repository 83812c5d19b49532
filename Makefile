# Everything runs from .venv, which the first target that needs it makes; later runs reinstall nothing until pyproject.toml changes.
#
#   PYTHON=python3.12   which Python makes the environment (default: the newest of 3.14 to 3.11 found on PATH)
#   TORCH=2.13.0        which torch goes in: a version, or a requirement such as torch==2.13.0 (default: the newest tested one)
#   TORCH_INDEX=        the index that torch comes from. PyTorch's own index of CPU wheels by default: on Linux the torch on PyPI
#                       brings several GB of CUDA. Empty (and under CI=true) for the index that pip is set up with.
#   PRE=1               admit pre-releases of torch (with its nightly index: TORCH=torch PRE=1)
#   TESTS="..."         what make matrix passes to pytest (default: all tests but the slow ring)

IS_SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
# Searched at its first use, and once.
PYTHON ?= $(eval PYTHON := $(shell for p in python3.14 python3.13 python3.12 python3.11 python3 python; do \
  "$$p" -c '$(IS_SUPPORTED)' >/dev/null 2>&1 && echo "$$p" && break; done))$(PYTHON)
TORCH ?= 2.15.0
REQUIREMENT := $(if $(findstring torch,$(TORCH)),$(TORCH),torch==$(TORCH))
ifeq ($(CI),true)
TORCH_INDEX ?=
else
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
endif

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Each worker starts with its share of the files, so that what a file's tests share is made once, and takes over from a slower one.
PYTEST := $(BIN)/python -m pytest --dist worksteal
# One more than the cores of a small machine: tests that wait for a browser or another process leave theirs idle. A worker
# grows to more than 1 GB, beside a browser and notebook kernels: two where there is less than 8 GB.
WORKERS ?= $(or $(shell awk '/^MemTotal/ {print $$2 < 7900000 ? 2 : 3}' /proc/meminfo 2>/dev/null),3)
TESTS ?=

# Tests start hundreds of processes: without compiled files on disk, each one compiles the whole engine again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test quick test-all matrix lab bench coverage fuzz soak mutation lint accept notebooks editions site sessions pictures libraries clean

# Runs a command while `make lint` runs, prints what lint said when it ends, and fails if either does.
# Make runs a line with $(MAKE) also under -n; one with its other name it only prints.
beside_lint = said=$$(mktemp); \
  { $(MAKE_COMMAND) --no-print-directory lint >"$$said" 2>&1; status=$$?; cat "$$said"; rm "$$said"; exit $$status; } & lint=$$!; \
  $(1); tests=$$?; wait $$lint && exit $$tests

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) ## Run the tour without a browser, write one self-contained page, and print its link and what to look at
	@$(BIN)/python -m notebook_ext demo

test: $(STAMP) ## Lint, types and all tests but the slow ring (about 22 minutes on 2 cores)
	@$(call beside_lint,$(PYTEST) -n $(WORKERS))

quick: $(STAMP) ## A fair sample of the tests in about 3 minutes: no lint, browser or notebook, nothing that takes a second, one in 32 cases of many
	$(PYTEST) -n $(WORKERS) -m "not slow and not browser and not thorough" -q

test-all: $(STAMP) ## Everything, the slow ring too
	@$(call beside_lint,$(PYTEST) -n $(WORKERS) -m "")

# Each pair of versions has an environment of its own in matrix/, with its counts beside it.
MATRIX = matrix/$(shell "$(PYTHON)" -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null)-$(subst =,,$(REQUIREMENT))

matrix: ## Run the tests on one pair, PYTHON and TORCH, in an environment of its own; counts go to matrix/<pair>.txt
	@$(MAKE) --no-print-directory VENV=$(MATRIX) $(MATRIX)/.installed
	$(MATRIX)/bin/python -m pytest --dist worksteal -p tests.version_matrix --counts $(MATRIX).txt -n $(WORKERS) -q $(TESTS)

fuzz: $(STAMP) ## Compare random programs with eager for ten minutes, with the date as the seed (TARGET=programs, kernels or aliasing)
	$(BIN)/python -m tests.fuzz $(or $(TARGET),programs) --seed $$(date +%Y%m%d)0000 --minutes 10 --output build/fuzz

soak: $(STAMP) ## Compile cells, interrupt, fork and record for an hour; memory must stay flat
	$(BIN)/python -m tests.soak --minutes 60 --seed $$(date +%Y%m%d)

mutation: $(STAMP) ## Plant 100 faults in guards, checks and lowerings; the tests that reach them must fail
	$(BIN)/python -m tests.mutation --seed $$(date +%Y%m%d)000 --count 100 --minutes 120 --wanted 0.6

libraries: $(STAMP) ## Install libraries that live on torch, and compile their models and functions
	$(BIN)/python -m pip install --quiet --requirement tests/libraries.txt
	TEST_LIBRARIES=1 $(PYTEST) -n $(WORKERS) -m slow tests/test_libraries.py

EDITION ?= student
LAB_TOUR = build/editions/$(EDITION)/00_tour.ipynb

lab: $(LAB_TOUR) ## Open JupyterLab on the tour, answers hidden until you predict (EDITION=teacher shows them, with notes and solutions)
	$(BIN)/jupyter lab $<

# Written once: what a learner changed stays until `make editions`.
build/editions/%/00_tour.ipynb: | $(STAMP)
	@$(BIN)/python -m notebook_ext.lesson editions build/editions

bench: $(STAMP) ## Overheads and compile times beside torch.compile, as ratios
	$(BIN)/python -m tests.bench

coverage: $(STAMP) ## What share of torch's operators, of the programs and of small transformers becomes kernels, and what does not
	$(BIN)/python -m tests.engine.lowering.op_coverage

lint: $(STAMP) ## Style, words, types and the front end's own tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.house_rules
	$(BIN)/mypy
	@if ! command -v node >/dev/null 2>&1; then echo "node is not here: the front end's own tests are left out"; \
	elif ls tests/js/*.test.* >/dev/null 2>&1; then node --test tests/js/*.test.*; fi

accept: $(STAMP) ## Rewrite tests/expected from what the tests now see; review the difference
	$(PYTEST) -n 0 -q --accept

notebooks: $(STAMP) ## Run all notebooks and keep their outputs; nothing changes unless what they show did
	@for n in notebooks/[0-9]*.ipynb; do $(BIN)/python -m notebook_ext.notebook_report $$n --write --output report || exit 1; done

editions: $(STAMP) ## Write the student, reading and teacher editions of the lessons into build/editions
	@$(BIN)/python -m notebook_ext.lesson editions build/editions

site: $(STAMP) ## Build the lessons, their explorers and all documentation as one static site in build/site (lessons that changed run)
	@$(BIN)/python -m notebook_ext.site build/site

sessions: $(STAMP) ## Record the sessions again that notebooks open where there is no Triton
	$(BIN)/python -m tests.notebooks.record_sessions

pictures: $(STAMP) ## Make the pictures of README and lessons again (a headless Chromium)
	$(BIN)/python -m tests.notebooks.pictures

clean: ## Remove the environments and everything generated
	rm -rf $(VENV) matrix report build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes in first and alone, so that only torch comes from its index and nothing later can pull another build of it.
# A CPU build of torch names no Triton: it gets the one that the CUDA build of its version has.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12, 3.13 or 3.14 is needed and none was found: install one, or name it with make PYTHON=/path/to/python3.14."; exit 1; }
	@"$(PYTHON)" -c '$(IS_SUPPORTED)' 2>/dev/null || { echo "$(PYTHON) is not Python 3.11, 3.12, 3.13 or 3.14: name one that is with make PYTHON=/path/to/python3.14."; exit 1; }
	@"$(PYTHON)" -c 'import sys, sysconfig; sys.exit(bool(sysconfig.get_config_var("Py_GIL_DISABLED")))' || { echo "$(PYTHON) is a free-threaded build, which the engine does not support: name another one with make PYTHON=/path/to/python3.14."; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv module: install it (on Debian and Ubuntu: apt install python3-venv) and run make again."; exit 1; }
	@case "$(REQUIREMENT)" in torch==2.[0-9]|torch==2.[0-9].*|torch==2.10|torch==2.10.*|torch==[01].*) echo "$(REQUIREMENT) is too old: torch 2.11 or newer is needed, so name one with make TORCH=2.15.0."; exit 1;; esac
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(if $(PRE),--pre) "$(REQUIREMENT)"
	$(BIN)/python -m pip install --quiet "$(REQUIREMENT)" $$($(BIN)/python tests/matching_triton.py) --editable ".[lab,test,bench]"
	@touch $@
