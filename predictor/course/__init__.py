"""A course: the batches that a trainer draws from a dataset, step by step, through one simulated allocator.

A prediction repeats one batch three times. In a real run lengths and pictures vary, the allocator's cache fragments,
and what is reserved creeps up, so that a job may run out of memory after thousands of steps. A course draws the batches
as the trainer's sampler does, gives each of them its own events, and keeps the allocator's state from step to step.
"""
