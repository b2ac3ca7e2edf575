"""The command line: one file per command. `add_options` declares a command's options, `command` executes it.

Input: arguments and environment variables.
Output: text on stdout, one-line errors on stderr, an exit code; files only below the results and reports folders.

`main.main` turns exceptions into one line and an exit code. `options` turns the options that several commands share
into `RunSpec`s; `sweep` executes them for `bench` and `ablate`.

Imported by `api`. `python -m harness` and the console script `bakeoff` start it. Heavy imports happen inside the
commands.
"""
