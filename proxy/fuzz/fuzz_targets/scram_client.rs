//! The target `scram_client` for cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| seawall_fuzz::targets::scram_client(data));
