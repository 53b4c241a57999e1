"""Describes a cluster by what was measured on it: logs of nccl-tests, and steps.

`meshwright calibrate --from` hands over the texts. This package takes them apart, fits the shares
of a description to them and writes it as Lua; the program prices each description that is tried.
"""
