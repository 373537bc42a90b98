"""From a configuration to a model on the meta device."""
