"""Run the command line: `python -m harness COMMAND`."""

import sys


def main() -> int:
    """Run the command line, or say how to install the libraries that it needs."""
    try:
        from harness.cli.main import main as run_command_line
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "harness", "impls"):
            raise
        sys.stderr.write(
            f"bakeoff: the library {library} is not installed in {sys.prefix}; install Bakeoff's libraries with "
            "python -m pip install '.[torch,data]', or run the command in tox's environment with "
            "tox -e harness -- COMMAND\n"
        )
        return 2
    except KeyboardInterrupt:  # importing takes a second or more on a busy machine
        return 130
    return run_command_line()


if __name__ == "__main__":
    raise SystemExit(main())
