"""Arguments and options of commands: shared ones, their parsers, and checks of the files that they name."""
