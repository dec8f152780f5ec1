"""The instruction set: encoding, program file, assembler, and the sequencer that decodes programs into commands."""
