# Everything a fresh machine needs (Python 3.11+, pip, a C++ compiler) is set up by these targets themselves.
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard src/gevit/attention/kernel/*)

.PHONY: demo test e2e lint notebooks docs wheel clean

demo: $(READY)  ## a shipped model at work within half a minute, then r4_sa trained on rotated digits: under 5 minutes on 2 cores
	rm -rf demo
	$(BIN)/gevit equivariance --model d4_sa --pretrained --images 2 --figure demo/feature_maps.png
	@echo "The shipped r4_sa on embedded digits, some of which it was trained on: a look, not a test."
	$(BIN)/gevit evaluate --model r4_sa --pretrained --data digits --limit 60 --angles 4
	$(BIN)/gevit train --config configs/demo.yaml --out demo/run

test: lint  ## lint, types and tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

e2e: $(READY)  ## the lab in a real browser; installs Chromium (apt-get) if there is none
	e2e/setup.sh
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest e2e

notebooks: $(READY)  ## run the notebooks and keep their outputs; the third needs the data sets eurosat and redcells
	$(BIN)/jupyter nbconvert --to notebook --execute --inplace docs/notebooks/*.ipynb

docs: $(READY)  ## the documentation as web pages, docs/_build/html/docs/index.html
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -c docs . docs/_build/html

wheel:  ## sdist and wheel in dist/, installed into clean environments with and without a compiler, and tried there
	python3 release/build.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): $(SOURCES)
	python3 -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) build dist demo docs/_build src/*.egg-info
	find src -name '*.so' -delete
