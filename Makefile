# The two commands of the README, and their parts. Every target sets up .venv first; a second run skips it.
.PHONY: demo test check setup clean

demo: setup
	.venv/bin/autellix demo $(DEMO_ARGS)

test: setup
	scripts/test $(TEST_ARGS)

check: setup
	scripts/check

setup:
	@scripts/setup

clean:
	rm -rf .venv demo-results .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
