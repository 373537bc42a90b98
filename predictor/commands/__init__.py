"""The subcommands of ``peakcast`` that predict: one module each."""
