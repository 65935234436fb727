//! See `longhaul_checks::fuzz::tunnelled`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longhaul_checks::fuzz::tunnelled(data));
