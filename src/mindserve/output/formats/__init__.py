"""Formats of tool calls and thoughts, one data file each."""
