"""Measurements of mindserve and its rivals; README.md here says how. Run from the root: python -m bench.NAME"""
