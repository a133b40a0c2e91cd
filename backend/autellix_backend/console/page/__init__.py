"""The live page and the report: assets that need no build, and the one file that holds them all."""
