# make demo and make test set up everything they need in .venv; the second time that is quick.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
RUN := $(VENV)/bin

.PHONY: demo test test-all lint docs clean

demo: $(READY)
	$(RUN)/sckn demo

test: lint
	OMP_NUM_THREADS=1 $(RUN)/pytest -n 2

test-all: lint
	OMP_NUM_THREADS=1 $(RUN)/pytest -n 2 -m "not gpu"

docs: $(READY)
	$(RUN)/python -m sphinx -b html -W --keep-going -q docs docs/_build
	@echo docs/_build/index.html

lint: $(READY)
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/pyright --project .

$(READY): requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(RUN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(READY)

clean:
	rm -rf $(VENV)
