"""Bridges to engines that are installed as extras, one module each."""
