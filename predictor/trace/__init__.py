"""One training step, or one call of ``generate``, traced on the meta device."""
