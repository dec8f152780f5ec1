"""The HTML page of a run: layers, roofline, buffers, and what each unit did when."""
