# Two commands: `make demo` and `make test`. Both make .venv first, once; nothing is reinstalled while constraints.txt and
# pyproject.toml stay as they are.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread for each worker: two OpenMP pools on one core fight each other.
export OMP_NUM_THREADS := 1
export FLWR_TELEMETRY_ENABLED := 0

.PHONY: demo picture check-picture test lint types types-tests unit coverage test-slow fuzz fuzz-guided test-flower test-ray test-lora
.PHONY: test-nvflare js bench docs results wheel dist notebook clean

demo: $(VENV)/core
	$(BIN)/comity reproduce demo --out studies/demo
	$(BIN)/comity report studies/demo -o studies/demo/report.html

# The README's picture from what `make demo` made; CI only checks that it still shows the same.
picture: $(VENV)/dev demo
	$(BIN)/python docs/make_picture.py

check-picture: $(VENV)/dev demo
	$(BIN)/python docs/make_picture.py --check

# Side by side: what waits leaves its core to the others.
test: $(VENV)/dev
	@$(MAKE) --no-print-directory -j 3 -O lint types unit

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python docs/check_words.py

types: $(VENV)/dev
	$(BIN)/mypy

# The tests have a profile of their own, tests/mypy.ini.
types-tests: $(VENV)/dev
	$(BIN)/mypy --config-file tests/mypy.ini

unit: $(VENV)/dev
	$(BIN)/pytest -m "not slow"

# Many processes, many clients, much memory, every method on larger nets: about four minutes.
test-slow: $(VENV)/dev
	$(BIN)/pytest -m slow

# What the quick tests reach; the floor is in pyproject.toml. Three to four minutes.
coverage: $(VENV)/dev
	$(BIN)/pytest -m "not slow" --cov --cov-report=term:skip-covered --cov-report=xml

# More than 8,000 damaged inputs, summed up by class; `make test` tries 10 of each kind. Up to ten minutes on two cores:
# 400 inputs for each of 42 tests, and none after a test's first 25 seconds.
fuzz: export COMITY_FUZZ_EXAMPLES ?= 400
fuzz: export COMITY_FUZZ_SECONDS ?= 25
fuzz: export COMITY_FUZZ_REPORT := $(CURDIR)/fuzz.jsonl
fuzz: $(VENV)/dev
	rm -f fuzz.jsonl
	$(BIN)/pytest tests/fuzz; code=$$?; $(BIN)/python tests/fuzz/harness.py fuzz.jsonl; exit $$code

# The same generators, guided by the branches that inputs reach (atheris, which has wheels for Linux): three minutes.
FUZZ_GUIDED_SECONDS ?= 30
fuzz-guided: $(VENV)/dev $(VENV)/guided
	$(BIN)/python tests/fuzz/guided.py $(FUZZ_GUIDED_SECONDS)

# Real SuperLinks and SuperNodes on loopback, killed and started again, and LoRA on them: about ten minutes.
test-flower: $(VENV)/dev $(VENV)/lora
	COMITY_PROCESS_TESTS=1 $(BIN)/pytest -n 0 tests/flower/test_processes.py tests/flower/test_lora.py

# The report's script: formatter and linter (of the whole, which is one scope), unit tests, and axe on the drawn page.
# It needs node; installing comity does not.
BIOME := tests/js/node_modules/.bin/biome
js: $(VENV)/dev
	npm install --prefix tests/js --silent --no-package-lock
	$(BIOME) format --config-path tests/js/style.json src/comity/report/assets tests/js
	$(BIN)/python -c 'from comity.report._assets import script; print(script())' > $(VENV)/report.js
	$(BIOME) lint --config-path tests/js/style.json --error-on-warnings $(VENV)/report.js tests/js
	node --test tests/js
	$(BIN)/pytest -n 0 -rs tests/report/test_axe.py

# A Ray cluster of several nodes on this machine, one of which is lost on the way; a minute or two.
test-ray: $(VENV)/dev $(VENV)/ray
	$(BIN)/pytest -n 0 tests/studies/test_cluster.py -k ray

# PEFT's own adapters; half a minute.
test-lora: $(VENV)/dev $(VENV)/lora
	$(BIN)/pytest -n 0 tests/files/test_peft.py

# NVFlare's simulator, in an environment of its own: it brings a web server and its own ideas of versions along.
test-nvflare: .venv-nvflare/ready
	.venv-nvflare/bin/pytest -n 0 tests/test_nvflare.py

# Speed as ratios in one run, with generous bounds; docs/explanation/performance.md has the measurements.
bench: $(VENV)/dev
	$(BIN)/pytest -n 0 -q benchmarks

# The generated pages anew, then the site, in which a broken link is an error.
docs: $(VENV)/docs
	$(BIN)/python docs/make_methods.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# The measured tables and numbers of the pages from evidence/; with STUDIES=name=folder, those files first.
results: $(VENV)/core
	$(BIN)/python docs/make_results.py $(STUDIES)

# Wheel and sdist, each with every file of the package, and with metadata that PyPI takes.
wheel: $(VENV)/dev
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python .ci/check_dist.py dist/*.whl dist/*.tar.gz

# The wheel, tried in an environment that has nothing else; most of the minutes go to torch.
dist: wheel
	$(PYTHON) -m venv --clear $(VENV)/clean
	$(VENV)/clean/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt dist/*.whl
	cd / && $(CURDIR)/$(VENV)/clean/bin/python -P $(CURDIR)/.ci/check_install.py
	rm -rf $(VENV)/clean

# The notebook's cells, one after another, in a folder that is gone afterwards.
notebook: $(VENV)/notebook
	folder=$$(mktemp -d) && cp examples/comity.ipynb $$folder && $(BIN)/jupyter execute $$folder/comity.ipynb && rm -r $$folder

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "comity needs Python 3.11 or newer; set PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/core: $(BIN)/python constraints.txt pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/dev: $(BIN)/python constraints.txt pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(VENV)/core $@

$(VENV)/docs $(VENV)/notebook $(VENV)/ray $(VENV)/lora $(VENV)/guided: $(VENV)/core
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[$(@F)]'
	touch $@

.venv-nvflare/ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-nvflare
	.venv-nvflare/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[nvflare]' pytest pytest-xdist
	touch $@

clean:
	rm -rf $(VENV) .venv-nvflare runs studies dist site
