//! Tests of the fingerprint rules.

mod vectors;
