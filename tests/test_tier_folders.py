"""Which folders of a configuration have to be mounted."""

from __future__ import annotations

from typing import Any

import pytest
from kvpatch.tier_folders import tier_folders


@pytest.mark.parametrize(
    ("values", "folders"),
    [
        ({"gds_path": "/mnt/a,/mnt/b", "weka_path": "/mnt/w"}, ("/mnt/a", "/mnt/b", "/mnt/w")),
        ({"gds_path": "/mnt/a,b"}, ("/mnt/a,b",)),
        ({"gds_path": "/dev/null/set-gds_path-to-a-mounted-folder"}, ()),
        ({"local_disk": "file:///mnt/a/, file:///mnt/b,"}, ("/mnt/a/", "/mnt/b")),
        ({"local_disk": "/mnt/a", "gds_path": "/mnt/a"}, ("/mnt/a",)),
        ({"local_disk": "cache"}, ()),
        ({"local_disk": None, "weka_path": True}, ()),
        ({"remote_url": "fs://host:0/mnt/a,/mnt/b?x=/y"}, ("/mnt/a", "/mnt/b")),
        ({"remote_url": "fs://host:0"}, ()),
        ({"remote_url": "redis://host:6379/1"}, ()),
        ({"extra_config": {"nixl_path": ["/mnt/a", "/mnt/b"], "x": "/no"}}, ("/mnt/a", "/mnt/b")),
        ({"extra_config": {"remote_storage_plugin.fs.base_path": "/mnt/a"}}, ("/mnt/a",)),
        ({"extra_config": "/mnt/a", "chunk_size": 256}, ()),
        ({}, ()),
    ],
)
def test_the_absolute_folders_of_all_tiers_are_found(
    values: dict[str, Any], folders: tuple[str, ...]
) -> None:
    assert tier_folders(values) == folders
