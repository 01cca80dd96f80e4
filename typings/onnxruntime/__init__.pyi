from collections.abc import Mapping, Sequence
from typing import Any

def __getattr__(name: str) -> Any: ...

class SessionOptions:
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...

class NodeArg:
    name: str
    type: str
    shape: list[Any]

class InferenceSession:
    def __init__(
        self,
        path_or_bytes: str | bytes,
        sess_options: SessionOptions | None = None,
        *,
        providers: Sequence[str],
        enable_fallback: bool = True,
    ) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def get_inputs(self) -> list[NodeArg]: ...
    def get_outputs(self) -> list[NodeArg]: ...
    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]: ...
