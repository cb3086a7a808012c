"""The parts that only a terminal needs, besides the commands themselves (`monarch_nb/_cli.py`).

words    messages that name magics, in the terminal's own words
colours  no colours into pipes, and none where NO_COLOR is set
keys     q ends what is shown live
failure  one clear error for whatever goes wrong, and the exit status
"""
