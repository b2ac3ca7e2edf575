"""The commands of the command line, one file each: `add` describes its options, `command` runs it."""
