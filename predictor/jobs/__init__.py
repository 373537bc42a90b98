"""Jobs: a request with everything that predicts it, for training, for inference, or by a learned formula.

Known limitations:

- Training is predicted for three optimizer steps; memory that grows in later steps is not seen.
- A rank that differs from the simulated ones may need a little more, where there are too many ranks to simulate all.
- The verdict is judged at the two ends of when GPU events complete, not at every order between them.
- Inference runs on one GPU with greedy decoding. Prompts of a batch have one length; generation does not stop early.
- Inference is predicted for text and image-text models of transformers only.
- A learned formula answers for the recorded rank, engine, optimizer and kernels only.
"""
