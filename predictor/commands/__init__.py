"""The subcommands of ``peakcast`` that need no GPU, one module each."""
