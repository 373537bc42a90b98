"""Programs as users write them, which the check ``device`` runs on a real GPU and on its emulation.

Each but ``counters`` and ``language_model`` runs in a process of its own, and prints its answer as
``probes.device_query`` reads it.
"""
