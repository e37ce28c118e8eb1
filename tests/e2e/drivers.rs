//! Real drivers, direct and through Seawall, with equal output.
