//! See `longhaul_checks::fuzz::read_ahead`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longhaul_checks::fuzz::read_ahead(data));
