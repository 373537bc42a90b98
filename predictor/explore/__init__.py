"""A prediction that runs in the browser: the composed runs of a model in one page, with the code that adds them up."""
