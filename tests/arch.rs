//! The dependency test of docs/ARCHITECTURE.md.
