"""Profiles: the calibration of one GPU, read from its file, and the corrections that it makes to predictions.

Known limitations:

- A profile applies to one GPU model. Shipped profiles are found by that name; one of another GPU is rejected.
- Outside of the calibrated shapes, library versions or job traits a prediction is still made, with a wider interval.
- Sizes that include a profile's workspaces are right at one shape only.
- Without a profile, 0 to 1 GiB outside PyTorch's allocator is assumed for a GPU.
- Job traits are compared one by one. Values that were calibrated in different jobs count as calibrated together.
- Of a job that is predicted by a learned formula, no other trait is compared.
"""
