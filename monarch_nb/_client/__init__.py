"""A program's connection to a mesh: how it finds one or starts it, asks it, and hears of it. `README.md`
beside this file says what lies where.
"""
