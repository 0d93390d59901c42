"""Where raw frames come from: firehoses over WebSocket, and capture files.

``address`` reads a ``--source``; ``firehose`` and ``file`` are the sources; ``follow`` connects again and again;
``websocket`` is the one module that knows the WebSocket library. Nothing here decodes a frame: that happens once,
in the pipeline.
"""
