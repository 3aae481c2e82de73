"""Transports: how ranks reach each other's memory. One a file, behind the interface in `base`."""

from __future__ import annotations

from odcrt.transports.base import Region, Transport

__all__ = ["Region", "Transport"]
