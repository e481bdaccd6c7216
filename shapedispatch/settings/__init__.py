"""TOML and environment to settings: nothing else reads either. What a setting does stands where it is used."""
