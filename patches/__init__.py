"""The patches, one module each, in series order: ``kv001_<verb>_<thing>.py``."""

if __name__ != "kvpatch.patches":
    raise ImportError(
        f"this package is kvpatch.patches, not {__name__}: install kvpatch with pip instead of "
        "putting its checkout on sys.path"
    )
