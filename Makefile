# Two commands do everything on a machine with python3 and make: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

OLDEST := .venv-oldest/bin

.PHONY: setup demo test check format lint types fast slow oldest soak docs wheel clean

setup: $(READY)

$(READY): pyproject.toml
	@echo "making an environment in .venv with PyTorch and all that is needed: some minutes, once"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[dev]'
	touch $@

demo: setup
	@echo "training on the images that come with smallvit, testing, and writing a report"
	$(BIN)/smallvit demo

test: fast

check: setup
	$(MAKE) --jobs 2 format lint types docs
	$(MAKE) fast

format: setup
	$(BIN)/ruff format --check .

lint: setup
	$(BIN)/ruff check .
	$(BIN)/pylint --ignore=flax smallvit
	$(BIN)/pylint smallvit/flax

types: setup
	$(BIN)/mypy

# Shapes in signatures are checked while testing; the checker and torch.compile do not mix.
fast: setup
	$(BIN)/python -m pytest -n 2 -m "not slow and not compiled" --jaxtyping-packages=smallvit,tests.shapes.check
	$(BIN)/python -m pytest -n 2 -m "not slow and compiled"

slow: setup
	$(BIN)/python -m pytest -m slow

# The tests on the oldest torch that pyproject.toml promises, in an environment of its own.
oldest: .venv-oldest/.ready
	$(OLDEST)/python -m pytest -n 2 -m "not slow and not compiled" --jaxtyping-packages=smallvit,tests.shapes.check
	$(OLDEST)/python -m pytest -n 2 -m "not slow and compiled"

.venv-oldest/.ready: pyproject.toml
	test -x $(OLDEST)/python || $(PYTHON) -m venv .venv-oldest
	$(OLDEST)/python -m pip install --quiet --disable-pip-version-check uv
	oldest=$$(sed -n 's/.*"torch>=\(.*\)".*/\1/p' pyproject.toml) && \
	$(OLDEST)/uv pip install --quiet --python $(OLDEST)/python "torch==$$oldest.*" --editable '.[dev]'
	touch $@

# Kills, damaged files, mutated images and many clients: the table in docs/reliability.md.
soak: setup
	$(BIN)/python tools/soak.py

# The tables of the README and of docs/results.md, then the site in site/: open site/index.html, no server needed.
docs: setup
	$(BIN)/python tools/readme.py
	$(BIN)/python tools/results.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: setup
	$(BIN)/python -m build --installer uv

clean:
	rm -rf .venv .venv-oldest dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
