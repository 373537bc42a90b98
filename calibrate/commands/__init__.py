"""The subcommands of ``peakcast`` that run jobs, one module each. The docstring of a module is its help."""
