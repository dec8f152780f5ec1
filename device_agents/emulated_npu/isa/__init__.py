"""The instruction set: encoding, container, assembler, and the sequencer that decodes programs into commands."""
