//! The record of tests that skipped themselves.

use crate::cargo::target;
use std::fs;
use std::path::{Path, PathBuf};

/// Variable with the path at which tests record skips: `longhaul_namespace::ENV_SKIPS`.
const VARIABLE: &str = "LONGHAUL_SKIPS";

/// The record of one run.
pub struct Skips {
    file: PathBuf,
}

impl Skips {
    /// An empty record, in the target folder.
    pub fn begin(root: &Path) -> Result<Self, String> {
        let folder = target(root);
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let file = folder.join("skipped-tests.txt");
        fs::write(&file, "").map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(Skips { file })
    }

    /// Variable for the environment of tests.
    pub fn variable(&self) -> (&'static str, String) {
        (VARIABLE, self.file.display().to_string())
    }

    /// Adds a skip.
    pub fn add(&self, what: &str) -> Result<(), String> {
        let text = format!("{}xtask {what}\n", self.text()?);
        fs::write(&self.file, text).map_err(|e| format!("{}: {e}", self.file.display()))
    }

    fn text(&self) -> Result<String, String> {
        fs::read_to_string(&self.file).map_err(|e| format!("{}: {e}", self.file.display()))
    }

    /// Prints the record with its count; with `strict` a skip is a failure.
    pub fn report(&self, strict: bool) -> Result<(), String> {
        let lines = distinct(&self.text()?);
        for line in &lines {
            eprintln!("== skipped: {line}");
        }
        eprintln!("== {} skipped", lines.len());
        if strict && !lines.is_empty() {
            return Err(format!("--strict, and {} skipped", lines.len()));
        }
        Ok(())
    }
}

/// Sorted distinct lines of a record. A test that skips two parts for one reason counts once.
fn distinct(text: &str) -> Vec<String> {
    let mut lines: Vec<String> =
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    lines.sort();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_listed_once_and_fails_where_it_must_not_be() {
        let folder = std::env::temp_dir().join(format!("longhaul-xtask-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let skips = Skips { file: folder.join("skips") };
        fs::write(&skips.file, "").unwrap();
        assert_eq!(skips.report(true), Ok(()));
        skips.add("b: no such device").unwrap();
        skips.add("b: no such device").unwrap();
        skips.add("a: no root").unwrap();
        let text = skips.text().unwrap();
        assert_eq!(distinct(&text), ["xtask a: no root", "xtask b: no such device"]);
        assert_eq!(skips.report(false), Ok(()));
        assert_eq!(skips.report(true), Err("--strict, and 2 skipped".to_owned()));
        fs::remove_dir_all(&folder).unwrap();
    }
}
