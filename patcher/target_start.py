"""The script that the target interpreter is given: it runs :mod:`target_probe` there.

By import, so that its bytecode is used where kvpatch runs on the same Python: compiling it anew
would take longer than the survey.
"""

import sys

# Before anything else is imported: modules beside this file must not hide library ones.
_here = __file__.rpartition("/")[0]
_path = [entry for entry in sys.path if entry and entry != _here]
sys.path[:] = _path

import __future__  # noqa: E402, F401 - what the probe imports must come from the library

import os  # noqa: E402, F401
import stat  # noqa: E402, F401

sys.path[:] = [_here]
_probe = __import__("target_probe")
sys.path[:] = _path
_probe.main(sys.argv[1], sys.argv[2])
