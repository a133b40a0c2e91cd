"""The `autellix` command and its subcommands, one module each."""
