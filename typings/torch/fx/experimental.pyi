from typing import Any

_config: Any
symbolic_shapes: Any
