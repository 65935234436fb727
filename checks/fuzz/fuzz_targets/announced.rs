//! See `longhaul_checks::fuzz::announced`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longhaul_checks::fuzz::announced(data));
