from typing import Any

class Figure(Any):
    def __init__(self, *, figsize: tuple[float, float], layout: str) -> None: ...
