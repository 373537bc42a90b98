"""Profiles: the calibration of one GPU, read from its file, and the corrections that it makes to predictions.

Known limitations:

- A profile applies to one GPU model. Shipped profiles are found by that name; one of another GPU is rejected.
- Outside of the calibrated shapes, library versions or job traits a prediction is still made, with a wider interval.
- Sizes that include a profile's workspaces are right at one shape only.
- Memory outside PyTorch's allocator has an assumed range unless the profile measured it; for a GPU that is not named,
  it begins at 0.
- Job traits are compared one by one. Values that were calibrated in different jobs count as calibrated together.
- Of a job that is predicted by a learned formula, no other trait is compared.
"""
