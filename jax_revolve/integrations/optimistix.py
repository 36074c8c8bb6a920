"""Optimistix's solvers, differentiated through their iterations in both modes and to any order."""

from typing import Any

