//! Every operation counted once and timed exactly, with the profiler as the reference.
