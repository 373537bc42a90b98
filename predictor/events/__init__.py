"""The data types that all later steps share: events, size formulas, workspaces, timelines and regimes.

Known limitations:

- A size is an integer polynomial of batch, sequence and images, or a workspace function; no other form exists.
- Workspace formulas describe PyTorch 2.11 and the library versions that each docstring names; other versions are
  assumed to allocate the same.
- The 4-bit kernel table is that of bitsandbytes 0.50.
- Sizes are requested bytes: the rounding and the caching of PyTorch's allocator are modelled elsewhere.
- A buffer of more than 64 TiB is rejected.
- A module whose name is not in ``model_facts.MODALITIES`` counts as part of the whole model, not of a tower.
"""
