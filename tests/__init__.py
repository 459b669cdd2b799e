"""The claims that the README makes, as tests."""

import os

# gRPC complains on the terminal of a process that is forked beside its threads.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
