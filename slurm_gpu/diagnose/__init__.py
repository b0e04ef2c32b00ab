"""Why a distributed job is slow: pure functions of what its GPUs and hosts told, with numpy alone."""
