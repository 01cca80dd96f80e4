from typing import Any

_config: Any
