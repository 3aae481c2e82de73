"""odcrt: On-Demand Communication on PyTorch FSDP2. The runtime is not in this version; see `odcrt.cli`."""

__all__: list[str] = []
