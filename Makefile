# The two commands of the README, and their parts. Every target sets up .venv first, with what it needs; a second run
# skips it.
.PHONY: demo install test test-beside check setup clean

demo: install
	.venv/bin/autellix demo $(DEMO_ARGS)

test: setup
	scripts/test $(TEST_ARGS)

test-beside: setup
	scripts/test-beside

check: setup
	scripts/check

# The server, an engine and the demo, without the tests' tools.
install:
	@scripts/setup serve

setup:
	@scripts/setup

clean:
	rm -rf .venv .venv-beside demo-results .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
