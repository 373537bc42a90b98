"""Configurations of the known models, as published on the Hugging Face hub; ``preprocessors`` has image settings."""
