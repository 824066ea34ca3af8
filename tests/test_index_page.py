"""Pages of an index and of links, and folders: which files of a distribution they list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvpatch.index_page import ContentTypeError, Wheel, files_in, files_of, require_page

URL = "https://index.invalid/simple/demo/"
JSON = "application/vnd.pypi.simple.v1+json"
NAME = "demo-2.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
DIGEST = "ab12" * 16


def of_html(text: str, kind: str = "text/html") -> list[Wheel]:
    return files_of(text.encode("latin-1"), kind, URL, "demo")


def of_json(*files: Any, **more: Any) -> list[Wheel]:
    return files_of(json.dumps({"files": files, **more}).encode(), JSON, URL, "demo")


def test_the_name_is_that_of_the_url_whatever_the_text_of_the_link() -> None:
    # As the listings of nginx cut it.
    (wheel,) = of_html(f'<a href="../">../</a><a href="{NAME}">{NAME[:47]}..&gt;</a>   1-Jan-2026')
    assert (wheel.filename, wheel.url) == (NAME, f"{URL}{NAME}")
    quoted = NAME.replace("-", "%2D").replace("2.0", "2.1")
    (wheel,) = of_html(f'<A HREF="/f/{quoted}?t=a%2Fb#x=1&amp;sha256={DIGEST.upper()}">caf\xe9</A>')
    assert wheel.filename == NAME.replace("2.0", "2.1")
    assert wheel.url == f"https://index.invalid/f/{quoted}?t=a%2Fb"
    assert (wheel.sha256, wheel.size, wheel.yanked) == (DIGEST, None, False)


def test_a_page_may_have_a_base_and_a_charset() -> None:
    text = (
        f'<base href="/deep/er/"><base href="/no/"><a href="../{NAME}" data-yanked="">caf\xe9</a>'
    )
    for charset in ("iso-8859-1", '"latin1"', "nonsense"):
        (wheel,) = of_html(text, f"text/html; Charset={charset}")
        assert (wheel.url, wheel.yanked) == (f"https://index.invalid/deep/{NAME}", True)


def test_what_is_no_file_of_that_distribution_is_passed_over() -> None:
    others = ["other-1.0-py3-none-any.whl", "demo-1.0.exe", "demo-x-py3-none-any.whl", "[::1", ""]
    links = "".join(f'<a href="{name}"></a>' for name in [*others, "http://[bad", "Demo-3.0.zip"])
    assert [(wheel.filename, wheel.sdist) for wheel in of_html(links)] == [("Demo-3.0.zip", True)]
    sound = {"filename": NAME, "url": f"/f/{NAME}", "hashes": {"sha256": DIGEST}, "size": 7}
    odd = [5, {}, {"filename": NAME}, {"filename": NAME, "url": 5}, {**sound, "url": "http://[bad"}]
    (wheel,) = of_json(*odd, sound)
    assert (wheel.size, wheel.sha256) == (7, DIGEST)


@pytest.mark.parametrize("version", ["1.0", "1.9", "2.0"])
def test_the_version_of_the_interface_keeps_nobody_from_reading(
    version: str, recwarn: pytest.WarningsRecorder
) -> None:
    entry = {"filename": NAME, "url": NAME, "hashes": None, "size": "7", "yanked": "broken"}
    (wheel,) = of_json(entry, meta={"api-version": version}, name="demo")
    assert (wheel.size, wheel.sha256, wheel.yanked) == (None, None, True)
    assert not recwarn.list


@pytest.mark.parametrize("text", ["[1]", '{"files": 5}', "{", "[" * 100_000])
def test_what_is_no_page_of_an_index_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        files_of(text.encode(), JSON, URL, "demo")
    with pytest.raises(ContentTypeError):
        files_of(text.encode(), "text/plain", URL, "demo")
    with pytest.raises(ContentTypeError):
        require_page("application/octet-stream")
    require_page(f"{JSON}; charset=utf-8")


def test_a_file_in_a_folder_has_another_url_once_it_is_another(tmp_path: Path) -> None:
    folder = tmp_path / "my wheels"
    (folder / "deeper").mkdir(parents=True)
    for path in (folder / NAME, folder / "deeper" / "demo-9-py3-none-any.whl", folder / "x.whl"):
        path.write_bytes(b"1")
    (first,) = files_in(folder, "demo")
    assert (first.path, first.size, first.login) == (folder / NAME, 1, False)
    assert files_in(folder / NAME, "demo") == [first]
    (folder / NAME).write_bytes(b"22")
    (second,) = files_in(folder, "demo")
    assert (second.url == first.url, second.path) == (False, first.path)


def test_a_login_in_a_url_is_seen() -> None:
    (wheel,) = of_html(f'<a href="https://me:secret@files.invalid/{NAME}">x</a>')
    assert wheel.login
    assert wheel.path is None
    assert Wheel.of(wheel.data) == wheel
