"""Asking the target interpreter in a child process, which never imports what is looked for."""

from __future__ import annotations

import ast
import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .outcome import ExitCode, KvpatchError
from .target_probe import MARKER, compile_error

_MOST_OUTPUT = 4 * 1024 * 1024
_DROPPED = ("PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE")


@dataclass(frozen=True)
class Interpreter:
    """A Python that was asked. ``executable`` stays unresolved: resolved, it leaves its venv."""

    executable: Path
    version: tuple[int, int, int]
    cache_tag: str
    pycache_prefix: str | None
    prefix: str


def survey_target(
    executable: Path, *, timeout: float = 20.0, environ: Mapping[str, str] | None = None
) -> tuple[Interpreter, dict[str, Any]]:
    """What the interpreter says of itself and of the packages it would import.

    Args:
        executable: path of the interpreter.
        timeout: seconds the answer may take.
        environ: its environment variables; those of this process where None.

    Raises:
        KvpatchError: ``bad-python`` or ``python-timeout``, exit 4.
    """
    answer = _ask(executable, "locate", b"", timeout, environ)
    try:
        major, minor, micro = answer["version"]
        interpreter = Interpreter(
            executable=executable,
            version=(int(major), int(minor), int(micro)),
            cache_tag=answer["cache_tag"],
            pycache_prefix=answer["pycache_prefix"],
            prefix=answer["prefix"],
        )
    except (KeyError, TypeError, ValueError):
        raise _bad(executable, "gave an answer that makes no sense") from None
    return interpreter, answer


def compile_for_target(interpreter: Interpreter, sources: Mapping[str, bytes]) -> Mapping[str, str]:
    """As :func:`compile_in_target`, without a child where this very release of Python runs here.

    Raises:
        KvpatchError: ``bad-python`` or ``python-timeout``, exit 4.
    """
    here = (sys.version_info[:3], sys.implementation.cache_tag)
    if (interpreter.version, interpreter.cache_tag) != here:
        return compile_in_target(interpreter, sources)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        errors = {path: compile_error(path, source) for path, source in sources.items()}
    return {path: error for path, error in errors.items() if error}


def compile_in_target(
    interpreter: Interpreter,
    sources: Mapping[str, bytes],
    *,
    timeout: float = 60.0,
    environ: Mapping[str, str] | None = None,
) -> Mapping[str, str]:
    """Compiles the sources with the target interpreter, executing nothing of them.

    Returns:
        The error of each source that does not compile, by its path; empty when all do.

    Raises:
        KvpatchError: ``bad-python`` or ``python-timeout``, exit 4.
    """
    if not sources:
        return {}
    import json
    from base64 import b64encode

    request = [
        {"path": path, "source_base64": b64encode(source).decode("ascii")}
        for path, source in sources.items()
    ]
    data = json.dumps(request).encode("ascii")
    answer = _ask(interpreter.executable, "compile", data, timeout, environ)
    errors = answer.get("errors")
    if not isinstance(errors, dict):
        raise _bad(interpreter.executable, "gave an answer that makes no sense")
    return {str(path): str(error) for path, error in errors.items()}


def _ask(
    executable: Path,
    mode: str,
    request: bytes,
    timeout: float,
    environ: Mapping[str, str] | None,
) -> dict[str, Any]:
    # The target may print anything at start; a word it can't know tells the answer apart.
    marker = f"{MARKER}{os.urandom(8).hex()} "
    script = Path(__file__).resolve().with_name("target_start.py")
    command = [str(executable), "-B", str(script), mode, marker]
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_child_environ(os.environ if environ is None else environ),
            start_new_session=True,
        )
    except OSError as error:
        raise _bad(executable, f"can't be started: {error.strerror}") from None
    try:
        output, complaint = _converse(child, request, marker.encode(), timeout)
    except TimeoutError:
        raise KvpatchError(
            "python-timeout",
            f"{executable} gave no answer within {timeout:g} seconds",
            "see what its start-up files (.pth, sitecustomize) do, or name the folder that holds "
            "vllm with --site",
            ExitCode.ENVIRONMENT,
        ) from None
    finally:
        _end(child)
    return _answer(executable, output, complaint, marker.encode())


def _answer(executable: Path, output: bytes, complaint: bytes, marker: bytes) -> dict[str, Any]:
    _, found, rest = output.rpartition(b"\n" + marker)
    line, ended, _ = rest.partition(b"\n")
    if not found or not ended:
        lines = complaint.decode("utf-8", "replace").strip().splitlines()
        said = f" and said: {lines[-1].strip()[:200]}" if lines else ""
        raise _bad(executable, f"did not answer as Python 3.9 or newer would{said}")
    try:
        answer = ast.literal_eval(line.decode("ascii"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise _bad(executable, "gave an answer that makes no sense")
    return answer


def _converse(
    child: subprocess.Popen[bytes], request: bytes, marker: bytes, timeout: float
) -> tuple[bytes, bytes]:
    """Writes the request and reads until the answer, the end, or too much of it."""
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    deadline = time.monotonic() + timeout
    output, complaint = bytearray(), bytearray()
    pending = memoryview(request)
    with selectors.DefaultSelector() as selector:
        os.set_blocking(child.stdin.fileno(), False)
        selector.register(child.stdin, selectors.EVENT_WRITE)
        selector.register(child.stdout, selectors.EVENT_READ, output)
        selector.register(child.stderr, selectors.EVENT_READ, complaint)
        while child.stdout in selector.get_map():
            left = deadline - time.monotonic()
            events = selector.select(left) if left > 0 else []
            if not events and deadline <= time.monotonic():
                raise TimeoutError
            for key, _ in events:
                if key.fileobj is child.stdin:
                    pending = _feed(child, pending)
                    if not pending:
                        selector.unregister(child.stdin)
                        child.stdin.close()
                    continue
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                elif len(key.data) < _MOST_OUTPUT:
                    key.data.extend(data)
            if len(output) >= _MOST_OUTPUT or _is_whole(output, marker):
                break
    if not _is_whole(output, marker):
        complaint.extend(_rest_of(child.stderr.fileno()))
    return bytes(output), bytes(complaint)


def _is_whole(output: bytearray, marker: bytes) -> bool:
    start = output.rfind(b"\n" + marker)
    return start >= 0 and output.find(b"\n", start + 1) >= 0


def _feed(child: subprocess.Popen[bytes], pending: memoryview) -> memoryview:
    assert child.stdin is not None
    try:
        return pending[os.write(child.stdin.fileno(), pending) :] if pending else pending
    except BlockingIOError:
        return pending
    except BrokenPipeError:
        return memoryview(b"")


def _rest_of(descriptor: int) -> bytes:
    os.set_blocking(descriptor, False)
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return b""


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and everything it started, then waits for it."""
    # Not yet waited for, so its number still stands for this process group and no other.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    child.wait()


def _child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: an empty entry on the path would be the working folder."""
    result = {name: value for name, value in environ.items() if name not in _DROPPED}
    result["PYTHONSAFEPATH"] = "1"
    entries = [entry for entry in result.pop("PYTHONPATH", "").split(os.pathsep) if entry]
    if entries:
        result["PYTHONPATH"] = os.pathsep.join(entries)
    return result


def _bad(executable: Path, what: str) -> KvpatchError:
    return KvpatchError(
        "bad-python",
        f"{executable} {what}",
        "name the Python of the environment that has vLLM with --python",
        ExitCode.ENVIRONMENT,
    )
