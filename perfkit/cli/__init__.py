"""The command line: one subject a file, each with HELP, `add_arguments` and `run`."""
