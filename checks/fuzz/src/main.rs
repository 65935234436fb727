//! libFuzzer around the target that `LONGHAUL_FUZZ_TARGET` names. `cargo xtask fuzz` builds and
//! runs it.
#![no_main]

use longhaul_checks::fuzz;
use std::sync::OnceLock;

static TARGET: OnceLock<fuzz::Target> = OnceLock::new();

fn target() -> fuzz::Target {
    let name = std::env::var("LONGHAUL_FUZZ_TARGET").unwrap_or_default();
    fuzz::target(&name).unwrap_or_else(|| {
        eprintln!("LONGHAUL_FUZZ_TARGET={name}: no such target; run 'cargo xtask fuzz --list'");
        std::process::exit(2)
    })
}

libfuzzer_sys::fuzz_target!(init: assert!(TARGET.set(target()).is_ok()), |data: &[u8]| {
    if let Some(run) = TARGET.get() {
        run(data);
    }
});
