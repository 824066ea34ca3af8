"""The profiles, one YAML template each, with its purpose, needs and tested ranges."""
