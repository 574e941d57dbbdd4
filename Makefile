# make demo and make test set up everything they need in .venv; the second time that is quick.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
RUN := $(VENV)/bin

.PHONY: demo test test-all lint docs browser clean

demo: $(READY)
	$(RUN)/sckn demo

test: lint browser
	OMP_NUM_THREADS=1 $(RUN)/pytest -n 2

test-all: lint browser
	OMP_NUM_THREADS=1 $(RUN)/pytest -n 2 -m "not gpu"

docs: $(READY)
	$(RUN)/python -m sphinx -b html -W --keep-going -q docs docs/_build
	@echo docs/_build/index.html

lint: $(READY)
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/pyright --project .

# The tests of the page need Chromium; without it they are skipped, but not where CI is set.
browser:
	@if ! command -v chromium > /dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-liberation > /dev/null; fi; \
	if ! command -v chromium > /dev/null; then \
		echo "Chromium is not here; install it with apt-get install chromium, as root. Without it the tests of the page are skipped."; \
		test -z "$$CI"; fi

$(READY): requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(RUN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(READY)

clean:
	rm -rf $(VENV)
