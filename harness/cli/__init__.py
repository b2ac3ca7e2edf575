"""The command line: one file per command. `add` declares a command's options, `command` executes it.

Input: arguments and environment variables.
Output: text on stdout, one-line errors on stderr, an exit code; files only below the results and reports folders.

- `main.main` parses the arguments and turns exceptions into one line and an exit code.
- `console` writes to the terminal.
- `options` holds the options that several commands share, and turns them into a `RunSpec`.
- `sweep` plans and executes many runs, for `bench` and `ablate`.

Called by `python -m harness` and the console script `bakeoff`. Heavy imports happen inside the commands.
"""
