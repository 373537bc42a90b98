"""The offline page of ``peakcast explore``: a model's composed runs, with JavaScript that predicts from them.

Known limitations:

- A page is for one model by name or configuration, and for training only.
- ZeRO-3, FSDP2 and tensor parallelism are in a page where their formulas are shipped, or if the workload has them.
  DeepSpeed's AutoTP is in none.
- Quantization, offloading, evaluation, videos, packed samples, several image sizes and Adafactor are not in a page.
- Of the allocator's settings, a page has expandable segments only.
- Remedies with more accumulation are judged for the workload's own engine and degree, and one change at a time.
- Profiles that change sizes (workspaces, coefficients, rounding) are rejected.
- Of a model that handles samples or images one by one, a page has a few batches and one number of images.
"""
