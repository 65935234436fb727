//! `cargo xtask tidy`: enforces the architecture.
//!
//! Layering is checked on `cargo metadata`, the rest on the sources.

mod layers;
mod lines;
mod security;
mod sources;

use std::path::Path;

pub fn run(root: &Path) -> Result<(), String> {
    let mut faults = layers::check(root)?;
    faults.extend(sources::check(root)?);
    faults.extend(lines::check(root)?);
    faults.extend(security::check(root)?);
    if faults.is_empty() {
        return Ok(());
    }
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    Err(format!("{} faults", faults.len()))
}
