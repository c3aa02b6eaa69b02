"""Writes src/comity/catalogue.json from the classes themselves: ``python docs/make_catalogue.py``."""

from comity._catalogue import FILE, introspect

if __name__ == "__main__":
    FILE.write_text(introspect(), encoding="utf-8")
