# The two commands of the README, and their parts. Every target sets up .venv first; a second run skips it.
.PHONY: demo test test-beside check setup clean

demo: setup
	.venv/bin/autellix demo $(DEMO_ARGS)

test: setup
	scripts/test $(TEST_ARGS)

test-beside: setup
	scripts/test-beside

check: setup
	scripts/check

setup:
	@scripts/setup

clean:
	rm -rf .venv .venv-beside demo-results .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
