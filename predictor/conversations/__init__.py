"""Counts the tokens and pictures of a dataset's samples with the model's own processor, as training will.

Rows are read from JSON, JSON Lines or Parquet in the forms that LLaVA, LLaMA-Factory, ms-swift and TRL read. Of a
picture only the header of its file is read. The processor is loaded from this machine, never from the network, and no
code of its repository runs.
"""
