"""The conductor of `meshwright chaos`: trains once without faults, then with one fault after the
other, and holds each training to the losses of the first.

A rank makes some faults happen to itself (plugins/chaos/chaos.cpp); the others come from outside.
"""
