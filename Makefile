# make lab: set everything up and open the workbook.   make test: set up and pass the tests.
PYTHON ?= python3
PORT ?= 8888
BIN := .venv/bin
READY := .venv/ready
CHROMIUM := $(or $(shell command -v chromium),$(shell command -v chromium-browser))
LESSONS := $(wildcard notebooks/*.ipynb)
# A lesson that is run to be tested must not write beside the learner's own numbers.
SCRATCH = PERFKIT_RESULTS=$(CURDIR)/.venv/results.jsonl

.PHONY: lab tour test bench gpu lint browser clean

lab: $(READY)
	$(BIN)/jupyter lab --port=$(PORT) --ServerApp.root_dir=notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

tour: $(READY)
	@for lesson in $(LESSONS); do $(SCRATCH) $(BIN)/jupyter nbconvert --log-level=ERROR --execute \
	  --to markdown --NbConvertBase.display_data_priority="['text/plain']" --stdout $$lesson \
	  || exit 1; done

test: $(READY) browser
	$(BIN)/python -m pytest
	$(SCRATCH) $(BIN)/python -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=120 \
	  -p no:cacheprovider --durations=5 notebooks

bench: $(READY) .venv/hta
	@for file in tests/bench/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# The peer that the timeline is held against, apart from what perfkit itself runs on.
.venv/hta: $(READY)
	$(BIN)/pip install --quiet --target .venv/hta 'HolisticTraceAnalysis==0.5.0'

gpu: $(READY)
	$(BIN)/python tests/gpu/record.py

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

browser:
ifeq ($(CHROMIUM),)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; \
	else echo "The browser test needs Chromium: sudo apt-get install chromium, then make test"; exit 1; fi
endif

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "perfkit needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[workbook,torch,cluster,live,test]'
	@# The second IPython that the magics are tested on, with the one package that 9 does without.
	$(BIN)/pip install --quiet --no-deps --upgrade --target .venv/ipython8 \
	  'ipython==8.39.0' 'decorator==5.2.1'
	@touch $(READY)

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
