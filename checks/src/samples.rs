//! Where a bench leaves what it measured.

use serde_json::Value;
use std::env;
use std::fs;
use std::path::PathBuf;

/// Writes the samples to `path`, or to `name` beside the built programs, and says where they are.
///
/// # Panics
/// When the file cannot be written.
pub fn keep(path: Option<PathBuf>, name: &str, samples: &Value) {
    let path = path.unwrap_or_else(|| {
        let bench = env::current_exe().expect("the path of this program");
        let deps = bench.parent().expect("a directory");
        deps.with_file_name(name)
    });
    fs::write(&path, format!("{samples:#}\n")).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    println!("samples: {}", path.display());
}
