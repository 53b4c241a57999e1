"""Figures and tables for papers, of what `meshwright report --figures` knows of each mix.

The program hands over its rows as JSON: it has grouped, measured and ranked them. This package
chooses, orders and names what is drawn, and draws it with matplotlib.
"""
