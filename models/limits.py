"""Limits of formats that more than one module keeps to."""

MAX_PROTO_NBYTES = 2**31 - 1
"""Bytes of one protobuf message."""
