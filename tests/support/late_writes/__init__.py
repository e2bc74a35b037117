"""Real Mooncake between two processes, and bytes that land when no transfer expects them any more.

The experiments E1 to E3 showed that bytes go on landing after a batch has failed, after the sender has died and after it
was stopped. Here the same is done to a real `PrefillWorker` and a real `DecodeWorker` with its ledger:

    node.py      memory and settings that both processes share
    decode.py    D, and around it a scheduler that gives every block away again the moment it may
    prefill.py   P, which computes one prompt
    stage.py     starts both, in network namespaces with a slow link between them, and lets a test do harm

D counts the bytes of P that it finds where they must not be (`stray`). It can also play a *naive* node, which gives the
blocks back when a transfer fails instead of when the engine has been fenced: there, bytes must go astray, or else the
experiment would show nothing.
"""
