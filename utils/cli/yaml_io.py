"""Reading YAML files with errors that a user can act on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from utils.errors import UsageError

MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """YAML without code, and without keys given twice, of which the last would win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        own = [key for key, _ in node.value if key.tag != MERGE]  # what `<<: *other` brings may be given anew
        keys = [self.construct_object(key, deep=True) for key in own]  # type: ignore[no-untyped-call]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"key {twice[0]!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:  # without the picture of the place, which takes several lines
        mark = error.problem_mark
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UsageError(f"{path} is not valid YAML: {error.problem or error.context}{place}; correct it") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", error)
        raise UsageError(f"{path} cannot be read: {reason}; give a YAML file that is readable text") from None
    except RecursionError:
        raise UsageError(f"{path} cannot be read: it is nested too deeply; correct it") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # a number of thousands of digits, a 13th month
        raise UsageError(f"{path} is not valid YAML: {' '.join(str(error).split())}; correct it") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path} must hold `key: value` lines, but holds a {type(content).__name__}")
    return content
