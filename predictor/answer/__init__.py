"""Predictions: ``predict()``, the data that it returns, and pages about models.

Known limitations:

- A dataset's batches are drawn at random. A sampler that groups samples by length is not modelled, nor is what the
  allocator's cache keeps of batches of other shapes.
- Samples are combined neither with inference, nor with evaluation batches, learned formulas, several ``image_size``
  values, or a batch of more than 512 samples.
- A model that handles images or tokens one by one is not predicted with samples.
- Without a profile of the GPU there is no device peak, and the intervals of the other peaks are unknown.
- Paged serving follows vLLM's accounting. It is assumed, never measured, and not available with sliding windows.
- Data loaders, checkpoint saving, and what Hugging Face's Trainer holds beyond the reference loop are not modelled.
"""
