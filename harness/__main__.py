"""Run the command line: `python -m harness COMMAND`."""

from harness.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
