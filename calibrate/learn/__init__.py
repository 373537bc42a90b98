"""Formulas learned from recorded jobs (design, section 2, source b): any engine, any optimizer, any script."""
