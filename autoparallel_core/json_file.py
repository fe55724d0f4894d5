"""A JSON file, or one sentence that says why there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autoparallel_core.errors import SpecError


def read_json_file(path: Path, where: str) -> Any:
    """What the file holds; ``where`` heads the message. Raises SpecError when it is missing, unreadable or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(f"{where}: no such file") from None
    except IsADirectoryError:
        raise SpecError(f"{where}: is a directory; name a file") from None
    except (json.JSONDecodeError, RecursionError) as e:
        raise SpecError(f"{where}: is not valid JSON: {e}") from None
    except (OSError, UnicodeDecodeError) as e:
        raise SpecError(f"{where}: cannot be read: {e}") from None
