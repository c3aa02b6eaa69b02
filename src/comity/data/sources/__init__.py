"""Where samples come from, one file a format."""
