"""The connector's real parts on a late device and a slow network, in random schedules. Read `world.py` first."""
