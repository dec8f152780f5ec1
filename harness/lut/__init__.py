"""Lookup tables: build, publish, read, compare and export them.

::

    journal -> campaign_source (measurements, overhead, latencies) -> build.build_lut -> Lut
    Lut     -> table_files.publish -> folder -> table_files.read_lut, of the table that table_choice finds
    Lut     -> learning -> predictor; chain_rows -> neighbourhoods: layers that the table lacks
"""
