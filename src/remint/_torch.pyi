from typing import Any

torch_version: str

def __getattr__(name: str) -> Any: ...
