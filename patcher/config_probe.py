"""What a model's configuration leaves out, as the target's transformers fills it in.

Stands alone: run by the target interpreter as a script with a ``config.json``. Prints one line of
JSON: the whole configuration, or ``problem``. No code of the model's own is run, and nothing is
fetched.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def whole(file: str) -> dict[str, Any]:
    """The configuration with all of its values.

    Raises:
        Exception: whatever loading it raises.
    """
    from transformers import AutoConfig

    loaded = AutoConfig.from_pretrained(file, local_files_only=True, trust_remote_code=False)
    found: dict[str, Any] = loaded.to_dict()
    return found


if __name__ == "__main__":
    try:
        print(json.dumps(whole(sys.argv[1]), default=str))
    except Exception as error:
        print(json.dumps({"problem": (" ".join(str(error).split()) or type(error).__name__)[:300]}))
