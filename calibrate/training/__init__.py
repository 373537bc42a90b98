"""peakcast inside the user's own training: predicts at the start, warns before memory runs out, records the peaks.

Nothing here allocates on the GPU, resets PyTorch's peak counters or lets an exception of its own into the training.
"""
