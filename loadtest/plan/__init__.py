"""How many prefill and decode nodes a load needs: a simulation of them, calibrated by measurement.

Main path: `command` reads a calibration and a load, asks `simulate` about numbers of nodes, and shows what came of it.
`calibrate_command` makes the calibration: it asks a live pair, and `rows` turns that into coefficients.
"""
