"""A request made concrete: a job of training, of inference, or of a learned formula."""
